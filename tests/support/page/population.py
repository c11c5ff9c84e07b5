"""Fills a service with what every view of the page shows."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.support.clients.service_log import ended
from tests.support.polling import scaled, wait_until

WITHIN_S = 120.0
#: About 900 tokens, so that a context has several blocks.
MANUAL = " ".join(f"Rule {n}: answer in one short sentence." for n in range(80))


def populate(base_url: str, *, receiver_url: str | None = None) -> dict[str, Any]:
    """Run jobs of several agents, two batches and, with a receiver, webhooks; return their ids."""
    with httpx.Client(base_url=base_url, timeout=scaled(WITHIN_S)) as http:
        jobs = [_job(http, agent, question) for agent, question in _QUESTIONS]
        guide = _post(http, "/v1/agents", {"id": "guide", "system": MANUAL, "max_tokens": 16})
        turn = _post(http, "/v1/agents/guide/generate", {"prompt": "Say hello."})
        ended(http, turn["id"])
        fork = _post(http, "/v1/agents/guide/fork", {"id": "guide-fork"})
        night = {"name": "nightly", "cron": "0 3 * * *", "job": {"prompt": "Sum up."}}
        _post(http, "/v1/schedules", night)
        batches = [_message_batch(http), _openai_batch(http)]
        if receiver_url is not None:
            body = {"prompt": "Say hello.", "max_tokens": 4, "webhook": {"url": receiver_url}}
            ended(http, _post(http, "/v1/jobs", body)["id"])
        return {"jobs": jobs, "agents": [guide["id"], fork["id"]], "batches": batches}


_QUESTIONS = (
    ("writer", "What is a haiku?"),
    ("writer", "And a sonnet?"),
    ("reviewer", "What is a haiku?"),
    ("session-1/search", "Find every test."),
)


def wait_until_given_up(base_url: str) -> None:
    """Wait until the service has given up each webhook."""
    wait_until(lambda: webhook_states(base_url), lambda seen: seen == {"failed"}, within_s=WITHIN_S)


def webhook_states(base_url: str) -> set[str]:
    """Return the states of all webhooks."""
    listed = httpx.get(f"{base_url}/v1/webhooks", timeout=scaled(60)).json()["data"]
    return {one["state"] for one in listed}


def _job(http: httpx.Client, agent: str, question: str) -> str:
    messages = [
        {"role": "system", "content": MANUAL},
        {"role": "user", "content": question},
    ]
    body = {"messages": messages, "max_tokens": 24, "agent_id": agent}
    job: str = _post(http, "/v1/jobs", body)["id"]
    ended(http, job)
    return job


def _message_batch(http: httpx.Client) -> str:
    requests = [
        {
            "custom_id": f"line-{n}",
            "params": {
                "model": "claude-x",
                "max_tokens": 4,
                "messages": [{"role": "user", "content": f"Say {n}."}],
            },
        }
        for n in range(4)
    ]
    batch: str = _post(http, "/v1/messages/batches", {"requests": requests})["id"]
    return batch


def _openai_batch(http: httpx.Client) -> str:
    body = {
        "model": _loaded(http),
        "max_tokens": 4,
        "messages": [{"role": "user", "content": "Hello."}],
    }
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    uploaded = http.post(
        "/v1/files",
        data={"purpose": "batch"},
        files={"file": ("lines.jsonl", json.dumps(line).encode())},
    )
    uploaded.raise_for_status()
    wanted = {
        "input_file_id": uploaded.json()["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    batch: str = _post(http, "/v1/batches", wanted)["id"]
    return batch


def _loaded(http: httpx.Client) -> str:
    model: str = http.get("/v1/models").json()["data"][0]["id"]
    return model


def _post(http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = http.post(path, json=body)
    assert reply.status_code < 300, reply.text
    made: dict[str, Any] = reply.json()
    return made
