"""``GET /admin/clients``: lines to paste with the address of the request."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from api.http.messages import Reply
from ops.clients.set_up import LISTED
from tests.support.builders.api import FakeApi, fake_api


async def _listed(api: FakeApi, query: str = "", **headers: str) -> Any:
    reply = await api.send("GET", f"/admin/clients{query}", headers=headers)
    assert isinstance(reply, Reply)
    assert reply.status == 200, reply.body
    return json.loads(reply.body)


def test_lines_have_the_address_of_the_request_and_the_loaded_model() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.worker_is("ready")
            listed = await _listed(api, host="mac.local:9000")
            assert (listed["base_url"], listed["key_variable"]) == ("http://mac.local:9000", None)
            assert listed["model"] == "demo"
            assert [one["id"] for one in listed["data"]] == [
                "claude-code",
                "codex",
                *LISTED,
                "openai-sdk",
                "anthropic-sdk",
                "curl",
            ]
            assert all("http://mac.local:9000" in one["code"] for one in listed["data"])
            assert all("demo" in one["code"] for one in listed["data"])

    asyncio.run(scenario())


def test_a_key_stands_in_no_line() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            for header in ("x-api-key", "authorization"):
                listed = await _listed(api, **{header: "Bearer secret-key"})
                assert listed["key_variable"] == "SEMANTIC_API_KEY"
                assert "secret-key" not in json.dumps(listed)

    asyncio.run(scenario())


def test_another_address_may_be_named_but_no_text_that_a_shell_reads() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            listed = await _listed(api, "?base_url=https://example.org/semantic")
            assert "https://example.org/semantic/v1/messages" in listed["data"][-1]["code"]
            for bad in ("javascript:x", "http://a'b", "http://a/$(id)", "http://a%20b"):
                await api.json("GET", f"/admin/clients?base_url={bad}", status=400)

    asyncio.run(scenario())
