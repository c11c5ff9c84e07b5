"""Compaction in Messages: the edit, the field, and the block that a client sends back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from anthropic.types.beta import BetaMessage

from api.dialects.anthropic.parse import parse
from api.dialects.compaction import COMPACT_INSTRUCTION
from api.generation import RequestDefaults
from api.http.messages import Reply, StreamReply
from domain.chat.items import Finished, Started, Text
from domain.chat.request import ChatRequest
from domain.errors import InvalidRequest
from domain.values import Digest, JobId, StopReason, Usage
from tests.support.builders.api import PATIENCE_S, FakeApi, fake_api, pieces_of
from tests.support.builders.generation_requests import BODY, ENDED_AT, MESSAGES
from tests.support.clients.sse import events_in
from tests.support.fakes.time import SequentialIds
from tests.support.polling import eventually

_SUMMARY = "A boat of wood."
_BLOCK: dict[str, Any] = {"type": "compaction", "content": _SUMMARY}
_CALL = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
_RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "wood " * 40}
_QUESTION: dict[str, Any] = {"role": "user", "content": "Go on."}
LONG: dict[str, Any] = BODY | {
    "system": "Be brief.",
    "tools": [{"name": "look", "input_schema": {"type": "object"}}],
    "messages": [
        {"role": "user", "content": "Build a boat."},
        {"role": "assistant", "content": [_CALL]},
        {"role": "user", "content": [_RESULT]},
        {"role": "assistant", "content": "I have wood."},
        _QUESTION,
    ],
}


def _compact(at: int = 100, **more: Any) -> dict[str, Any]:
    trigger = {"type": "input_tokens", "value": at}
    edit = {"type": "compact_20260112", "trigger": trigger} | more
    return {"context_management": {"edits": [edit]}}


def _characters(request: ChatRequest) -> int:
    return sum(len(message.content) for message in request.messages)


async def _answer_next(api: FakeApi, before: set[JobId], text: str) -> JobId:
    (job_id,) = await eventually(lambda: set(api.log.views.rows) - before)
    await api.queued(job_id)
    api.start(job_id)
    api.complete(job_id, text)
    usage = Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=1)
    end = Finished(stop_reason=StopReason.END_TURN, usage=usage, at=ENDED_AT)
    started = Started(prompt_tokens=5, cached_tokens=2)
    api.publish(job_id, started, Text(text=text, ids=(1,)), end)
    return job_id


async def _message(api: FakeApi, body: dict[str, Any]) -> dict[str, Any]:
    """Return the message, which the SDK's models assemble where it is streamed."""
    reply = await api.send("POST", MESSAGES, body)
    if not isinstance(reply, StreamReply):
        made: dict[str, Any] = json.loads(reply.body)
        return made
    message: dict[str, Any] = {}
    for event in (one.json for one in events_in(await pieces_of(reply)) if one.event):
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta":
                delta, block = event["delta"], message["content"][event["index"]]
                if delta["type"] == "compaction_delta":
                    block["content"] = delta["content"]
                else:
                    block["text"] += delta["text"]
            case "message_delta":
                message |= event["delta"]
                message["usage"] |= event["usage"]
                message["context_management"] = event.get("context_management")
            case _:
                pass
    return message


async def _asked(
    api: FakeApi, body: dict[str, Any], *texts: str
) -> tuple[dict[str, Any], list[JobId]]:
    api.use(opening_s=PATIENCE_S)
    api.broker.counter.count_of = _characters
    asking = asyncio.ensure_future(_message(api, body))
    jobs = [await _answer_next(api, set(api.log.views.rows), text) for text in texts]
    return await asking, jobs


def _prompt(api: FakeApi, job_id: JobId) -> ChatRequest:
    return ChatRequest.from_bytes(api.log.get(Digest(api.log.views.rows[job_id].submitted.request)))


def _turns(api: FakeApi, job_id: JobId) -> list[tuple[str, str]]:
    return [(turn.role, turn.content) for turn in _prompt(api, job_id).messages]


def _text(turns: list[tuple[str, str]]) -> str:
    return "\n".join(text for _, text in turns)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_above_the_trigger_is_compacted_before_the_answer(*, stream: bool) -> None:
    async def scenario() -> None:
        async with fake_api(ping_s=0.01) as api:
            body = LONG | _compact(instructions="In German.") | {"stream": stream}
            made, (summing, answering) = await _asked(api, body, f" {_SUMMARY}\n", "Sail.")
            assert made["content"] == [_BLOCK, {"type": "text", "text": "Sail."}]
            assert made["stop_reason"] == "end_turn"
            counts = {
                "input_tokens": 3,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 2,
                "output_tokens": 1,
            }
            assert made["usage"]["iterations"] == [
                {"type": "compaction"} | counts,
                {"type": "message"} | counts,
            ]
            assert {name: made["usage"][name] for name in counts} == counts
            assert BetaMessage.model_validate(made).content[0].type == "compaction"
            prompt = _prompt(api, summing)
            assert prompt.messages[-1].content.endswith(f"{COMPACT_INSTRUCTION}\n\nIn German.")
            assert prompt.tool_choice.mode == "none"
            assert [tool["function"]["name"] for tool in prompt.tools] == ["look"]
            turns = _turns(api, answering)
            assert turns[0] == ("system", "Be brief.")
            assert [role for role, _ in turns] == ["system", "user"]
            assert _SUMMARY in turns[1][1]
            assert turns[1][1].endswith("Go on.")
            # The client sends everything again: the next prompt begins with this one.
            answered = {"role": "assistant", "content": made["content"]}
            again = [*LONG["messages"], answered, {"role": "user", "content": "More."}]
            _, (next_job,) = await _asked(api, LONG | {"messages": again}, "Yes.")
            assert _turns(api, next_job) == [*turns, ("assistant", "Sail."), ("user", "More.")]

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_a_compaction_that_pauses_is_the_whole_message(*, stream: bool) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            body = LONG | _compact(pause_after_compaction=True) | {"stream": stream}
            made, (summing,) = await _asked(api, body, _SUMMARY)
            assert made["content"] == [_BLOCK]
            assert made["stop_reason"] == "compaction"
            assert made["usage"]["output_tokens"] == 0
            (iteration,) = made["usage"]["iterations"]
            assert (iteration["type"], iteration["output_tokens"]) == ("compaction", 1)
            # As the SDK's tool runner goes on: the same request with the message at its end.
            paused = [*LONG["messages"], {"role": "assistant", "content": made["content"]}]
            after, (job,) = await _asked(api, body | {"messages": paused}, "Sail.")
            assert [one["type"] for one in after["content"]] == ["text"]
            assert _turns(api, job)[-1][1].endswith("Go on.")
            # The job of a summary is no conversation that goes on.
            thread = {"type": "continue", "previous_message_id": f"msg_{summing[4:]}"}
            body = BODY | {"thread": thread}
            refused = await api.json("POST", MESSAGES, body, status=400)
            assert "is a compaction" in refused["error"]["message"]

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("own", [None, " ", "Only nouns."])
def test_the_field_compaction_makes_a_summary_of_the_whole(
    own: str | None, *, stream: bool
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            spec = {"type": "summarize", "instructions": own}
            body = LONG | {"compaction": spec, "stream": stream}
            made, (summing,) = await _asked(api, body, _SUMMARY)
            assert (made["content"], made["stop_reason"]) == ([_BLOCK], "compaction")
            words = _turns(api, summing)[-1][1]
            assert words.endswith("Only nouns." if (own or "").strip() else COMPACT_INSTRUCTION)
            # It comes back first, in place of what it stands for.
            first = {"role": "assistant", "content": made["content"]}
            _, (job,) = await _asked(api, LONG | {"messages": [first, _QUESTION]}, "Sail.")
            turns = _turns(api, job)
            assert [role for role, _ in turns] == ["system", "user"]
            assert _SUMMARY in turns[1][1]
            assert turns[1][1].endswith("Go on.")

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["compaction", "context_management"])
def test_a_field_whose_name_is_escaped_acts_like_the_plain_one(name: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            edits = _compact(0, pause_after_compaction=True)
            whole = LONG | (edits if name in edits else {name: {"type": "summarize"}})
            escaped = f'"\\u{ord(name[0]):04x}{name[1:]}"'
            text = json.dumps(whole).replace(f'"{name}"', escaped)
            assert f'"{name}"' not in text
            api.use(opening_s=PATIENCE_S)
            api.broker.counter.count_of = _characters
            asking = asyncio.ensure_future(api.send("POST", MESSAGES, text.encode()))
            await _answer_next(api, set(), _SUMMARY)
            reply = await asking
            assert isinstance(reply, Reply)
            assert json.loads(reply.body)["content"] == [_BLOCK]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "edit"),
    [
        (LONG, _compact(100_000)),
        (LONG, {"context_management": {"edits": [{"type": "compact_20260112"}]}}),
        (BODY, _compact(0)),
        (LONG | {"messages": [{"role": "assistant", "content": [_BLOCK]}, _QUESTION]}, _compact(0)),
    ],
    ids=["short", "default", "one question", "compacted"],
)
def test_what_is_short_or_has_nothing_older_is_not_compacted(
    body: dict[str, Any], edit: dict[str, Any]
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            made, _ = await _asked(api, body | edit, "Sail.")
            assert [one["type"] for one in made["content"]] == ["text"]
            assert "iterations" not in made["usage"]

    asyncio.run(scenario())


def test_a_failed_compaction_in_a_message_stands_for_nothing() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            failed = {"role": "assistant", "content": [{"type": "compaction", "content": None}]}
            body = LONG | {"messages": [*LONG["messages"][:-1], failed, _QUESTION]}
            _, (job,) = await _asked(api, body, "Sail.")
            _, (plain,) = await _asked(api, LONG, "Sail.")
            assert _turns(api, job) == _turns(api, plain)

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("pause", [False, True])
def test_an_empty_summary_fails(*, pause: bool, stream: bool) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.broker.counter.count_of = _characters
            body = LONG | _compact(pause_after_compaction=pause) | {"stream": stream}
            asking = asyncio.ensure_future(api.send("POST", MESSAGES, body))
            if stream and not pause:
                pieces = asyncio.ensure_future(pieces_of(await asking))
                await _answer_next(api, set(), " ")
                reply: Any = await pieces
            else:
                await _answer_next(api, set(), " ")
                reply = await asking
            if isinstance(reply, Reply):
                assert reply.status == 400
                assert b"no summary" in reply.body
                return
            *_, last = events_in(reply if stream and not pause else await pieces_of(reply))
            assert last.event == "error"
            assert "no summary" in last.json["error"]["message"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"compaction": {"type": "summarize"}} | _compact(), "context_management"),
        ({"compaction": {"type": "summarize"}, "stop_sequences": ["x"]}, "stop_sequences"),
        ({"compaction": {"type": "summarize"}, "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"compaction": {"type": "cut"}}, "compaction.type"),
        ({"messages": LONG["messages"][:2], "compaction": {"type": "summarize"}}, "messages"),
        ({"context_management": {"edits": [{"type": "compact_20260112"}] * 2}}, "only once"),
        (
            {"messages": [{"role": "assistant", "content": [_BLOCK | {"content": ""}]}]},
            "content of a compaction",
        ),
        (
            {"messages": [{"role": "assistant", "content": [_BLOCK | {"tool_changes": [{}]}]}]},
            "tool_changes",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(fields: dict[str, Any], named: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            refused = await api.json("POST", MESSAGES, LONG | fields, status=400)
            assert named in refused["error"]["message"]

    asyncio.run(scenario())


def test_a_count_compacts_nothing_and_has_what_a_block_covers() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.broker.counter.count_of = _characters
            path = f"{MESSAGES}/count_tokens"
            whole = (await api.json("POST", path, LONG))["input_tokens"]
            edited = await api.json("POST", path, LONG | _compact())
            assert edited["input_tokens"] == whole
            assert edited["context_management"] == {"original_input_tokens": whole}
            spec = {"compaction": {"type": "summarize"}}
            assert await api.json("POST", path, LONG | spec) == {"input_tokens": whole}
            behind = [*LONG["messages"], {"role": "assistant", "content": [_BLOCK]}]
            shown = await api.json("POST", path, LONG | {"messages": behind})
            assert shown["input_tokens"] < whole / 2

    asyncio.run(scenario())


@pytest.mark.parametrize("fields", [_compact(), {"compaction": {"type": "summarize"}}])
def test_a_line_of_a_batch_is_not_compacted(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="line of a batch"):
        parse(
            json.dumps(LONG | fields).encode(),
            {},
            RequestDefaults(ids=SequentialIds(), max_tokens=9),
        )
