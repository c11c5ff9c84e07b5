"""What one key fills leaves room for other keys, on each route with a limit in common."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from api.access.limits import BatchLimits
from api.http.messages import Caller, Reply, Request
from ops.settings.api_keys import KeyScope
from tests.support.builders.api import FakeApi, fake_api
from tests.support.builders.generation_requests import BODY

JOB = {"prompt": "Say hello.", "max_tokens": 4}
ONE_LINE = {"requests": [{"custom_id": "a", "params": BODY}]}


async def send(api: FakeApi, name: str, path: str, body: Mapping[str, Any]) -> Reply:
    caller = Caller(name=name, scope=KeyScope.OWN, is_alone=False)
    request = Request(id="req-1", method="POST", path=path, caller=caller)
    reply = await api.send("POST", path, body, request=request)
    assert isinstance(reply, Reply)
    return reply


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        ("/v1/jobs", JOB, 202, "2 of the 4 waiting jobs"),
        ("/v1/jobs", JOB | {"priority": "batch"}, 202, "2 of the 4 waiting jobs"),
        ("/v1/messages/batches", ONE_LINE, 200, "2 of the 4 open batches"),
    ],
)
def test_key_with_its_share_is_refused_and_another_is_not(
    path: str, body: Mapping[str, Any], status: int, named: str
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(
                batch_limits=BatchLimits(open_max=4),
                job_limits=replace(api.app.job_limits, queue_limit=4, batch_queue_limit=4),
            )
            assert [(await send(api, "ann", path, body)).status for _ in "12"] == [status] * 2
            refused = await send(api, "ann", path, body)
            assert (refused.status, refused.headers["x-should-retry"]) == (429, "true")
            assert named in refused.body.decode()
            assert int(refused.headers["retry-after"]) > 0
            assert (await send(api, "bob", path, body)).status == status

    asyncio.run(scenario())
