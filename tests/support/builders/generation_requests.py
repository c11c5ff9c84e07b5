"""Requests for the generating routes, and the items that a worker would emit."""

from __future__ import annotations

from api.http.messages import Request
from domain.chat.items import Body, Finished, Started, Text
from domain.values import JobId, JobStatus, StopReason, Usage
from tests.support.builders.api import FakeApi

MESSAGES = "/v1/messages"
CHAT = "/v1/chat/completions"
BODY = {"model": "any-name", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
STREAM = BODY | {"stream": True}
USAGE = Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=1)
#: The instant at which the clock of ``fake_api`` stands.
ENDED_AT = "2026-01-01T00:00:00.000000Z"
ANSWER: tuple[Body, ...] = (
    Started(prompt_tokens=5, cached_tokens=2),
    Text(text="Hello", ids=(1,)),
    Finished(stop_reason=StopReason.END_TURN, usage=USAGE, at=ENDED_AT),
)


def any_request() -> Request:
    return Request(id="req-1", method="POST", path=MESSAGES)


def status_of(api: FakeApi, job_id: JobId) -> JobStatus:
    return api.log.views.rows[job_id].status
