from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest

from api.access.limits import WebhookPolicy
from api.dialects.batches.objects import batch_message
from api.dialects.jobs.objects import summarise_job
from api.http.messages import Reply
from domain.values import JobId
from domain.webhook.delivery import DeliveryResult, DueHost, WebhookState
from domain.webhook.send import WebhookCollector
from tests.support.builders.api import FakeApi, fake_api
from tests.support.fakes.webhooks import InMemoryWebhookStore

URL = "https://hooks.example.com/jobs"
BODY = {"prompt": "Say hello.", "seed": 1, "temperature": 0}


def collector(api: FakeApi, *, urls: tuple[str, ...] = ()) -> WebhookCollector:
    ports = api.app
    return WebhookCollector(
        log=ports.log,
        store=ports.webhook_store,
        ids=ports.ids,
        clock=ports.clock,
        describe_job=partial(summarise_job, api.app),
        describe_batch=batch_message,
        urls=urls,
    )


async def submit(api: FakeApi, url: str | None = URL, *, status: int = 202, **more: Any) -> Any:
    hook = {} if url is None else {"webhook": {"url": url}}
    return await api.json("POST", "/v1/jobs", BODY | hook | more, status=status)


def test_the_receiver_is_in_the_log_and_gets_a_message_at_the_end() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            job = await submit(api)
            assert api.log.read_all()[0].data["webhook"] == URL
            api.start(JobId(job["id"]))
            api.complete(JobId(job["id"]), "Hello.")
            collector(api).collect(after=0)
            (row,) = (await api.json("GET", f"/v1/jobs/{job['id']}"))["webhooks"]
            assert (row["subject"], row["type"], row["url"]) == (job["id"], "job.completed", URL)
            webhook = api.app.webhook_store.of_subject(job["id"], limit=1)[0]
            message = json.loads(webhook.body)
            assert message["data"]["status"] == "completed"
            assert message["data"]["links"]["self"] == f"/v1/jobs/{job['id']}"
            # The answer is fetched, not sent: it may be long, and it may be erased.
            assert "output" not in message["data"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1/", "http://[::1]/x", "ftp://example.com/", "https://a@b.example/"],
)
def test_a_forbidden_receiver_is_refused_at_once(url: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            problem = await submit(api, url, status=400)
            assert problem["code"] == "invalid_request"
            assert problem["field"] == "webhook.url"
            assert api.event_types() == []

    asyncio.run(scenario())


def test_the_operator_can_allow_a_host_or_disable_webhooks() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            store = InMemoryWebhookStore()
            api.use(webhook_store=store, webhook_policy=WebhookPolicy(allow_hosts=("127.0.0.1",)))
            await submit(api, "http://127.0.0.1:9000/")
            api.use(webhook_store=store, webhook_policy=WebhookPolicy(from_requests=False))
            problem = await submit(api, status=400)
            assert "may not name webhooks" in problem["detail"]
            await submit(api, None)

    asyncio.run(scenario())


def test_one_key_with_another_receiver_is_refused() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            key = {"idempotency-key": "k"}

            async def post(url: str | None) -> Reply:
                hook = {} if url is None else {"webhook": {"url": url}}
                reply = await api.send("POST", "/v1/jobs", BODY | hook, headers=key)
                assert isinstance(reply, Reply)
                return reply

            first = await post(URL)
            again = await post(URL)
            assert json.loads(first.body)["id"] == json.loads(again.body)["id"]
            assert (await post(None)).status == 409
            assert (await post("https://other.example.com/")).status == 409

    asyncio.run(scenario())


def test_webhooks_are_listed_page_by_page_and_delivered_again() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            for _ in range(3):
                job = JobId((await submit(api))["id"])
                api.start(job)
                api.complete(job, "Hello.")
            collector(api).collect(after=0)
            page = await api.json("GET", "/v1/webhooks?limit=2")
            assert [row["state"] for row in page["data"]] == ["pending", "pending"]
            assert page["has_more"]
            rest = await api.json("GET", f"/v1/webhooks?before={page['next_before']}")
            assert (len(rest["data"]), rest["has_more"], rest["next_before"]) == (1, False, None)
            store = api.app.webhook_store
            (taken,) = store.claim(DueHost("hooks.example.com:443"), now="9", until="9", limit=1)
            store.settle(
                taken.id,
                attempt=1,
                state=WebhookState.FAILED,
                answer=DeliveryResult(status=410, error="HTTP 410"),
                at="9",
                next_at=None,
            )
            failed = await api.json("GET", "/v1/webhooks?state=failed")
            assert [(row["id"], row["status"]) for row in failed["data"]] == [(taken.id, 410)]
            shown = await api.json("POST", f"/v1/webhooks/{taken.id}/retry", status=202)
            assert (shown["state"], shown["attempts"]) == ("pending", 0)
            assert api.event_types()[-1] == "WebhookRetried"
            missing = f"/v1/webhooks/webhook-{0:032x}/retry"
            assert (await api.json("POST", missing, status=404))["code"] == "webhook_not_found"
            await api.json("GET", "/v1/webhooks?before=other", status=400)

    asyncio.run(scenario())


def test_batches_have_receivers_too() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            params = {
                "model": "demo",
                "max_tokens": 4,
                "messages": [{"role": "user", "content": "a"}],
            }
            body = {"requests": [{"custom_id": "one", "params": params}]}
            hooked = body | {"webhook": {"url": URL}}
            created = await api.json("POST", "/v1/messages/batches", hooked)
            assert api.log.read_all()[0].data["webhook"] == URL
            inside = body | {"webhook": {"url": "http://[::1]/"}}
            await api.json("POST", "/v1/messages/batches", inside, status=400)
            await api.json("POST", f"/v1/messages/batches/{created['id']}/cancel")

    asyncio.run(scenario())
