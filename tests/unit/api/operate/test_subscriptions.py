from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from api.access.limits import WebhookPolicy
from api.http.messages import Caller, Reply, Request
from ops.settings.api_keys import KeyScope
from tests.support.builders.api import FakeApi, fake_api

HOOK = {"url": "https://hooks.example.com/events"}


async def new_job(api: FakeApi) -> None:
    await api.json("POST", "/v1/jobs", {"prompt": "hi"}, status=202)


def test_a_reader_fetches_and_acknowledges() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            wanted = {"name": "reader", "types": ["JobSubmitted"]}
            made = await api.json("POST", "/v1/subscriptions", wanted, status=201)
            assert (made["lag"], made["types"]) == (0, ["JobSubmitted"])
            assert await api.json("POST", "/v1/subscriptions", wanted) == made
            await new_job(api)
            await new_job(api)
            target = "/v1/subscriptions/reader"
            page = await api.json("GET", f"{target}/events?limit=1")
            (event,) = page["data"]
            assert (event["type"], event["position"]) == ("JobSubmitted", page["position"])
            shown = await api.json("POST", f"{target}/ack", {"position": page["position"]})
            assert (shown["position"], shown["lag"], shown["deliveries"]) == (
                page["position"],
                1,
                0,
            )
            page = await api.json("GET", f"{target}/events")
            shown = await api.json("POST", f"{target}/nack", {"position": page["position"]})
            assert [one["reason"] for one in shown["parked"]] == ["nack"]
            assert await api.json("GET", target) == shown
            assert (await api.json("GET", "/v1/subscriptions"))["data"] == [shown]
            metrics = await api.send("GET", "/metrics")
            assert isinstance(metrics, Reply)
            assert b'subscription_lag_events{owner="",subscription="reader"} 0' in metrics.body
            await api.json("POST", f"{target}/ack", {"position": 10**6}, status=400)
            gone = await api.send("DELETE", target)
            assert isinstance(gone, Reply)
            assert gone.status == 204
            await api.json("GET", f"{target}/events", status=404)

    asyncio.run(scenario())


def test_a_reader_may_begin_at_an_earlier_event() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await new_job(api)
            wanted = {"name": "reader", "after": 0}
            assert (await api.json("POST", "/v1/subscriptions", wanted, status=201))["lag"] == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "a b"}, "name"),
        ({"name": "a", "types": ["JobDone"]}, "types.0"),
        ({"name": "a", "types": ["SubscriptionDelivered"]}, "types.0"),
        ({"name": "a", "after": -1}, "after"),
        ({"name": "a", "webhook": {"url": "ftp://x"}}, "webhook.url"),
    ],
)
def test_other_bodies_are_refused(body: dict[str, Any], field: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            refused = await api.json("POST", "/v1/subscriptions", body, status=400)
            assert refused["field"] == field

    asyncio.run(scenario())


def test_a_name_with_other_wishes_is_taken() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            await api.json("POST", "/v1/subscriptions", {"name": "reader"}, status=201)
            other = {"name": "reader", "types": ["JobFailed"]}
            refused = await api.json("POST", "/v1/subscriptions", other, status=409)
            assert refused["code"] == "subscription_taken"

    asyncio.run(scenario())


def test_each_key_has_its_own_readers() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            caller = Caller(name="ann", scope=KeyScope.OWN, is_alone=False)
            ann = replace(Request(id="req-1", method="GET", path=""), caller=caller)

            async def send(method: str, target: str, body: Any = None) -> Reply:
                reply = await api.send(method, target, body, request=ann)
                assert isinstance(reply, Reply)
                return reply

            assert (await send("POST", "/v1/subscriptions", {"name": "reader"})).status == 201
            assert (await api.json("GET", "/v1/subscriptions"))["data"] == []
            await api.json("GET", "/v1/subscriptions/reader", status=404)
            await new_job(api)
            fetched = await send("GET", "/v1/subscriptions/reader/events")
            assert json.loads(fetched.body)["data"] == []
            hook = {"name": "hook", "webhook": HOOK}
            assert (await send("POST", "/v1/subscriptions", hook)).status == 400

    asyncio.run(scenario())


def test_a_webhook_goes_where_requests_may_send_one() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            made = await api.json(
                "POST", "/v1/subscriptions", {"name": "hook", "webhook": HOOK}, status=201
            )
            assert made["webhook"] == HOOK["url"]
            api.use(webhook_policy=WebhookPolicy(from_requests=False))
            other = {"name": "other", "webhook": HOOK}
            await api.json("POST", "/v1/subscriptions", other, status=400)

    asyncio.run(scenario())
