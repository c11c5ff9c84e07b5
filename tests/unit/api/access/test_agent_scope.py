"""What one agent may ask for."""

from __future__ import annotations

import asyncio
import json

from api.access.limits import AgentLimits, Rate
from api.http.messages import Reply
from domain.values import JobId
from tests.support.builders.api import FakeApi, fake_api


async def ask(api: FakeApi, agent: str | None, prompt: str = "Hello") -> Reply:
    body = {"prompt": prompt} | ({"agent_id": agent} if agent else {})
    reply = await api.send("POST", "/v1/jobs", body)
    assert isinstance(reply, Reply)
    return reply


def test_an_agent_that_asks_too_often_is_told_when_to_come_back() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(agents=AgentLimits(rate=Rate(2, whose="agent", clock_ns=lambda: 0)))
            assert [(await ask(api, "a")).status for _ in range(3)] == [202, 202, 429]
            refused = await ask(api, "a")
            assert refused.headers["retry-after"] == "30"
            assert refused.headers["x-should-retry"] == "true"
            assert json.loads(refused.body)["code"] == "rate_limited"
            assert (await ask(api, "b")).status == 202
            assert [(await ask(api, None)).status for _ in range(4)] == [202] * 4

    asyncio.run(scenario())


def test_open_jobs_of_an_agent_are_counted_until_they_end() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(agents=AgentLimits(jobs_at_once=2))
            first = JobId(json.loads((await ask(api, "a", "1")).body)["id"])
            api.start(first)
            assert (await ask(api, "a", "2")).status == 202
            refused = await ask(api, "a", "3")
            assert refused.status == 429
            assert b"2 jobs open at once" in refused.body
            assert (await ask(api, "b", "3")).status == 202
            assert (await ask(api, None, "3")).status == 202
            api.complete(first, "Hi")
            assert (await ask(api, "a", "3")).status == 202

    asyncio.run(scenario())
