"""A conversation is read once: a turn finds the one before it and its answer, token for token."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import pytest

from tests.support.polling import WITHIN_S, scaled
from tests.support.processes.service import Service

_TOOL: Any = {
    "name": "get_weather",
    "description": "Get the weather in a place.",
    "input_schema": {
        "type": "object",
        "properties": {"location": {"type": "string"}, "exact": {"type": "boolean"}},
        "required": ["location"],
    },
}
_SESSION = {"x-claude-code-session-id": "0c8f3f0e-8f0a-4f8b-9d43-2f3c7f1d9a01"}


class Client:
    """Talks as Claude Code does: echoes with other bytes, counters, a billing line, cache marks."""

    def __init__(self, service: Service, question: str) -> None:
        self.service = service
        self.messages: list[Any] = []
        self.asked = 0
        self.say(question)

    def say(self, text: str) -> None:
        self.messages.append({"role": "user", "content": [{"type": "text", "text": text}]})

    def ask(self) -> anthropic.types.Message:
        self.asked += 1
        moved = {"type": "ephemeral"}
        last = self.messages[-1]["content"][-1] | {"cache_control": moved}
        sent = [
            *self.messages[:-1],
            {"role": "user", "content": [*self.messages[-1]["content"][:-1], last]},
        ]
        counter: Any = {
            "role": "system",
            "content": f"<total_tokens>{99999 - self.asked} tokens left</total_tokens>",
        }
        with anthropic.Anthropic(
            base_url=self.service.base_url, api_key="local", max_retries=0, timeout=scaled(120)
        ) as api:
            answer = api.messages.create(
                model="semantic-demo",
                max_tokens=200,
                system=[
                    {"type": "text", "text": f"x-anthropic-billing-header: cch={self.asked};"},
                    {"type": "text", "text": "You are a helpful assistant."},
                ],
                tools=[_TOOL],
                messages=[*sent, counter],
                extra_headers=_SESSION,
                extra_body={"temperature": 0},
            )
        blocks = [block.model_dump(exclude_none=True) for block in answer.content]
        for block in blocks:
            if block["type"] == "tool_use":
                # Another order, and a default that the model never said.
                block["input"] = {"exact": False} | block["input"]
        self.messages.append({"role": "assistant", "content": blocks})
        return answer

    def give_results(self, answer: anthropic.types.Message, text: str) -> None:
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": text}
            for block in answer.content
            if block.type == "tool_use"
        ]
        self.messages.append({"role": "user", "content": results})


def _prompt(usage: anthropic.types.Usage) -> int:
    cached = usage.cache_read_input_tokens or 0
    return usage.input_tokens + cached + (usage.cache_creation_input_tokens or 0)


def _assert_goes_on(before: anthropic.types.Message, after: anthropic.types.Message) -> None:
    """Everything that was read and said before is known; the last token was never read."""
    said = _prompt(before.usage) + before.usage.output_tokens
    assert (after.usage.cache_read_input_tokens or 0) >= said - 2, (before.usage, after.usage)


def test_no_turn_is_read_twice_neither_after_a_restart(
    mortal: Service, pytestconfig: pytest.Config
) -> None:
    client = Client(mortal, "What is the weather in Paris?")
    first = client.ask()
    assert first.stop_reason == "tool_use", first
    client.give_results(first, "Sunny, 21 degrees.")
    second = client.ask()
    _assert_goes_on(first, second)
    client.say("Say hello.")
    third = client.ask()
    _assert_goes_on(second, third)
    # By day test_agents.py restarts the service between turns.
    if pytestconfig.getoption("--nightly"):
        assert mortal.stop() == 0
        mortal.start()
    client.say("What is the capital of France?")
    fourth = client.ask()
    _assert_goes_on(third, fourth)
    counted = httpx.get(
        f"{mortal.base_url}/v1/jobs", params={"limit": 1}, timeout=scaled(WITHIN_S)
    ).json()["data"][0]
    assert counted["usage"]["cached_tokens"] == fourth.usage.cache_read_input_tokens


def test_every_answer_says_what_was_known_and_why_no_more(service: Service) -> None:
    session = {"x-claude-code-session-id": "5d0c8a52-2c6b-4b55-9c39-6f1f0c2f7a10"}
    system = "You are a helpful assistant who knows a good deal about the weather of Europe. "

    def ask(**changes: Any) -> tuple[str, Any]:
        body: Any = {
            "model": "semantic-demo",
            "max_tokens": 8,
            "temperature": 0,
            "system": system * 4,
            "messages": [{"role": "user", "content": "Say hello."}],
        }
        answer = httpx.post(
            f"{service.base_url}/v1/messages",
            json=body | changes,
            headers=session,
            timeout=scaled(120),
        )
        assert answer.status_code == 200, answer.text
        job = httpx.get(
            f"{service.base_url}/v1/jobs/{answer.headers['x-semantic-job']}",
            timeout=scaled(WITHIN_S),
        ).json()
        return answer.headers["x-semantic-cache"], job["cache"]

    header, first = ask()
    assert first["divergence"] is None
    assert header.startswith(f"prompt={first['prompt_tokens']}, cached=0, source=none")
    header, again = ask()
    assert again["cached_tokens"] >= first["prompt_tokens"] - 1
    assert again["divergence"] is None
    assert "source=ram" in header
    header, changed = ask(system="Dated: Monday. " + system * 4)
    parted = changed["divergence"]
    assert (parted["cause"], parted["place"]) == ("system_changed", "system")
    assert parted["now"].startswith("Dated: Monday.")
    assert parted["at_token"] == changed["cached_tokens"]
    assert changed["missed_tokens"] > 0
    assert header.endswith('cause=system_changed, place="system"'), "no text of a prompt"
    header, tooled = ask(tools=[_TOOL])
    assert tooled["divergence"]["cause"] == "tool_added"
    assert tooled["divergence"]["place"] == "tools[0] get_weather"
