"""Jobs with an answer in a log in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from domain.chat.request import ChatRequest, Message
from domain.chat.stored_answer import StoredAnswer
from domain.events.event import Event
from domain.events.job import JobCompleted, JobSubmitted
from domain.values import Digest, JobId, Owner, SamplingWish, StopReason, StreamName, digest_of
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.fakes.event_log import InMemoryEventLog


def chat(*messages: Message) -> ChatRequest:
    """Return a request with these messages."""
    return ChatRequest(model="m", messages=messages, max_tokens=16, sampling=SamplingWish(seed=7))


def asked(*texts: str) -> ChatRequest:
    """Return a request whose turns are those of the user and of the assistant by turns."""
    roles: Sequence[Message] = [
        Message(role="assistant" if number % 2 else "user", content=text)
        for number, text in enumerate(texts)
    ]
    return chat(*roles)


def submission(
    request: ChatRequest, *, agent: str | None = None, owner: str | None = None
) -> JobSubmitted:
    """Return the first event of the job of a request."""
    return replace(
        submitted(agent=agent),
        request=digest_of(request.to_bytes()),
        owner=None if owner is None else Owner(owner),
    )


def completion(answer: StoredAnswer, stop_reason: StopReason = StopReason.END_TURN) -> JobCompleted:
    """Return the last event of the job with an answer."""
    return replace(completed(), output=digest_of(answer.to_bytes()), stop_reason=stop_reason)


def store(
    log: InMemoryEventLog, job: str, events: Sequence[Event], *texts: ChatRequest | StoredAnswer
) -> JobId:
    """Append the events of a new job, with the texts that they refer to."""
    payloads: dict[Digest, bytes] = {}
    for text in texts:
        content = text.to_bytes()
        payloads[digest_of(content)] = content
    drafts = [draft(event) for event in events]
    log.append(StreamName(job), drafts, expected_version=0, payloads=payloads)
    return JobId(job)


def answer_job(
    log: InMemoryEventLog,
    job: str,
    text: str,
    *,
    request: ChatRequest | None = None,
    agent: str | None = None,
    owner: str | None = None,
) -> JobId:
    """Append a job that is completed with a text."""
    request = request or asked("hi")
    answer = StoredAnswer(text=text, token_ids=(1, 2))
    accepted = submission(request, agent=agent, owner=owner)
    return store(log, job, [accepted, started(), completion(answer)], request, answer)
