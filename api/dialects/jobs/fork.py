"""``POST /v1/jobs/{job_id}/fork``: a new job that continues the answer of another one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from api.app import App
from api.dialects.jobs.bodies import JobForkBody
from api.dialects.parsing import clamp_max_tokens
from api.generation import ParsedRequest
from api.http.messages import Request
from api.submit import job_of, submit_job
from domain.chat.request import ChatRequest
from domain.chat.stored_answer import StoredAnswer
from domain.errors import InvalidRequest, JobNotFound, NotForkable
from domain.job.state import Job
from domain.job.submit import Accepted, asked_of, asking
from domain.values import SEED_MAX, JobId, digest_of


def submit_fork(app: App, job_id: JobId, wire: JobForkBody, request: Request) -> Accepted:
    """Accept a job that continues an answer after its first tokens; blocks.

    Raises:
        NotForkable: The tokens of its answer are not known.
        InvalidRequest: The answer has fewer tokens, or they are those of another model.
        PayloadMissing: The request or the answer was erased.
        LogUnavailable: No job was accepted.
        Overloaded: Too many jobs are waiting.
    """
    parent = app.views.get(job_id)
    if parent is None:
        raise JobNotFound(job_id)
    tokens = _tokens_of(app, parent)
    chat = _request_of(app, parent, wire)
    if wire.at > len(tokens):
        raise InvalidRequest(f"the answer has {len(tokens)} tokens", field="at")
    if wire.at >= chat.max_tokens:
        raise InvalidRequest(f"must be below max_tokens, {chat.max_tokens}", field="at")
    if wire.at and chat.model != parent.answered_by:
        msg = f"the tokens of {parent.answered_by} are not those of another model; fork at 0"
        raise InvalidRequest(msg, field="model")
    parsed = ParsedRequest(chat=chat, priority=parent.submitted.priority, seeded=True)
    new = job_of(app, parsed, request, protocol="jobs", waits_for_model=True)
    submitted = replace(new.submitted, parent=job_id, parent_tokens=wire.at)
    if wire.at:
        assert parent.started is not None  # noqa: S101 - an answer has an attempt
        submitted = replace(
            submitted,
            parent_output=parent.output,
            parent_fingerprint=parent.started.fingerprint,
        )
    asked = f"{asked_of(new, seeded=True)}\nfork {job_id} {wire.at}"
    new = asking(replace(new, submitted=submitted), digest_of(asked.encode()))
    accepted = submit_job(app, new, app.ids.job_id(), seeded=True)
    request.marks.accept(accepted.job_id, attached=accepted.attached)
    return accepted


def _tokens_of(app: App, parent: Job) -> tuple[int, ...]:
    if not parent.status.is_terminal:
        raise NotForkable(parent.id, "it has not ended")
    if parent.output is None:
        raise NotForkable(parent.id, "it has no answer")
    answer = StoredAnswer.from_bytes(app.payloads.get(parent.output))
    if answer.token_ids is None or answer.vectors is not None:
        raise NotForkable(parent.id, "its answer has no tokens")
    return answer.token_ids


def _request_of(app: App, parent: Job, wire: JobForkBody) -> ChatRequest:
    """Return the request of the parent with the changes of the fork."""
    chat = ChatRequest.from_bytes(app.payloads.get(parent.submitted.request))
    sampling = chat.sampling
    if wire.sampling is not None:
        seed = wire.sampling.seed
        changed: dict[str, Any] = {"seed": sampling.seed if seed is None else seed & SEED_MAX}
        sampling = replace(sampling, **wire.sampling.sampling.given(), **changed)
    return replace(
        chat,
        model=wire.model or parent.answered_by or chat.model,
        max_tokens=clamp_max_tokens(wire.max_tokens, chat.max_tokens),
        sampling=sampling,
    )
