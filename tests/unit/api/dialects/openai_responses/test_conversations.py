"""``/v1/conversations``: agents whose turns are responses."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from openai.types.conversations import Conversation, ConversationItemList
from openai.types.responses import Response

from api.http.messages import Caller, Reply, Request
from domain.chat.request import ChatRequest, Message
from domain.values import Digest, JobId
from ops.settings.api_keys import KeyScope
from tests.support.builders.api import FakeApi, fake_api

PATH = "/v1/conversations"
RESPONSES = "/v1/responses"
_HI = {"role": "user", "content": "Hi"}


async def _asked(api: FakeApi, body: dict[str, Any]) -> tuple[Any, JobId]:
    made = await api.json("POST", RESPONSES, {"model": "m", "background": True} | body)
    return made, JobId("job-" + made["id"].removeprefix("resp_"))


async def _answered(api: FakeApi, conversation: Any, text: str, answer: str) -> Any:
    """Ask a question in a conversation, and answer it as a worker does."""
    made, job_id = await _asked(api, {"input": text, "conversation": conversation})
    api.start(job_id)
    api.complete(job_id, answer)
    return await api.json("GET", f"{RESPONSES}/{made['id']}")


def _messages(api: FakeApi, job_id: JobId) -> list[tuple[str, str]]:
    request = api.log.views.rows[job_id].submitted.request
    turns: tuple[Message, ...] = ChatRequest.from_bytes(api.log.get(Digest(request))).messages
    return [(turn.role, turn.content) for turn in turns]


def _texts(listed: Any) -> list[str]:
    return [item["content"][0]["text"] for item in listed["data"]]


def test_a_conversation_has_items_of_clients_and_of_responses_in_order() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            made = await api.json("POST", PATH, {"items": [_HI], "metadata": {"a": "b"}})
            assert Conversation.model_validate(made).metadata == {"a": "b"}
            path = f"{PATH}/{made['id']}"
            first = await _answered(api, made["id"], "One?", "1.")
            assert Response.model_validate(first).conversation is not None
            assert first["conversation"] == {"id": made["id"]}
            added = await api.json("POST", f"{path}/items", {"items": [_HI | {"content": "Note"}]})
            assert ConversationItemList.model_validate(added).first_id == added["data"][0]["id"]
            _, second = await _asked(api, {"input": "Two?", "conversation": {"id": made["id"]}})
            assert _messages(api, second) == [
                ("user", "Hi\n\nOne?"),
                ("assistant", "1."),
                ("user", "Note\n\nTwo?"),
            ]
            listed = await api.json("GET", f"{path}/items?order=asc")
            assert _texts(listed) == ["Hi", "One?", "1.", "Note"]
            ConversationItemList.model_validate(listed)
            page = await api.json("GET", f"{path}/items?limit=2")
            assert (_texts(page), page["has_more"]) == (["Note", "1."], True)
            page = await api.json("GET", f"{path}/items?limit=2&after={page['last_id']}")
            assert (_texts(page), page["has_more"]) == (["One?", "Hi"], False)
            item = listed["data"][2]
            assert await api.json("GET", f"{path}/items/{item['id']}") == item
            await api.json("GET", f"{path}/items/msg_0", status=404)

    asyncio.run(scenario())


def test_a_removed_item_is_in_no_later_prompt() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            made = await api.json("POST", PATH, {"items": [_HI]})
            path = f"{PATH}/{made['id']}"
            await _answered(api, made["id"], "One?", "1.")
            for item in (await api.json("GET", f"{path}/items"))["data"][::2]:
                assert (await api.json("DELETE", f"{path}/items/{item['id']}"))["id"] == made["id"]
            assert _texts(await api.json("GET", f"{path}/items")) == ["One?"]
            _, job_id = await _asked(api, {"input": "Two?", "conversation": made["id"]})
            assert _messages(api, job_id) == [("user", "One?\n\nTwo?")]

    asyncio.run(scenario())


def test_a_conversation_takes_one_response_at_a_time_and_no_items_beside_it() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            made = await api.json("POST", PATH, b"")
            path = f"{PATH}/{made['id']}"
            asked = {"model": "m", "background": True, "input": "One?", "conversation": made["id"]}
            key = {"idempotency-key": "k"}
            first = await api.send("POST", RESPONSES, asked, headers=key)
            assert isinstance(first, Reply)
            assert first.status == 200
            await api.json("POST", RESPONSES, asked, status=409)
            await api.json("POST", f"{path}/items", {"items": [_HI]}, status=409)
            again = await api.send("POST", RESPONSES, asked, headers=key)
            assert isinstance(again, Reply)
            assert json.loads(again.body)["id"] == json.loads(first.body)["id"]
            agent = await api.json("GET", f"/v1/agents/{made['id']}")
            assert len(agent["history"]) == 1
            # A response without an answer is no part of the conversation.
            await api.json("POST", f"{RESPONSES}/{json.loads(first.body)['id']}/cancel")
            assert (await api.json("GET", f"{path}/items"))["data"] == []

    asyncio.run(scenario())


def test_metadata_is_replaced_and_a_deleted_conversation_is_gone() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            made = await api.json("POST", PATH, {"metadata": {"a": "b"}})
            path = f"{PATH}/{made['id']}"
            changed = await api.json("POST", path, {"metadata": {"c": "d"}})
            assert changed == made | {"metadata": {"c": "d"}}
            assert await api.json("GET", path) == changed
            await _answered(api, made["id"], "One?", "1.")
            gone = {"id": made["id"], "object": "conversation.deleted", "deleted": True}
            assert await api.json("DELETE", path) == gone
            for method, target in (("GET", path), ("DELETE", path), ("GET", f"{path}/items")):
                await api.json(method, target, status=404)
            body = {"model": "m", "input": "Two?", "conversation": made["id"]}
            await api.json("POST", RESPONSES, body, status=404)

    asyncio.run(scenario())


def test_an_agent_is_no_conversation_and_a_conversation_takes_no_other_turns() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            name = "conv_" + "a" * 32
            await api.json("POST", "/v1/agents", {"id": name}, status=201)
            await api.json("GET", f"{PATH}/{name}", status=404)
            made = await api.json("POST", PATH, {})
            target = f"/v1/agents/{made['id']}/generate"
            await api.json("POST", target, {"prompt": "hi"}, status=400)
            both = {"conversation": made["id"], "previous_response_id": "resp_" + "0" * 32}
            await api.json("POST", RESPONSES, {"model": "m", "input": "x"} | both, status=400)

    asyncio.run(scenario())


def test_a_conversation_of_another_key_does_not_exist() -> None:
    def of(name: str) -> Request:
        caller = Caller(name=name, scope=KeyScope.OWN, is_alone=False)
        return Request(id="r", method="GET", path="/", caller=caller)

    async def scenario() -> None:
        async with fake_api() as api:
            made = await api.send("POST", PATH, {}, request=of("ann"))
            assert isinstance(made, Reply)
            name = json.loads(made.body)["id"]
            body = {"model": "m", "background": True, "input": "hi", "conversation": name}
            for caller, status in (("bob", 404), ("ann", 200)):
                for method, target, sent in (
                    ("GET", f"{PATH}/{name}", None),
                    ("POST", RESPONSES, body),
                ):
                    reply = await api.send(method, target, sent, request=of(caller))
                    assert isinstance(reply, Reply)
                    assert reply.status == status
            assert (await api.json("GET", f"/v1/agents/{name}"))["open_job"] is not None

    asyncio.run(scenario())
