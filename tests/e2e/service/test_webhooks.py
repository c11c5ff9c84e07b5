"""Against the whole service: a real receiver on loopback, and kills of the api in the middle."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import httpx

from tests.support.clients.webhook_receiver import Received, Reply, receiver
from tests.support.clients.webhook_signatures import verify
from tests.support.polling import scaled, wait_until
from tests.support.processes.planted_constants import with_constants
from tests.support.processes.service import Service

BODY = {"prompt": "Say hello.", "max_tokens": 4}


def semantic(service: Service, *words: str) -> str:
    done = service.semantic(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def submit(http: httpx.Client, url: str) -> str:
    created = http.post("/v1/jobs", json=BODY | {"webhook": {"url": url}})
    assert created.status_code == 202
    job: str = created.json()["id"]
    return job


def until_told(http: httpx.Client, job: str, url: str, state: str) -> None:
    def states() -> list[str]:
        shown = http.get(f"/v1/jobs/{job}").json()["webhooks"]
        return [webhook["state"] for webhook in shown if webhook["url"] == url]

    wait_until(states, lambda seen: seen == [state])


def test_ends_are_told_through_failures_and_a_kill(own_service: Callable[..., Service]) -> None:
    hold = threading.Event()

    def answer(one: Received) -> Reply:
        if one.path == "/held":
            return Reply(held=None if hold.is_set() else hold)
        if one.path == "/flaky":
            tries = sum(other.id == one.id for other in there.received)
            return Reply(503 if tries == 1 else 200)
        return Reply(410 if one.path == "/gone" else 204)

    with receiver(answer) as there:
        service = own_service(
            **with_constants(
                {
                    "SEMANTIC_WEBHOOKS__URLS": json.dumps([there.url("/all")]),
                    "SEMANTIC_WEBHOOKS__ALLOW_HOSTS": '["127.0.0.1"]',
                },
                {
                    "domain.webhook.delivery.TIMEOUT_S": 6.0,
                    "domain.webhook.delivery.SCHEDULE_S": [0.1] * 50,
                },
            )
        )
        secret = semantic(service, "webhooks", "ls", "--secret").strip()
        with httpx.Client(base_url=service.base_url, timeout=scaled(60)) as http:
            flaky = submit(http, there.url("/flaky"))
            gone = submit(http, there.url("/gone"))
            until_told(http, flaky, there.url("/flaky"), "delivered")
            until_told(http, gone, there.url("/gone"), "failed")
            until_told(http, gone, there.url("/all"), "delivered")
            given_up = http.get("/v1/events?type=WebhookGivenUp").json()["data"]
            assert [event["data"]["subject"] for event in given_up] == [gone]

            held = submit(http, there.url("/held"))
            wait_until(lambda: [one for one in there.received if one.path == "/held"])
            service.part("api.main").kill()
            hold.set()
            service.wait_ready()
            until_told(http, held, there.url("/held"), "delivered")

        for one in there.received:
            message = verify(secret, one.headers, one.body)
            assert message["type"] == "job.completed"
        tries = [one.id for one in there.received if one.path == "/held"]
        assert len(tries) >= 2
        assert len(set(tries)) == 1
        assert sum(one.path == "/flaky" for one in there.received) >= 2
        assert f"{there.url('/flaky')}: delivered after" in semantic(service, "jobs", "show", flaky)
        rows = json.loads(semantic(service, "webhooks", "ls", "--json", "--state", "failed"))
        (row,) = rows["data"]
        assert (row["status"], row["error"]) == (410, "HTTP 410")
        before = len(there.received)
        semantic(service, "webhooks", "retry", row["id"])
        assert there.wait_for(before + 1)[-1].id == row["id"]
    assert service.stop() == 0
