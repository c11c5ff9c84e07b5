"""The unmodified Ollama clients, in Python and JavaScript, on the demo model."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import httpx
import ollama
import pytest

from tests.support.clients import npm
from tests.support.polling import WITHIN_S, scaled, wait_until
from tests.support.processes.service import Service

MODEL = "semantic-demo"
QUESTION = {"role": "user", "content": "What is the capital of France?"}
WEATHER = {"role": "user", "content": "What is the weather in Paris?"}
COLD: dict[str, Any] = {"temperature": 0, "num_predict": 64}
JS_VERSION = "0.6.4"
SESSION = Path(__file__).parents[2] / "support" / "clients" / "ollama_session.mjs"


def get_weather(location: str) -> str:
    """Get the weather of a city.

    Args:
        location: The city.
    """
    return f"Sunny, 21 degrees in {location}."


@pytest.fixture
def client(service: Service) -> Iterator[ollama.Client]:
    with ollama.Client(host=service.base_url, timeout=scaled(60)) as made:
        yield made


def test_models_are_found(client: ollama.Client) -> None:
    (model,) = client.list().models
    assert model.model == MODEL
    assert (model.size or 0) > 0
    shown = client.show(MODEL)
    assert shown.details is not None
    family = shown.details.family
    assert shown.modelinfo is not None
    assert shown.modelinfo[f"{family}.context_length"] > 0
    client.generate(MODEL, keep_alive="5m")
    (loaded,) = client.ps().models
    assert (loaded.model, loaded.context_length) == (
        MODEL,
        shown.modelinfo[f"{family}.context_length"],
    )


def test_a_chat_answers(client: ollama.Client) -> None:
    reply = client.chat(f"{MODEL}:latest", messages=[QUESTION], options=COLD)
    assert "Paris" in (reply.message.content or "")
    assert (reply.done, reply.done_reason) == (True, "stop")
    assert (reply.prompt_eval_count or 0) > 0
    assert (reply.eval_count or 0) > 0
    assert (reply.total_duration or 0) >= (reply.eval_duration or 0)


def test_a_stream_gives_the_same_text(client: ollama.Client) -> None:
    whole = client.chat(MODEL, messages=[QUESTION], options=COLD)
    pieces = list(client.chat(MODEL, messages=[QUESTION], options=COLD, stream=True))
    assert len(pieces) > 2
    assert "".join(piece.message.content or "" for piece in pieces) == whole.message.content
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].eval_count == whole.eval_count


def test_a_generation_continues_a_prompt(client: ollama.Client) -> None:
    prompt = QUESTION["content"]
    reply = client.generate(MODEL, prompt=prompt, system="You are brief.", options=COLD)
    assert "Paris" in (reply.response or "")
    raw = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    pieces = client.generate(MODEL, prompt=raw, raw=True, options=COLD, stream=True)
    assert "Paris" in "".join(piece.response or "" for piece in pieces)


def test_a_session_with_a_tool(client: ollama.Client) -> None:
    turns: list[Any] = [WEATHER]
    first = client.chat(MODEL, messages=turns, tools=[get_weather], options=COLD)
    (call,) = first.message.tool_calls or ()
    assert (call.function.name, list(call.function.arguments)) == ("get_weather", ["location"])
    pieces = client.chat(MODEL, messages=turns, tools=[get_weather], options=COLD, stream=True)
    calls = [one for piece in pieces for one in piece.message.tool_calls or ()]
    assert calls == [call]
    result = {"role": "tool", "tool_name": "get_weather", "content": get_weather("Paris")}
    turns += [first.message, result]
    second = client.chat(MODEL, messages=turns, tools=[get_weather], options=COLD)
    assert second.done
    turns += [second.message, QUESTION]
    third = client.chat(MODEL, messages=turns, tools=[get_weather], options=COLD)
    assert (third.prompt_eval_count or 0) > (second.prompt_eval_count or 0)


def test_a_format_is_kept(client: ollama.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    }
    reply = client.chat(MODEL, messages=[QUESTION], format=schema, options=COLD)
    assert list(json.loads(reply.message.content or "")) == ["city"]


def test_tokens_have_their_chances(client: ollama.Client) -> None:
    reply = client.chat(MODEL, messages=[QUESTION], options=COLD, logprobs=True, top_logprobs=2)
    chances = reply.logprobs or ()
    assert "".join(one.token for one in chances) == reply.message.content
    assert all(len(one.top_logprobs or ()) == 2 for one in chances)


def test_errors_are_the_clients_own(client: ollama.Client) -> None:
    turn = {"role": "user", "content": "hi"}
    refused: list[tuple[int, str, Callable[[], object]]] = [
        (400, "images", lambda: client.chat(MODEL, messages=[turn | {"images": [b"GIF"]}])),
        (404, "absent", lambda: client.chat("absent", messages=[turn])),
        (404, "absent", lambda: list(client.chat("absent", messages=[turn], stream=True))),
        (400, "no vectors", lambda: client.embed(MODEL, input="a")),
        (501, "semantic models pull", lambda: client.pull(MODEL)),
        (501, "semantic models pull", lambda: list(client.pull(MODEL, stream=True))),
        (501, "semantic models rm", lambda: client.delete(MODEL)),
        (501, "semantic models add", lambda: client.copy(MODEL, "other")),
    ]
    for status, words, ask in refused:
        with pytest.raises(ollama.ResponseError) as error:
            ask()
        assert error.value.status_code == status
        assert words in error.value.error


def test_the_probe_finds_a_server(service: Service) -> None:
    within_s = scaled(WITHIN_S)
    assert "Ollama is running" in httpx.get(service.base_url, timeout=within_s).text
    assert httpx.head(service.base_url, timeout=within_s).status_code == 200


def test_a_client_that_leaves_cancels_its_job(endless: Service) -> None:
    jobs = f"{endless.base_url}/v1/jobs"

    async def leave() -> None:
        async with ollama.AsyncClient(host=endless.base_url, timeout=scaled(60)) as client:
            pieces = await client.chat(MODEL, messages=[WEATHER], stream=True)
            # Its type hides that it is a generator, which holds the connection until it is closed.
            async with aclosing(cast("AsyncGenerator[Any]", pieces)) as stream:
                async for _ in stream:
                    break

    asyncio.run(leave())

    def status() -> str:
        return str(httpx.get(jobs, timeout=scaled(WITHIN_S)).json()["data"][0]["status"])

    wait_until(lambda: status() == "cancelled", within_s=WITHIN_S)


def test_the_javascript_client_holds_a_session(service: Service) -> None:
    entry = npm.install(
        "ollama", JS_VERSION, npm.ROOT / ".venv" / "ollama-js" / JS_VERSION, "ollama/dist/index.mjs"
    )
    node = shutil.which("node")
    if node is None:
        npm.missing("node is not installed")
    done = subprocess.run(
        [node, str(SESSION), str(entry), service.base_url],
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(120),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["models"] == found["loaded"] == [MODEL]
    assert "tools" in found["shown"]
    assert "Paris" in found["whole"]["message"]["content"]
    assert "".join(found["pieces"]) == found["whole"]["message"]["content"]
    assert found["last"]["done_reason"] == "stop"
    assert "Paris" in found["generated"]["response"]
    (call,) = found["calls"]
    assert call["function"]["name"] == "get_weather"
    assert found["second"]["done"]
    assert "semantic models pull" in found["pull"]
    assert "semantic models rm" in found["delete"]
    assert found["aborted"] == "AbortError"
