"""What one key fills leaves room for other keys, on each route with a limit in common."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from api.background.batches import BatchRules
from api.http.caller import Caller
from api.http.messages import Reply, Request
from api.submission.job_rules import JobRules
from ops.setting_groups.api_keys import KeyScope
from tests.support.builders.api import FakeApi, fake_api
from tests.support.builders.generation_requests import BODY, MESSAGES
from tests.support.polling import eventually
from tests.unit.api.routes.test_generation_limits import _counter_that_blocks

JOB = {"prompt": "Say hello.", "max_tokens": 4}
ONE_LINE = {"requests": [{"custom_id": "a", "params": BODY}]}


async def send(api: FakeApi, name: str, path: str, body: Mapping[str, Any]) -> Reply:
    caller = Caller(name=name, scope=KeyScope.OWN, is_alone=False)
    request = Request(id="req-1", method="POST", path=path, caller=caller)
    reply = await api.send("POST", path, body, request=request)
    assert isinstance(reply, Reply)
    return reply


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("/v1/jobs", JOB, 202, "2 of the 4 waiting jobs"),
        ("/v1/jobs", JOB | {"priority": "batch"}, 202, "2 of the 4 waiting jobs"),
        ("/v1/messages/batches", ONE_LINE, 200, "2 of the 4 open batches"),
    ],
)
def test_key_with_its_share_is_refused_and_another_is_not(
    path: str, body: Mapping[str, Any], status: int, told: str
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            api.use(
                batch_rules=BatchRules(open_max=4),
                rules=JobRules(queue_limit=4, batch_queue_limit=4),
            )
            assert [(await send(api, "ann", path, body)).status for _ in "12"] == [status] * 2
            refused = await send(api, "ann", path, body)
            assert (refused.status, refused.headers["x-should-retry"]) == (429, "true")
            assert told in refused.body.decode()
            assert int(refused.headers["retry-after"]) > 0
            assert (await send(api, "bob", path, body)).status == status

    asyncio.run(scenario())


def test_counts_of_one_key_leave_room_for_other_keys() -> None:
    counted = {"model": "any-name", "messages": BODY["messages"]}
    path = f"{MESSAGES}/count_tokens"

    async def scenario() -> None:
        async with fake_api() as api:
            api.use(counts=api.counts(most=4))
            with _counter_that_blocks(api) as asked:
                tasks = [asyncio.create_task(send(api, "ann", path, counted)) for _ in range(2)]
                await eventually(lambda: len(asked) == 2)
                refused = await send(api, "ann", path, counted)
                assert refused.status == 429
                message = json.loads(refused.body)["error"]["message"]
                assert message == "this key may have 2 token counts at once"
                tasks.append(asyncio.create_task(send(api, "bob", path, counted)))
            assert [one.status for one in await asyncio.gather(*tasks)] == [200] * 3

    asyncio.run(scenario())
