"""Requests to one agent through the routes, and the answers of its worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from api.http.messages import Reply
from domain.chat.request import ChatRequest
from domain.events.cache import AgentCacheSaved
from domain.log.record import Draft
from domain.values import Digest, EventId, JobId
from tests.support.builders.api import FakeApi

WRITER = {"id": "writer", "system": "Be short.", "max_tokens": 7, "temperature": 0}
AGENT = "/v1/agents/writer"


async def make_agent(api: FakeApi, **more: Any) -> Any:
    return await api.json("POST", "/v1/agents", WRITER | more, status=201)


async def ask_turn(api: FakeApi, prompt: str, agent: str = AGENT, **more: Any) -> JobId:
    body = {"prompt": prompt} | more
    return JobId((await api.json("POST", f"{agent}/generate", body, status=202))["id"])


async def take_turn(
    api: FakeApi, prompt: str, answer: str, agent: str = AGENT, **more: Any
) -> JobId:
    job_id = await ask_turn(api, prompt, agent, **more)
    api.start(job_id)
    api.complete(job_id, answer)
    return job_id


def request_of(api: FakeApi, job_id: JobId) -> ChatRequest:
    view = api.log.views.rows[job_id]
    return ChatRequest.from_bytes(api.log.get(Digest(view.submitted.request)))


async def refused(
    api: FakeApi,
    method: str,
    target: str,
    body: Mapping[str, Any] | None = None,
    *,
    status: int,
    headers: Mapping[str, str] | None = None,
) -> Any:
    reply = await api.send(method, target, body, headers=headers)
    assert isinstance(reply, Reply)
    assert (reply.status, reply.content_type) == (status, "application/problem+json"), reply.body
    return json.loads(reply.body)


def saved_context(job: str) -> Draft:
    event = AgentCacheSaved(job=JobId(job), fingerprint="f", blocks=("a",), tail="b", tokens=300)
    return Draft(event_id=EventId(f"saved-{job}"), event=event, correlation_id="c")
