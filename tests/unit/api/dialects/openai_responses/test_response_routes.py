"""Responses from body to bytes: stored, continued, streamed again, cancelled, deleted."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from openai.types.responses import Response, ResponseItemList

from api.framework.answer import warning_header
from api.http.messages import Reply, Request, StreamReply
from domain.chat.generation import EmittedCall, OutputRun
from domain.chat.items import Body, ToolEnd, ToolInput, ToolStart
from domain.chat.request import ChatRequest, Message, ToolCall
from domain.chat.stored_answer import StoredAnswer
from domain.values import JobId, JobStatus, StopReason, StreamName
from tests.support.builders.api import FakeApi, fake_api, first_piece, leave, pieces_of
from tests.support.builders.generation_requests import ANSWER, status_of
from tests.support.clients.sse import events_in

PATH = "/v1/responses"
BODY: dict[str, Any] = {"model": "m", "input": "hi", "background": True}


_COSTLY = {"type": "object", "properties": {"n": {"multipleOf": 99_999_989}}}


def _job(response: Any) -> JobId:
    return JobId("job-" + response["id"].removeprefix("resp_"))


def _characters(request: ChatRequest) -> int:
    return sum(len(message.content) for message in request.messages)


def _grammar(syntax: str, definition: str) -> dict[str, Any]:
    chosen = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": "f", "format": chosen}


async def _made(api: FakeApi, body: Any, text: str = "Hello", *calls: EmittedCall) -> Any:
    """Ask in the background, answer as a worker does, and return the response."""
    made = await api.json("POST", PATH, BODY | body)
    assert made["status"] == "queued"
    api.start(_job(made))
    api.complete(_job(made), text, calls)
    return await api.json("GET", f"{PATH}/{made['id']}")


def _prompt(api: FakeApi, response: Any) -> ChatRequest:
    (submitted,) = api.log.read_all(types=["JobSubmitted"], stream=StreamName(_job(response)))
    return ChatRequest.from_bytes(api.log.get(submitted.data["request"]))


def test_whole_answer_is_a_stored_response() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            asking = asyncio.create_task(api.send("POST", PATH, {"model": "m", "input": "hi"}))
            job_id = await api.only_job()
            api.start(job_id)
            api.complete(job_id, "Hello")
            api.publish(job_id, *ANSWER)
            reply = await asking
            assert isinstance(reply, Reply)
            made = json.loads(reply.body)
            assert reply.headers["x-semantic-job"] == job_id
            assert Response.model_validate(made).output_text == "Hello"
            assert made["status"] == "completed"
            assert made["usage"]["input_tokens_details"]["cached_tokens"] == 2
            assert await api.json("GET", f"{PATH}/{made['id']}") == made

    asyncio.run(scenario())


def test_stored_response_has_the_order_of_the_answer() -> None:
    calls = tuple(
        EmittedCall(id=f"toolu_{n}", name="f", arguments="{}", is_complete=True) for n in range(2)
    )
    order = [("text", 3), ("tool", 1), ("thinking", 2), ("tool", 1), ("text", 4)]
    answer = StoredAnswer(
        text="Hm.Done",
        thinking="So",
        calls=calls,
        token_ids=(1,),
        order=tuple(OutputRun(*run) for run in order),  # type: ignore[arg-type]  # literals
    )
    bodies: list[Body] = [ANSWER[0]]
    for part in answer.parts():
        if isinstance(part, EmittedCall):
            bodies.append(ToolStart(id=part.id, name=part.name))
            bodies += [ToolInput(fragment=part.arguments, ids=(1,)), ToolEnd()]
        else:
            bodies.append(part)

    async def scenario() -> None:
        async with fake_api() as api:
            asking = asyncio.create_task(api.send("POST", PATH, {"model": "m", "input": "hi"}))
            job_id = await api.only_job()
            api.start(job_id)
            api.complete_with(job_id, answer)
            api.publish(job_id, *bodies, ANSWER[-1])
            reply = await asking
            assert isinstance(reply, Reply)
            made = json.loads(reply.body)
            assert [item["type"] for item in made["output"]] == [
                "message", "function_call", "reasoning", "function_call", "message",
            ]  # fmt: skip
            one = f"{PATH}/{made['id']}"
            assert await api.json("GET", one) == made
            # Its events come from the log once the broker has lost them.
            api.broker.items.forget(job_id)
            again = events_in(await pieces_of(await api.send("GET", f"{one}?stream=true")))
            assert again[-1].json["response"]["output"] == made["output"]

    asyncio.run(scenario())


def test_stream_can_be_repeated_from_any_event() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            reply = await api.send("POST", PATH, BODY | {"stream": True})
            job_id = await api.only_job()
            api.start(job_id)
            api.publish(job_id, *ANSWER)
            first = [event.json for event in events_in(await pieces_of(reply))]
            api.complete(job_id, "Hello")
            one = f"{PATH}/{first[0]['response']['id']}"
            for after in range(-1, len(first) + 1):
                start = f"&starting_after={after}" if after >= 0 else ""
                again = await pieces_of(await api.send("GET", f"{one}?stream=true{start}"))
                assert [event.json for event in events_in(again)] == first[after + 1 :]
            assert first[-1]["response"] == await api.json("GET", one)

    asyncio.run(scenario())


def test_reader_in_the_background_may_leave_and_another_one_cancels() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            reply = await api.send("POST", PATH, BODY | {"stream": True})
            await first_piece(reply)
            await leave(reply)
            job_id = await api.only_job()
            one = f"{PATH}/resp_{job_id.removeprefix('job-')}"
            assert (await api.json("GET", one))["status"] == "queued"
            ended = await api.json("POST", f"{one}/cancel")
            assert (ended["status"], ended["error"]) == ("cancelled", None)
            assert await api.json("POST", f"{one}/cancel") == ended
            assert status_of(api, job_id) is JobStatus.CANCELLED

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("window", "priority", "seconds"),
    [("soonest", "interactive", None), ("2h", "batch", 7200), ("8h", "batch", 28_800)],
)
def test_a_completion_window_is_a_deadline_in_the_line_of_batches(
    window: str, priority: str, seconds: int | None
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            options = {"completion_window": window, "continuation_id": "nightly-7"}
            await api.json("POST", PATH, BODY | {"background_options": options})
            (event,) = api.log.read_all(types=["JobSubmitted"])
            assert (event.data["priority"], event.data["agent"]) == (priority, "nightly-7")
            if seconds is None:
                assert event.data["finish_deadline"] is None
            else:
                due = datetime.fromisoformat(event.data["finish_deadline"])
                assert due - api.app.clock.now() == timedelta(seconds=seconds)

    asyncio.run(scenario())


def test_a_prewarm_reads_the_prompt_and_is_complete() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            options = {"prompt_cache_options": {"prewarm": True}, "max_output_tokens": 9}
            made = await api.json("POST", PATH, BODY | options)
            assert _prompt(api, made).max_tokens == 0
            api.start(_job(made))
            empty = StoredAnswer(text="", calls=(), token_ids=())
            api.complete_with(_job(made), empty, stop_reason=StopReason.MAX_TOKENS)
            ended = await api.json("GET", f"{PATH}/{made['id']}")
            assert (ended["status"], ended["output"]) == ("completed", [])
            assert ended["incomplete_details"] is None

    asyncio.run(scenario())


def test_the_prompt_of_a_response_is_counted() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.broker.counter.count_of = _characters
            path = f"{PATH}/input_tokens"
            body = {"model": None, "input": "twelve chars", "truncation": "auto"}
            assert await api.json("POST", path, body) == {
                "object": "response.input_tokens",
                "input_tokens": 12,
            }
            more = body | {"model": "m", "instructions": "Be brief."}
            assert (await api.json("POST", path, more))["input_tokens"] == 21
            first = await _made(api, {"input": "Hi"}, "Hello")
            more = {"input": "Go on", "previous_response_id": first["id"]}
            assert (await api.json("POST", path, more))["input_tokens"] == len("HiHelloGo on")
            assert len(list(api.log.read_all(types=["JobSubmitted"]))) == 1

    asyncio.run(scenario())


def test_client_that_leaves_a_connection_ends_its_response() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            reply = await api.send("POST", PATH, {"model": "m", "input": "hi", "stream": True})
            await first_piece(reply)
            await leave(reply)

    asyncio.run(scenario())


def test_next_turn_continues_from_the_log() -> None:
    call = EmittedCall(
        id="toolu_" + "0" * 32 + "_0", name="f", arguments='{"a": 1}', is_complete=True
    )

    async def scenario() -> None:
        async with fake_api() as api:
            first = await _made(api, {"instructions": "Be brief."}, "Hello", call)
            result = {"type": "function_call_output", "call_id": call.id, "output": "21"}
            more = {"previous_response_id": first["id"], "instructions": "Be long."}
            second = await _made(api, more | {"input": [result]}, "It is 21.")
            third = await _made(
                api, {"previous_response_id": second["id"], "input": "Thanks."}, "Bye"
            )
            hello = Message(
                role="assistant",
                content="Hello",
                tool_calls=(ToolCall(id=call.id, name="f", arguments={"a": 1}),),
            )
            turns = _prompt(api, third).messages
            assert turns == (
                Message(role="user", content="hi"),
                # Ids of the call in this test name another job than those of the message.
                hello,
                Message(role="tool", content="21", tool_call_id=call.id),
                Message(role="assistant", content="It is 21.", origin=_job(second)),
                Message(role="user", content="Thanks."),
            )
            assert _prompt(api, second).messages == (
                Message(role="system", content="Be long."),
                *turns[:3],
            )
            listed = await api.json("GET", f"{PATH}/{third['id']}/input_items?order=asc")
            assert [item["type"] for item in listed["data"]] == [
                "message", "message", "function_call", "function_call_output", "message", "message",
            ]  # fmt: skip
            assert ResponseItemList.model_validate(listed, strict=True)

    asyncio.run(scenario())


def test_references_are_replaced_by_their_items() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            first = await _made(api, {})
            named = {"type": "item_reference", "id": first["output"][0]["id"]}
            asked = [{"role": "user", "content": "hi"}, named, {"role": "user", "content": "more"}]
            second = await _made(api, {"input": asked})
            assert [turn.origin for turn in _prompt(api, second).messages] == ["", _job(first), ""]
            lost = {"type": "item_reference", "id": "msg_" + "0" * 32 + "_0"}
            error = await api.json("POST", PATH, BODY | {"input": [lost]}, status=400)
            assert error["error"]["param"] == "input.0.id"
            # An answer whose order is not recorded has one text.
            second_text = {"type": "item_reference", "id": first["output"][0]["id"][:-1] + "1"}
            await api.json("POST", PATH, BODY | {"input": [second_text]}, status=400)

    asyncio.run(scenario())


def test_deleted_response_is_404() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            made = await _made(api, {})
            one = f"{PATH}/{made['id']}"
            deleted = await api.json("DELETE", one)
            assert deleted == {"id": made["id"], "object": "response", "deleted": True}
            for method, path in [
                ("GET", one), ("DELETE", one), ("POST", f"{one}/cancel"),
                ("GET", f"{one}/input_items"), ("GET", f"{one}?stream=true"),
            ]:  # fmt: skip
                error = await api.json(method, path, status=404)
                assert error["error"]["code"] == "response_not_found"
            body = BODY | {"previous_response_id": made["id"]}
            error = await api.json("POST", PATH, body, status=400)
            assert error["error"]["code"] == "previous_response_not_found"
            # The log still has it.
            assert (await api.json("GET", f"/v1/jobs/{_job(made)}"))["output"]["text"] == "Hello"

    asyncio.run(scenario())


def test_open_response_is_cancelled_when_it_is_deleted() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            made = await api.json("POST", PATH, BODY)
            await api.json("DELETE", f"{PATH}/{made['id']}")
            assert status_of(api, _job(made)) is JobStatus.CANCELLED

    asyncio.run(scenario())


def test_response_that_is_not_stored_is_404() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            body = {"model": "m", "input": "hi", "store": False, "stream": True}
            reply = await api.send("POST", PATH, body)
            job_id = await api.only_job()
            api.start(job_id)
            api.publish(job_id, *ANSWER)
            last = events_in(await pieces_of(reply))[-1].json
            assert last["response"]["store"] is False
            await api.json("GET", f"{PATH}/{last['response']['id']}", status=404)

    asyncio.run(scenario())


def test_job_of_another_dialect_is_not_a_response() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job = await api.json("POST", "/v1/jobs", {"prompt": "hi"}, status=202)
            name = job["id"].removeprefix("job-")
            await api.json("GET", f"{PATH}/resp_{name}", status=404)
            await api.json("GET", f"{PATH}/{job['id']}", status=404)

    asyncio.run(scenario())


def test_previous_response_must_have_ended() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            made = await api.json("POST", PATH, BODY)
            body = BODY | {"previous_response_id": made["id"]}
            error = await api.json("POST", PATH, body, status=400)
            assert error["error"]["param"] == "previous_response_id"

    asyncio.run(scenario())


def test_items_are_listed_in_pages() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            asked = [{"role": "user", "content": str(n)} for n in range(5)]
            made = await api.json("POST", PATH, BODY | {"input": asked})
            path = f"{PATH}/{made['id']}/input_items"
            seen: list[str] = []
            after = ""
            while True:
                page = await api.json("GET", f"{path}?limit=2{after}")
                seen += [item["content"][0]["text"] for item in page["data"]]
                if not page["has_more"]:
                    break
                after = f"&after={page['last_id']}"
            assert seen == ["4", "3", "2", "1", "0"]
            assert (await api.json("GET", f"{path}?after=nothing"))["data"] == []
            one = f"{PATH}/{made['id']}"
            await api.json("GET", f"{one}?starting_after=no", status=400)

    asyncio.run(scenario())


def test_a_tool_whose_schema_costs_too_much_is_named_and_not_enforced() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            tool = {"type": "function", "name": "f\n", "parameters": _COSTLY}
            request = Request(id="req-1", method="POST", path=PATH)
            await api.send("POST", PATH, BODY | {"tools": [tool]}, request=request)
            header = warning_header(request)["x-semantic-warning"]
            assert header.startswith("tool f\\n: multipleOf")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"conversation": "c", "previous_response_id": "r"}, "previous_response_id"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"store": False}, "background"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input.0.call_id"),
        ({"input": [{"type": "message", "content": "x"}]}, "input.0.role"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input.0.call_id"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"tool_choice": {"type": "custom", "name": "f"}}, "tool_choice"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}},
            "tool_choice",
        ),
        (
            {"tools": [{"type": "function", "name": "f", "strict": True, "parameters": _COSTLY}]},
            "tools",
        ),
        ({"tools": [_grammar("peg", "x")]}, "tools.0.format.syntax"),
        ({"tools": [_grammar("regex", "")]}, "tools.0.format.definition"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [_grammar("regex", "")]}]},
            "tools.0.tools.0.format.definition",
        ),
        ({"truncation": "sometimes"}, "truncation"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        (
            {"stream": True, "background_options": {"completion_window": "2h"}},
            "background_options.completion_window",
        ),
        (
            {"background": False, "background_options": {"completion_window": "8h"}},
            "background_options.completion_window",
        ),
    ],
)
def test_unsupported_parameter_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            error = await api.json("POST", PATH, BODY | fields, status=400)
            assert error["error"]["param"] == param
            assert not list(api.log.read_all())

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "fields",
    [{"truncation": "auto", "service_tier": "flex", "of_next_year": 1}, {"input": []}],
    ids=str,
)
def test_fields_without_effect_are_accepted(fields: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            made = await api.json("POST", PATH, BODY | fields)
            assert Response.model_validate(made, strict=False).tools == []
            assert _prompt(api, made).tools == ()

    asyncio.run(scenario())


def test_reply_to_a_stream_request_is_a_stream(  # the reply is a stream, not a whole answer
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            made = await _made(api, {})
            reply = await api.send("GET", f"{PATH}/{made['id']}?stream=true")
            assert isinstance(reply, StreamReply)
            assert events_in(await pieces_of(reply))[-1].json["response"] == made

    asyncio.run(scenario())
