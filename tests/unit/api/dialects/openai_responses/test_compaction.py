"""Compaction: the endpoint, the trigger and the threshold, and what the model sees afterwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import CompactedResponse, Response

from api.dialects.compaction import COMPACT_INSTRUCTION
from api.dialects.openai_responses.compaction import (
    compaction_item,
    newest_question,
    shown_items,
)
from api.dialects.openai_responses.requested import RequestedFields
from api.http.messages import Caller, Reply, Request, StreamReply
from domain.chat.items import Body, Finished, Started, Text, Thinking
from domain.chat.request import ChatRequest
from domain.chat.stored_answer import StoredAnswer
from domain.values import Digest, JobId, StopReason, Usage
from ops.settings.api_keys import KeyScope
from tests.support.builders.api import FakeApi, fake_api, pieces_of
from tests.support.builders.generation_requests import ENDED_AT
from tests.support.clients.sse import events_in
from tests.support.polling import eventually

PATH = "/v1/responses"
COMPACT = f"{PATH}/compact"
_FIELDS = RequestedFields(
    items=(),
    previous=None,
    is_stored=False,
    is_background=False,
    is_signed=False,
    kinds={},
    echo={},
)
_USAGE = Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=1)
_TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}
_LONG = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "Build a boat."},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "wood " * 40},
    {"role": "assistant", "content": "I have wood."},
    {"role": "user", "content": "Go on."},
]


def _characters(request: ChatRequest) -> int:
    return sum(len(message.content) for message in request.messages)


async def _answered(
    api: FakeApi, text: str, ask: Callable[[], Awaitable[Any]]
) -> tuple[Any, JobId]:
    """Ask, and answer the next job as a worker does."""
    before = set(api.log.views.rows)
    asking = asyncio.ensure_future(ask())
    job_id = await _next_job(api, before, text)
    return await asking, job_id


async def _next_job(api: FakeApi, before: set[JobId], text: str) -> JobId:
    (job_id,) = await eventually(lambda: set(api.log.views.rows) - before)
    await api.queued(job_id)
    api.start(job_id)
    stored = StoredAnswer(text=text, thinking="Hm.", calls=(), token_ids=(1,))
    api.complete_with(job_id, stored)
    end = Finished(stop_reason=StopReason.END_TURN, usage=_USAGE, at=ENDED_AT)
    thought = Thinking(text="Hm.", ids=(1,))
    bodies: list[Body] = [
        Started(prompt_tokens=5, cached_tokens=2),
        thought,
        Text(text=text, ids=(1,)),
        end,
    ]
    api.publish(job_id, *bodies)
    return job_id


async def _asked(
    api: FakeApi, text: str, body: dict[str, Any], path: str = PATH
) -> tuple[Any, JobId]:
    reply, job_id = await _answered(
        api, text, lambda: api.send("POST", path, {"model": "m"} | body)
    )
    assert isinstance(reply, Reply)
    return json.loads(reply.body), job_id


def _turns(api: FakeApi, job_id: JobId) -> list[tuple[str, str]]:
    return [(turn.role, turn.content) for turn in _prompt(api, job_id).messages]


def _prompt(api: FakeApi, job_id: JobId) -> ChatRequest:
    request = api.log.views.rows[job_id].submitted.request
    return ChatRequest.from_bytes(api.log.get(Digest(request)))


def _summary(turns: list[tuple[str, str]], text: str) -> int:
    (place,) = [n for n, (role, words) in enumerate(turns) if role == "user" and text in words]
    return place


def test_a_conversation_is_compacted_by_a_job_and_goes_on_behind_its_summary() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            body = {"input": _LONG, "tools": [_TOOL]}
            made, job_id = await _asked(api, "A boat of wood.", body, COMPACT)
            *kept, compaction = made["output"]
            # The SDK's model has only messages of the assistant, the vendor sends the user's.
            CompactedResponse.model_validate(made | {"output": [compaction]})
            assert [one["content"][0]["text"] for one in kept] == ["Build a boat.", "Go on."]
            assert compaction["type"] == "compaction"
            assert "boat" not in compaction["encrypted_content"]
            assert made["usage"]["output_tokens"] == 1
            prompt = _prompt(api, job_id)
            # The prompt of the conversation, tools included, and the instruction behind it.
            assert prompt.messages[-1].content.endswith(COMPACT_INSTRUCTION)
            assert [tool["function"]["name"] for tool in prompt.tools] == ["look"]
            assert prompt.tool_choice.mode == "none"
            again = [*made["output"], {"role": "user", "content": "And now?"}]
            _, job_id = await _asked(api, "Sail.", {"input": again})
            words = "\n".join(text for _, text in _turns(api, job_id))
            assert words.index("Build a boat.") < words.index("A boat of wood.")
            assert words.index("A boat of wood.") < words.index("And now?")
            assert "wood wood" not in words

    asyncio.run(scenario())


def test_a_trigger_gives_one_item_and_its_summary_replaces_the_chain() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            body = {"input": [*_LONG, {"type": "compaction_trigger"}], "stream": True}
            reply, _ = await _answered(
                api, "A boat of wood.", lambda: api.send("POST", PATH, {"model": "m"} | body)
            )
            events = events_in(await pieces_of(reply))
            assert [event.event for event in events] == [
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.compaction.compacting",
                "response.output_item.done",
                "response.completed",
            ]
            whole = events[-1].json["response"]
            assert len(Response.model_validate(whole).output) == 1
            assert whole["output"] == [events[-2].json["item"]]
            one = f"{PATH}/{whole['id']}"
            assert await api.json("GET", one) == whole
            again = events_in(await pieces_of(await api.send("GET", f"{one}?stream=true")))
            assert [event.json for event in again] == [event.json for event in events]
            body = {"previous_response_id": whole["id"], "input": "And now?"}
            made, job_id = await _asked(api, "Sail.", body)
            turns = _turns(api, job_id)
            assert turns[0] == ("system", "Be brief.")
            words = "\n".join(text for _, text in turns)
            assert "A boat of wood." in words
            assert "Build a boat." not in words
            # And the next turn of the chain is the same conversation.
            body = {"previous_response_id": made["id"], "input": "More."}
            _, job_id = await _asked(api, "Yes.", body)
            later = _turns(api, job_id)
            assert later[: len(turns)] == turns

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_above_the_threshold_is_compacted_before_the_answer(*, stream: bool) -> None:
    async def scenario() -> None:
        async with fake_api(ping_s=0.01) as api:
            api.broker.counter.count_of = _characters
            rule = [{"type": "compaction", "compact_threshold": 100}]
            body = {"model": "m", "input": _LONG, "context_management": rule, "stream": stream}
            asking = asyncio.ensure_future(_read(api, body))
            await _next_job(api, set(), "A boat of wood.")
            first = set(api.log.views.rows)
            job_id = await _next_job(api, first, "Sail.")
            made = await asking
            assert [one["type"] for one in made["output"]] == ["compaction", "reasoning", "message"]
            assert Response.model_validate(made).output_text == "Sail."
            assert await api.json("GET", f"{PATH}/{made['id']}") == made
            turns = _turns(api, job_id)
            assert turns[0] == ("system", "Be brief.")
            assert "A boat of wood." in turns[1][1]
            assert turns[-1][1].endswith("Go on.")
            assert "Build a boat." not in "\n".join(text for _, text in turns)
            # A chain and a client that sends everything again continue the same conversation.
            chained = {"previous_response_id": made["id"], "input": "More."}
            _, chained_id = await _asked(api, "Yes.", chained)
            echoed = {"input": [*_LONG, *made["output"], {"role": "user", "content": "More."}]}
            _, echoed_id = await _asked(api, "Yes.", echoed)
            assert _turns(api, chained_id) == _turns(api, echoed_id)
            assert _turns(api, chained_id)[:1] == turns[:1]

    asyncio.run(scenario())


async def _read(api: FakeApi, body: dict[str, Any]) -> Any:
    reply = await api.send("POST", PATH, body)
    if isinstance(reply, StreamReply):
        events = events_in(await pieces_of(reply))
        places = [event.json.get("output_index") for event in events]
        assert [place for place in places if place is not None] == sorted(
            place for place in places if place is not None
        )
        numbers = [event.json["sequence_number"] for event in events]
        assert numbers == list(range(len(events)))
        return events[-1].json["response"]
    assert reply.status == 200, reply.body
    return json.loads(reply.body)


def test_a_short_prompt_or_a_single_question_is_not_compacted() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.broker.counter.count_of = _characters
            for items, threshold in ((_LONG, 100_000), (_LONG[:2], 1)):
                rule = [{"type": "compaction", "compact_threshold": threshold}]
                body = {"input": items, "context_management": rule}
                made, _ = await _asked(api, "Sail.", body)
                assert [one["type"] for one in made["output"]] == ["reasoning", "message"]

    asyncio.run(scenario())


def test_a_repeat_with_the_same_key_joins_both_jobs() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.broker.counter.count_of = _characters
            rule = [{"type": "compaction", "compact_threshold": 100}]
            body = {"model": "m", "input": _LONG, "context_management": rule}

            async def ask() -> Any:
                key = {"idempotency-key": "k-1"}
                reply = await api.send("POST", PATH, body, headers=key)
                assert isinstance(reply, Reply)
                return json.loads(reply.body)

            asking = asyncio.ensure_future(ask())
            await _next_job(api, set(), "A boat of wood.")
            await _next_job(api, set(api.log.views.rows), "Sail.")
            assert await ask() == await asking
            assert len(api.log.views.rows) == 2

    asyncio.run(scenario())


def _forged(content: str) -> list[Any]:
    return [{"type": "compaction", "encrypted_content": content}, {"role": "user", "content": "?"}]


def test_only_the_caller_reads_a_compaction_and_no_other_text_passes_for_it() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            made, _ = await _asked(api, "A boat of wood.", {"input": _LONG}, COMPACT)
            content = made["output"][-1]["encrypted_content"]
            changed = content[:-1] + ("0" if content[-1] != "0" else "1")
            for one in (changed, "gAAAAABo", f"c1.{'0' * 32}.{'0' * 32}"):
                body = {"model": "m", "input": _forged(one)}
                refused = await api.json("POST", PATH, body, status=400)
                assert refused["error"]["param"] == "input.0.encrypted_content"
            bob = Caller(name="bob", scope=KeyScope.OWN, is_alone=False)
            request = Request(id="r", method="POST", path=PATH, caller=bob)
            body = {"model": "m", "input": _forged(content)}
            reply = await api.send("POST", PATH, body, request=request)
            assert isinstance(reply, Reply)
            assert reply.status == 400
            # The summary of a compaction is no response that can be retrieved.
            await api.json("GET", f"{PATH}/{made['id']}", status=404)

    asyncio.run(scenario())


def test_a_compaction_without_a_summary_fails() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            reply, _ = await _answered(
                api, " ", lambda: api.send("POST", COMPACT, {"model": "m", "input": _LONG})
            )
            assert reply.status == 400
            assert "no summary" in json.loads(reply.body)["error"]["message"]
            nothing = await api.json("POST", COMPACT, {"model": "m"}, status=400)
            assert nothing["error"]["param"] == "input"

    asyncio.run(scenario())


_TURNS = st.lists(st.tuples(st.sampled_from(["developer", "user", "assistant"]), st.text()))


@given(before=_TURNS, after=_TURNS, leaves_out=st.booleans())
def test_what_an_automatic_compaction_covers_may_be_left_out(
    before: list[tuple[str, str]], after: list[tuple[str, str]], *, leaves_out: bool
) -> None:
    older = [_message(*turn) for turn in before]
    kept = newest_question(older)
    compaction = compaction_item(JobId("job-" + "0" * 32), "Sum.")
    fields = replace(_FIELDS, is_compaction=True, kept=kept)
    if leaves_out:
        older = [
            item
            for n, item in enumerate(older)
            if n >= len(older) - kept or item["role"] == "developer"
        ]
    later = [_message(*turn) for turn in after]
    shown = shown_items([*older, compaction, *later], lambda _: (fields, "Sum."), 0)
    (place,) = [n for n, item in enumerate(shown) if item["type"] == "compaction"]
    rest = [item for n, item in enumerate(shown) if n != place]
    # Instructions stay in words, the newest question and what came later too, and nothing else.
    assert shown[place]["summary"] == "Sum."
    assert all(item["role"] == "developer" for item in shown[:place])
    cut = len(older) - kept
    assert (
        rest == [item for item in older[:cut] if item["role"] == "developer"] + older[cut:] + later
    )


def _message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
