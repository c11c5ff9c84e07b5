"""Edits of the prompt (``context_management``), and threads that the service holds."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from anthropic.types.beta import BetaMessage, BetaMessageTokensCount

from api.dialects.anthropic.context import CLEARED_RESULT
from api.dialects.anthropic.parse import parse
from api.generation import RequestDefaults
from api.http.messages import Caller, Reply, Request
from domain.chat.request import EDITED_ORIGIN, ChatRequest, Message
from domain.errors import InvalidRequest
from domain.values import Digest, JobId
from ops.settings.api_keys import KeyScope
from tests.support.builders.api import PATIENCE_S, FakeApi, fake_api, pieces_of
from tests.support.builders.generation_requests import ANSWER, BODY, MESSAGES
from tests.support.clients.sse import events_in
from tests.support.fakes.time import SequentialIds
from tests.support.polling import eventually

COUNT = "/v1/messages/count_tokens"
_TOOL = {"name": "look", "input_schema": {"type": "object"}}


def _use(number: int, name: str = "look") -> list[dict[str, Any]]:
    """Return a call with reasoning and an argument of one character, and a result of 100."""
    call = {"type": "tool_use", "id": f"t{number}", "name": name, "input": {"q": "x"}}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "r" * 100}
    return [
        {"role": "assistant", "content": [thought, call]},
        {"role": "user", "content": [result]},
    ]


LONG = BODY | {
    "tools": [_TOOL],
    "messages": [{"role": "user", "content": "hi"}, *_use(1), *_use(2, "keep"), *_use(3)],
}


def _edits(*edits: dict[str, Any]) -> dict[str, Any]:
    return LONG | {"context_management": {"edits": list(edits)}}


def _uses(**more: Any) -> dict[str, Any]:
    keep = {"type": "tool_uses", "value": 1}
    trigger = {"type": "input_tokens", "value": 0}
    return {"type": "clear_tool_uses_20250919", "keep": keep, "trigger": trigger} | more


def _thinking(**more: Any) -> dict[str, Any]:
    return {"type": "clear_thinking_20251015"} | more


def _length(request: ChatRequest) -> int:
    return sum(
        len(turn.content)
        + len(turn.reasoning)
        + sum(len(call.arguments) for call in turn.tool_calls)
        for turn in request.messages
    )


async def _made(api: FakeApi, body: dict[str, Any]) -> tuple[dict[str, Any], JobId]:
    api.use(opening_s=PATIENCE_S)
    api.broker.counter.count_of = _length
    before = set(api.log.views.rows)
    answering = asyncio.create_task(api.send("POST", MESSAGES, body))
    (job_id,) = await eventually(lambda: set(api.log.views.rows) - before)
    await api.queued(job_id)
    api.publish(job_id, *ANSWER)
    api.start(job_id)
    api.complete(job_id, "Hello")
    reply = await answering
    assert isinstance(reply, Reply)
    return json.loads(reply.body), job_id


def _turns(api: FakeApi, job_id: JobId) -> tuple[Message, ...]:
    request = api.log.views.rows[job_id].submitted.request
    return ChatRequest.from_bytes(api.log.get(Digest(request))).messages


def test_older_results_are_cleared_and_reported() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            body = _edits(_uses(exclude_tools=["keep"], clear_tool_inputs=True))
            made, job_id = await _made(api, body)
            saved = 100 - len(CLEARED_RESULT) + 1
            applied = {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 1}
            assert made["context_management"] == {
                "applied_edits": [applied | {"cleared_input_tokens": saved}]
            }
            assert BetaMessage.model_validate(made).context_management is not None
            turns = _turns(api, job_id)
            results = [turn.content for turn in turns if turn.role == "tool"]
            assert results == [CLEARED_RESULT, "r" * 100, "r" * 100]
            calls = [turn for turn in turns if turn.tool_calls]
            assert [turn.tool_calls[0].arguments for turn in calls] == [{}, {"q": "x"}, {"q": "x"}]
            assert [turn.origin for turn in calls] == [EDITED_ORIGIN, "", ""]

    asyncio.run(scenario())


def test_older_reasoning_is_cleared_and_stays_out_of_the_prompt() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            made, job_id = await _made(api, _edits(_thinking()))
            (applied,) = made["context_management"]["applied_edits"]
            assert (applied["cleared_thinking_turns"], applied["cleared_input_tokens"]) == (2, 6)
            turns = [turn for turn in _turns(api, job_id) if turn.role == "assistant"]
            assert [turn.reasoning for turn in turns] == ["", "", "Hm."]
            assert [turn.origin for turn in turns] == [EDITED_ORIGIN, EDITED_ORIGIN, ""]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("edit", "is_applied"),
    [
        (_uses(trigger={"type": "tool_uses", "value": 2}), True),
        (_uses(trigger={"type": "tool_uses", "value": 3}), False),
        (_uses(trigger={"type": "input_tokens", "value": 10_000}), False),
        (_uses(clear_at_least={"type": "input_tokens", "value": 10_000}), False),
        (_uses(keep={"type": "tool_uses", "value": 3}), False),
        (_uses(clear_tool_inputs=["look"]), True),
        ({"type": "clear_tool_uses_20250919"}, False),
        (_thinking(keep={"type": "thinking_turns", "value": 2}), True),
        (_thinking(keep={"type": "thinking_turns", "value": 3}), False),
        (_thinking(keep={"type": "all"}), False),
        (_thinking(keep="all"), False),
    ],
)
def test_an_edit_waits_for_its_trigger(edit: dict[str, Any], *, is_applied: bool) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            made, _ = await _made(api, _edits(edit))
            assert bool(made["context_management"]["applied_edits"]) == is_applied

    asyncio.run(scenario())


def test_a_stream_reports_its_edits_at_the_end() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.broker.counter.count_of = _length
            api.use(opening_s=PATIENCE_S)
            body = _edits(_thinking(), _uses()) | {"stream": True}
            answering = asyncio.create_task(api.send("POST", MESSAGES, body))
            job_id = await api.only_job()
            api.publish(job_id, *ANSWER)
            events = [json.loads(one.data) for one in events_in(await pieces_of(await answering))]
            (end,) = (event for event in events if event["type"] == "message_delta")
            kinds = [one["type"] for one in end["context_management"]["applied_edits"]]
            assert kinds == ["clear_thinking_20251015", "clear_tool_uses_20250919"]

    asyncio.run(scenario())


def test_a_count_is_that_of_the_edited_prompt() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.broker.counter.count_of = _length
            whole = await api.json("POST", COUNT, LONG)
            edited = await api.json("POST", COUNT, _edits(_uses()))
            saved = 2 * (100 - len(CLEARED_RESULT))
            assert edited == {
                "input_tokens": whole["input_tokens"] - saved,
                "context_management": {"original_input_tokens": whole["input_tokens"]},
            }
            BetaMessageTokensCount.model_validate(edited)

    asyncio.run(scenario())


def test_a_thread_continues_with_the_new_messages_alone() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            begun = BODY | {"system": "Be short.", "thread": {"type": "create"}}
            first, _ = await _made(api, begun)
            thread = {"type": "continue", "previous_message_id": first["id"]}
            turn = [{"role": "user", "content": "And?"}]
            second, job_id = await _made(api, BODY | {"messages": turn, "thread": thread})
            assert [(one.role, one.content) for one in _turns(api, job_id)] == [
                ("system", "Be short."),
                ("user", "hi"),
                ("assistant", "Hello"),
                ("user", "And?"),
            ]
            assert BetaMessage.model_validate(second).id != first["id"]
            body = BODY | {"system": "Be long.", "messages": turn, "thread": thread}
            _, job_id = await _made(api, body)
            assert _turns(api, job_id)[0].content == "Be long."

    asyncio.run(scenario())


def test_a_thread_of_no_message_or_of_another_key_is_refused() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            for thread in ({"type": "continue"}, {"type": "create", "previous_message_id": "m"}):
                await api.json("POST", MESSAGES, BODY | {"thread": thread}, status=400)
            first, _ = await _made(api, BODY)
            caller = Caller(name="bob", scope=KeyScope.OWN, is_alone=False)
            bob = Request(id="r", method="POST", path=MESSAGES, caller=caller)
            for name, request in ((first["id"], bob), ("msg_" + "0" * 32, None)):
                thread = {"type": "continue", "previous_message_id": name}
                reply = await api.send("POST", MESSAGES, BODY | {"thread": thread}, request=request)
                assert isinstance(reply, Reply)
                assert reply.status == 400
                assert "does not exist" in json.loads(reply.body)["error"]["message"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"context_management": {"edits": [_uses()]}}, "context_management"),
        ({"thread": {"type": "continue", "previous_message_id": "msg_1"}}, "thread"),
    ],
)
def test_a_line_of_a_batch_has_no_count_and_no_thread(fields: dict[str, Any], named: str) -> None:
    defaults = RequestDefaults(ids=SequentialIds(), max_tokens=1)
    with pytest.raises(InvalidRequest) as caught:
        parse(json.dumps(LONG | fields).encode(), {}, defaults)
    assert caught.value.field == named
