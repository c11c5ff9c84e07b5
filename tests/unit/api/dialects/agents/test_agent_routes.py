"""Agents that keep their own history, over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from api.access.limits import AgentLimits, Rate
from api.http.messages import Reply
from domain.chat.generation import EmittedCall
from domain.chat.request import Message
from domain.events.cache import AgentCacheRestored
from domain.job.commit import load_job
from domain.log.codec import item_from_dict
from domain.log.record import Draft
from domain.values import EventId, JobId, StreamName
from tests.support.builders.agent_requests import (
    AGENT,
    WRITER,
    ask_turn,
    make_agent,
    refused,
    request_of,
    saved_context,
    take_turn,
)
from tests.support.builders.api import fake_api, pieces_of
from tests.support.builders.generation_requests import ANSWER
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.clients.sse import events_in

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def test_an_agent_is_created_returned_listed_and_deleted() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            made = await make_agent(api, tools=[TOOL])
            assert (made["id"], made["system"], made["turns"]) == ("writer", "Be short.", 0)
            assert made["tools"][0]["function"]["name"] == "look"
            assert (made["options"]["max_tokens"], made["options"]["model"]) == (7, None)
            assert await api.json("GET", AGENT) == made
            # Everything about an agent may be left out, the body too.
            nameless = await api.json("POST", "/v1/agents", b"", status=201)
            listed = await api.json("GET", "/v1/agents")
            assert [one["id"] for one in listed["data"]] == [nameless["id"], "writer"]
            page = await api.json("GET", "/v1/agents?limit=1")
            assert (page["has_more"], page["next_before"]) == (True, nameless["id"])
            page = await api.json("GET", f"/v1/agents?before={nameless['id']}")
            assert [one["id"] for one in page["data"]] == ["writer"]
            assert (await api.json("DELETE", AGENT))["deleted"] is True
            for method, target in (
                ("GET", AGENT),
                ("DELETE", AGENT),
                ("GET", f"{AGENT}/cache"),
            ):
                assert (await refused(api, method, target, status=404))["code"] == (
                    "agent_not_found"
                )
            await refused(api, "POST", f"{AGENT}/generate", {"prompt": "hi"}, status=404)
            listed = await api.json("GET", "/v1/agents")
            assert [one["id"] for one in listed["data"]] == [nameless["id"]]

    asyncio.run(scenario())


def test_sessions_of_clients_are_listed_on_request_with_what_they_did() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await api.json("POST", "/v1/agents", {"id": "writer"}, status=201)
            events = (submitted(agent="session/1"), started(), completed())
            drafts = [draft(events[0]), draft(events[1]), draft(events[2])]
            api.log.append(StreamName("job-s"), drafts, expected_version=0)
            listed = await api.json("GET", "/v1/agents")
            assert [one["id"] for one in listed["data"]] == ["writer"]
            session, writer = (await api.json("GET", "/v1/agents?seen=true"))["data"]
            assert (session["id"], session["registered"]) == ("session/1", False)
            assert session["links"] == {"cache": "/v1/agents/session%2F1/cache"}
            assert session["activity"]["prompt_tokens"] == 10
            assert session["activity"]["last_job"] == "job-s"
            assert writer["registered"]
            rest = await api.json("GET", "/v1/agents?seen=true&before=session%2F1")
            assert [one["id"] for one in rest["data"]] == ["writer"]

    asyncio.run(scenario())


def test_images_of_a_turn_stand_in_its_messages_as_they_were_sent() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgoAAAAN"}}
    texts = [{"type": "text", "text": text} for text in ("What is", "\nthis?")]
    content = [image, texts[0], image, image, texts[1]]

    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api)
            body = {"messages": [{"role": "user", "content": content}]}
            await api.json("POST", f"{AGENT}/generate", body, status=202)
            assert (await api.json("GET", f"{AGENT}/messages"))["data"][1]["content"] == content

    asyncio.run(scenario())


def test_no_text_of_an_agent_is_in_an_event() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api, system="A secret.")
            await take_turn(api, "Another secret.", "A third secret.")
            await api.json("POST", f"{AGENT}/fork", {"id": "child"}, status=201)
            assert "secret" not in json.dumps([dict(one.data) for one in api.log.read_all()])

    asyncio.run(scenario())


def test_a_repeated_creation_returns_the_agent_and_another_one_of_its_name_is_refused() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            made = await make_agent(api)
            assert await api.json("POST", "/v1/agents", WRITER, status=200) == made
            other = await refused(api, "POST", "/v1/agents", WRITER | {"system": ""}, status=409)
            assert other["code"] == "agent_exists"
            await take_turn(api, "hi", "hello")
            await api.json("DELETE", AGENT)
            again = await make_agent(api, system="Be long.")
            assert (again["turns"], again["history"]) == (0, [])

    asyncio.run(scenario())


def test_a_turn_follows_the_answers_before_it() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api, tools=[TOOL])
            first = await take_turn(api, "One?", "1.", expected_turn=0)
            second = await take_turn(api, "Two?", "2.", expected_turn=1, max_tokens=9)
            third = request_of(api, await ask_turn(api, "Three?"))
            assert third.messages == (
                Message(role="system", content="Be short."),
                Message(role="user", content="One?"),
                Message(role="assistant", content="1.", origin=first),
                Message(role="user", content="Two?"),
                Message(role="assistant", content="2.", origin=second),
                Message(role="user", content="Three?"),
            )
            # What the second turn read is how the third begins, so its blocks fit.
            assert third.messages[:4] == request_of(api, second).messages
            assert third.tools == request_of(api, second).tools
            assert (request_of(api, second).max_tokens, third.max_tokens) == (9, 7)
            assert third.sampling.temperature == 0
            shown = await api.json("GET", AGENT)
            assert (shown["turns"], shown["open_job"]) == (2, shown["history"][2]["job"])
            assert [one["counts"] for one in shown["history"]] == [True, True, False]

    asyncio.run(scenario())


def test_calls_of_an_answer_are_followed_by_their_results() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api, tools=[TOOL])
            asking = await ask_turn(api, "Look.")
            api.start(asking)
            whole = EmittedCall(id="c1", name="look", arguments='{"at": 1}', is_complete=True)
            cut = EmittedCall(id="c2", name="look", arguments='{"at": ')
            api.complete(asking, "", [whole, cut])
            result = {"role": "tool", "tool_call_id": "c1", "content": "a cat"}
            body = {"messages": [result, {"role": "system", "content": "Hurry."}]}
            job = await api.json("POST", f"{AGENT}/generate", body, status=202)
            answer, turn, remark = request_of(api, JobId(job["id"])).messages[2:]
            assert [dict(call.arguments) for call in answer.tool_calls] == [
                {"at": 1},
                {"unparsed": '{"at": '},
            ]
            assert (turn.role, turn.tool_call_id) == ("tool", "c1")
            assert (remark.role, "Hurry." in remark.content) == ("user", True)

    asyncio.run(scenario())


def test_the_conversation_of_an_agent_names_the_job_of_each_turn() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api, tools=[TOOL])
            assert (await api.json("GET", f"{AGENT}/messages"))["data"] == []
            first = await ask_turn(api, "Look.")
            api.start(first)
            call = EmittedCall(id="c1", name="look", arguments='{"at": "\ud800"}')
            api.complete(first, "", [call])
            body = {"messages": [{"role": "tool", "tool_call_id": "c1", "content": "a cat"}]}
            second = (await api.json("POST", f"{AGENT}/generate", body, status=202))["id"]
            function = {"name": "look", "arguments": '{"at": "\\ud800"}'}
            called = [{"id": "c1", "type": "function", "function": function}]
            whole = [
                {"role": "system", "content": "Be short.", "job": None},
                {"role": "user", "content": "Look.", "job": first},
                {"role": "assistant", "content": "", "job": first, "tool_calls": called},
                {"role": "tool", "content": "a cat", "job": second, "tool_call_id": "c1"},
            ]
            assert (await api.json("GET", f"{AGENT}/messages"))["data"] == whole
            api.start(JobId(second))
            api.complete(JobId(second), "A cat.")
            whole.append({"role": "assistant", "content": "A cat.", "job": second})
            assert (await api.json("GET", f"{AGENT}/messages"))["data"] == whole
            fork = {"id": "twin", "from_turn": 1}
            await api.json("POST", f"{AGENT}/fork", fork, status=201)
            inherited = await api.json("GET", "/v1/agents/twin/messages")
            assert inherited["data"] == whole[:3]
            await refused(api, "GET", "/v1/agents/absent/messages", status=404)

    asyncio.run(scenario())


def test_a_turn_while_one_is_open_and_an_unexpected_one_get_the_state_of_the_agent() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api)
            await take_turn(api, "One?", "1.")
            late = {"prompt": "One?", "expected_turn": 0}
            reply = await refused(api, "POST", f"{AGENT}/generate", late, status=409)
            assert (reply["code"], reply["turn"], reply["job"]) == ("agent_turn_conflict", 1, None)
            job_id = await ask_turn(api, "Two?", expected_turn=1)
            same = {"prompt": "Two?", "expected_turn": 1}
            reply = await refused(api, "POST", f"{AGENT}/generate", same, status=409)
            assert (reply["turn"], reply["job"]) == (1, job_id)
            assert len(api.log.views.rows) == 2  # nothing was accepted for the refused ones

    asyncio.run(scenario())


def test_a_turn_without_an_answer_does_not_count_and_is_replaced() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api)
            await take_turn(api, "One?", "1.")
            lost = await ask_turn(api, "Two?")
            await api.json("POST", f"/v1/jobs/{lost}/cancel")
            shown = await api.json("GET", AGENT)
            assert (shown["turns"], shown["history"][1]["status"]) == (1, "cancelled")
            second = await take_turn(api, "Again?", "2.", expected_turn=1)
            shown = await api.json("GET", AGENT)
            assert (shown["turns"], [one["job"] for one in shown["history"]][1]) == (2, second)
            texts = [one.content for one in request_of(api, second).messages]
            assert texts == ["Be short.", "One?", "1.", "Again?"]

    asyncio.run(scenario())


def test_a_retried_turn_counts_if_no_other_turn_replaced_it() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api)
            lost = await ask_turn(api, "One?")
            await api.json("POST", f"/v1/jobs/{lost}/cancel")
            await api.json("POST", f"/v1/jobs/{lost}/retry", status=202)
            reply = await refused(api, "POST", f"{AGENT}/generate", {"prompt": "x"}, status=409)
            assert reply["job"] == lost
            api.start(lost)
            api.complete(lost, "1.", attempt=load_job(lost, log=api.log).job.attempt)
            assert (await api.json("GET", AGENT))["turns"] == 1

    asyncio.run(scenario())


def test_requests_with_one_idempotency_key_make_one_turn() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api)
            key = {"idempotency-key": "k1"}
            body = {"prompt": "One?", "expected_turn": 0}

            async def ask(body: Mapping[str, Any]) -> Reply:
                reply = await api.send("POST", f"{AGENT}/generate", body, headers=key)
                assert isinstance(reply, Reply)
                return reply

            first = await ask(body)
            job_id = JobId(json.loads(first.body)["id"])
            assert (first.status, first.headers["x-semantic-turn"]) == (202, "1")
            again = await ask(body)
            assert json.loads(again.body)["id"] == job_id
            assert again.headers["x-semantic-attached"] == "idempotency_key"
            api.start(job_id)
            api.complete(job_id, "1.")
            await take_turn(api, "Two?", "2.")
            late = await ask(body)
            assert (late.status, late.headers["x-semantic-turn"]) == (200, "1")
            assert json.loads(late.body)["output"]["text"] == "1."
            assert (await ask({"prompt": "Other?"})).status == 409
            assert (await api.json("GET", AGENT))["turns"] == 2

    asyncio.run(scenario())


def test_a_streamed_turn_continues_without_its_reader() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api)
            reply = await api.send("POST", f"{AGENT}/generate", {"prompt": "hi", "stream": True})
            job_id = await api.only_job()
            assert (reply.headers["x-semantic-job"], reply.headers["x-semantic-turn"]) == (
                job_id,
                "1",
            )
            api.publish(job_id, *ANSWER)
            items = [item_from_dict(event.json) for event in events_in(await pieces_of(reply))]
            assert [item.body for item in items] == list(ANSWER)
            assert api.log.views.rows[job_id].status.value == "queued"

    asyncio.run(scenario())


def test_deleting_an_agent_cancels_its_open_turn() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api)
            job_id = await ask_turn(api, "One?")
            await api.json("DELETE", AGENT)
            assert api.log.views.rows[job_id].status.value == "cancelled"

    asyncio.run(scenario())


def test_an_agent_has_a_rate_of_its_own() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(agents=AgentLimits(rate=Rate(1, whose="agent")))
            await make_agent(api)
            await take_turn(api, "One?", "1.")
            reply = await refused(api, "POST", f"{AGENT}/generate", {"prompt": "x"}, status=429)
            assert "agent" in reply["detail"]
            assert (await api.json("GET", AGENT))["turns"] == 1

    asyncio.run(scenario())


def test_a_turn_that_begins_with_an_answer_is_refused() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api)
            body = {"messages": [{"role": "assistant", "content": "hi"}]}
            reply = await refused(api, "POST", f"{AGENT}/generate", body, status=400)
            assert reply["field"] == "messages"
            both = {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}
            await refused(api, "POST", f"{AGENT}/generate", both, status=400)

    asyncio.run(scenario())


def test_the_cache_state_of_an_agent_comes_from_the_log() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api)
            empty = await api.json("GET", f"{AGENT}/cache")
            assert (empty["context"], empty["last_hit"], empty["latest"]) == (None, None, None)
            job_id = await take_turn(api, "hi", "hello")
            version = len(api.log.load(StreamName("agent-writer")))
            hit = AgentCacheRestored(
                job=job_id, source="ram", tokens=2, disk_tokens=0, prompt_tokens=5, took_ms=1.0
            )
            drafts = [
                saved_context(job_id),
                Draft(event_id=EventId("h"), event=hit, correlation_id="c"),
            ]
            api.log.append(StreamName("agent-writer"), drafts, expected_version=version)
            reply = await api.json("GET", f"{AGENT}/cache")
            assert (reply["context"]["tokens"], reply["context"]["blocks"]) == (300, 2)
            assert (reply["context"]["tier"], reply["last_hit"]["source"]) == ("disk", "ram")
            assert (reply["latest"]["job"], reply["latest"]["cached_tokens"]) == (job_id, 2)

    asyncio.run(scenario())


def test_a_change_of_an_agent_keeps_its_turns_and_what_it_does_not_name() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await make_agent(api, metadata={"team": "a"})
            await take_turn(api, "One?", "1.")
            changed = await api.json("PATCH", AGENT, {"max_tokens": 9, "temperature": None})
            assert (changed["turns"], changed["system"]) == (1, "Be short.")
            assert changed["metadata"] == {"team": "a"}
            assert changed["options"]["max_tokens"] == 9
            assert changed["options"]["temperature"] is None
            job_id = await ask_turn(api, "Two?")
            assert request_of(api, job_id).max_tokens == 9
            changed = await api.json("PATCH", AGENT, {"metadata": None})
            assert (changed["metadata"], changed["options"]["max_tokens"]) == ({}, 9)
            same = len(api.event_types())
            await api.json("PATCH", AGENT, {"max_tokens": 9})
            assert len(api.event_types()) == same
            error = await refused(api, "PATCH", AGENT, {"system": "Be long."}, status=400)
            assert error["field"] == "system"
            await refused(api, "PATCH", "/v1/agents/other", {"max_tokens": 9}, status=404)

    asyncio.run(scenario())
