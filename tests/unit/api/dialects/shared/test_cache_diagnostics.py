"""Why the cache missed, in the fields of both vendors, from the request to the reply."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from anthropic.types import Message
from openai.types.responses import Response

from api.http.messages import Reply
from domain.chat.items import Body, Finished, Started, Text
from domain.values import StopReason, Usage
from tests.support.builders.api import FakeApi, fake_api
from tests.support.builders.generation_requests import ENDED_AT
from tests.support.polling import eventually

FIRST = Usage(prompt_tokens=100, completion_tokens=1)
#: The system prompt or the tools differ, so that only 20 of the tokens are cached.
SECOND = Usage(prompt_tokens=100, cached_tokens=20, completion_tokens=1)
MISSED = 80
TOOL = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
MESSAGES = {
    "model": "m",
    "max_tokens": 9,
    "metadata": {"user_id": "user_1_account_2_session_5d0c8a52-2c6b-4b55-9c39-6f1f0c2f7a10"},
    "messages": [{"role": "user", "content": "hi"}],
    "system": "Be brief.",
}
RESPONSES = {"model": "m", "input": "hi", "prompt_cache_key": "one"}


async def answered(api: FakeApi, path: str, body: dict[str, Any], usage: Usage) -> Any:
    """Ask, answer as a worker does, and return the reply."""
    known = set(api.log.views.rows)
    asking = asyncio.create_task(api.send("POST", path, body))
    (job_id,) = await eventually(lambda: [one for one in api.log.views.rows if one not in known])
    await api.queued(job_id)
    api.start(job_id, usage)
    api.complete(job_id, "Hello", usage=usage)
    items: tuple[Body, ...] = (
        Started(prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens),
        Text(text="Hello", ids=(1,)),
        Finished(stop_reason=StopReason.END_TURN, usage=usage, at=ENDED_AT),
    )
    api.publish(job_id, *items)
    reply = await asking
    assert isinstance(reply, Reply)
    return json.loads(reply.body)


def asked_twice(path: str, first: dict[str, Any], then: Callable[[str], dict[str, Any]]) -> Any:
    """Return the reply to the second of two requests, and the response as it is read later."""

    async def scenario() -> Any:
        async with fake_api() as api:
            before = await answered(api, path, first, FIRST)
            made = await answered(api, path, first | then(before["id"]), SECOND)
            if path == "/v1/responses":
                assert await api.json("GET", f"{path}/{made['id']}") == made
            return made

    return asyncio.run(scenario())


def test_a_message_has_the_reason_of_its_miss() -> None:
    made = asked_twice(
        "/v1/messages",
        MESSAGES,
        lambda before: {
            "system": "Be thorough.",
            "diagnostics": {"previous_message_id": before},
        },
    )
    reason = {"type": "system_changed", "cache_missed_input_tokens": MISSED}
    assert made["diagnostics"] == {"cache_miss_reason": reason}
    assert Message.model_validate(made, strict=False).diagnostics is not None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"tools": [{"type": "function", **TOOL}]},
            {"type": "cache_miss", "reason": "tools_changed", "cache_missed_tokens": MISSED},
        ),
        (
            {"instructions": "Be brief."},
            {"type": "cache_miss", "reason": "input_changed", "cache_missed_tokens": MISSED},
        ),
        (
            {"reasoning": {"effort": "high"}},
            {
                "type": "cache_miss",
                "reason": "reasoning_effort_changed",
                "cache_missed_tokens": MISSED,
            },
        ),
    ],
    ids=["tools", "instructions", "effort"],
)
def test_a_response_has_the_reason_of_its_miss(
    changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    made = asked_twice(
        "/v1/responses",
        RESPONSES,
        lambda before: changes | {"prompt_cache_options": {"comparison_response_id": before}},
    )
    assert made["prompt_cache_diagnostics"] == expected
    parsed = Response.model_validate(made, strict=False).prompt_cache_diagnostics
    assert parsed is not None
    assert parsed.type == "cache_miss"


def test_a_response_that_does_not_exist_is_reported_in_the_answer() -> None:
    missing = "resp_" + "0" * 32
    made = asked_twice(
        "/v1/responses",
        RESPONSES,
        lambda _: {"prompt_cache_options": {"comparison_response_id": missing}},
    )
    assert made["prompt_cache_diagnostics"] == {"type": "comparison_response_not_found"}


def test_a_response_that_is_compared_with_none_has_no_diagnosis() -> None:
    made = asked_twice("/v1/responses", RESPONSES, lambda _: {"input": "hello"})
    assert "prompt_cache_diagnostics" not in made
