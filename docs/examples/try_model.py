"""A first look at a model: what the engine does for it, and whether its answers keep their form.

Start the service with the model (``semantic serve --model …``), then run
``.venv/bin/python docs/examples/try_model.py``. Exits with 0 if every check holds, else with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

#: Address of the service, unless SERVICE_URL names another.
URL = "http://127.0.0.1:8000"
#: A first answer may wait until the model is loaded, in seconds.
PATIENCE_S = 600.0
SCHEMA = {
    "type": "object",
    "properties": {"capital": {"type": "string", "maxLength": 20}, "sure": {"type": "boolean"}},
    "required": ["capital", "sure"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Return the weather of a town.",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string", "maxLength": 20}},
            "required": ["town"],
            "additionalProperties": False,
        },
    },
}
TOGETHER = 4
TOWNS = ("France", "Italy", "Spain", "Japan")


def main() -> None:
    """Print the model's abilities, then a line for each check."""
    options = _options()
    key = os.environ.get("SEMANTIC_API_KEY")
    with httpx.Client(
        base_url=os.environ.get("SERVICE_URL", URL),
        headers={"authorization": f"Bearer {key}"} if key else {},
        timeout=PATIENCE_S,
    ) as http:
        model = options.model or http.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        chat = Chat(http, model)
        chat.ask("Hello")  # the model is loaded now, so its abilities are known
        print(model)
        for line in abilities(http, model):
            print(line)
        checks: dict[str, Callable[[], str]] = {
            "reuse": chat.check_reuse,
            "json": chat.check_json,
            "tool call": chat.check_call,
            "together": chat.check_together,
        }
        results = {name: check() for name, check in checks.items()}
    for name, result in results.items():
        print(f"{name:<18} {result}")
    raise SystemExit(0 if all(one.startswith("holds") for one in results.values()) else 1)


def abilities(http: httpx.Client, model: str) -> Iterator[str]:
    """Yield a line for each ability of the engine with the model."""
    found = http.get(f"/v1/models/{model}").raise_for_status().json()["capabilities"]["engine"]
    for name, one in (found or {}).items():
        why = f": {one['why']}" if one["why"] else ""
        yield f"{name.replace('_', ' '):<18} {one['degree']}{why}"


class Chat:
    """Greedy questions to one model, each a conversation of its own."""

    def __init__(self, http: httpx.Client, model: str) -> None:
        self._http = http
        self._model = model

    def ask(self, question: str, **options: object) -> dict[str, Any]:
        """Return the reply to a question, or to the messages in ``options``."""
        body = {"model": self._model, "temperature": 0, "max_tokens": 32, **options}
        body.setdefault("messages", [{"role": "user", "content": question}])
        reply: dict[str, Any] = (
            self._http.post("/v1/chat/completions", json=body).raise_for_status().json()
        )
        return reply

    def check_reuse(self) -> str:
        """Whether a second turn computes little more than its own words."""
        first = {"role": "user", "content": f"Note {uuid.uuid4()}. " + "Keep it in mind. " * 60}
        reply = self.ask("", messages=[first], user="try-model")
        turn = [first, reply["choices"][0]["message"], {"role": "user", "content": "Thanks."}]
        usage = self.ask("", messages=turn, user="try-model")["usage"]
        known, prompt = usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]
        return f"{_holds(known > prompt / 2)}: {known} of {prompt} tokens of a second turn known"

    def check_json(self) -> str:
        """Whether an answer under a schema is JSON with the demanded fields."""
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
        reply = self.ask("What is the capital of France? As JSON.", response_format=form)
        answer = json.loads(reply["choices"][0]["message"]["content"])
        return f"{_holds(answer.keys() == {'capital', 'sure'})}: {json.dumps(answer)}"

    def check_call(self) -> str:
        """Whether a demanded call comes, with the fields of its schema."""
        reply = self.ask(
            "What is the weather in Oslo?",
            tools=[WEATHER],
            tool_choice="required",
            max_tokens=96,
        )
        (call,) = reply["choices"][0]["message"]["tool_calls"]
        arguments = call["function"]["arguments"]
        return f"{_holds(json.loads(arguments).keys() == {'town'})}: weather({arguments})"

    def check_together(self) -> str:
        """Whether prompts answered at once get the answers that they get alone."""
        prompts = [
            f"What is the capital of {one}?" for one in ("France", "Italy", "Spain", "Japan")
        ]
        alone = [self._text(one) for one in prompts]
        with ThreadPoolExecutor(TOGETHER) as pool:
            together = list(pool.map(self._text, prompts))
        equal = sum(one == other for one, other in zip(alone, together, strict=True))
        return f"{_holds(equal == len(prompts))}: {equal} of {len(prompts)} answers equal"

    def _text(self, prompt: str) -> str:
        return str(self.ask(prompt)["choices"][0]["message"]["content"])


def _holds(value: bool) -> str:  # noqa: FBT001 - a check has one result
    return "holds" if value else "fails"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A first look at a model.")
    parser.add_argument("--model", help="its name; that of the first one that is served by default")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except httpx.HTTPStatusError as error:
        raise SystemExit(f"{error}\n{error.response.text}") from error
    except httpx.TransportError as error:
        raise SystemExit(f"no answer: {error}; does the service run? make demo") from error
