"""The native dialect: bodies and forks become requests, items become events."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from api.app import App
from api.dialects.jobs.bodies import JobBody, JobForkBody, PromptBody
from api.dialects.openai_chat.parse import tools_of, turns_of
from api.dialects.parsing import agent_of, clamp_max_tokens, merge_turns, sampling_of, stop_texts
from api.generation import ParsedRequest, RequestDefaults
from api.http.bodies import parse_body
from api.http.messages import Request
from api.http.sse import Comment, Frame, Part
from api.submit import job_of, submit_job
from domain.chat.earlier_answers import require_known
from domain.chat.items import Failed, StreamItem
from domain.chat.request import ChatRequest, Message
from domain.chat.stored_answer import StoredAnswer
from domain.errors import InvalidRequest, JobNotFound, NotForkable, SemanticError
from domain.job.listing import labels_of
from domain.job.state import Job
from domain.job.submit import Accepted, asked_of, asking
from domain.log.codec import item_to_dict
from domain.values import (
    SEED_MAX,
    AfterCondition,
    AgentId,
    JobId,
    Predecessor,
    Priority,
    digest_of,
)


def messages_of(wire: PromptBody) -> list[Message]:
    """Return the messages of a body, or its prompt as a user turn."""
    if wire.messages is None:
        return [Message(role="user", content=wire.prompt or "")]
    return list(turns_of(wire.messages))


def queued_request(
    chat: ChatRequest,
    wire: PromptBody,
    *,
    agent: AgentId | None,
    stream: bool,
    names_model: bool,
) -> ParsedRequest:
    """Return a request with the priority, the deadlines and the webhook of a body.

    Args:
        names_model: Whether the body, or the profile of its agent, names a model.
    """
    return ParsedRequest(
        chat=chat,
        stream=stream,
        priority=Priority(wire.priority or Priority.INTERACTIVE),
        agent=agent,
        seeded=wire.seed is not None,
        start_after=wire.start_after,
        start_within_s=wire.start_within_s,
        finish_within_s=wire.finish_within_s,
        webhook=wire.webhook,
        labels=labels_of(wire.tags or (), wire.metadata or {}),
        names_model=names_model,
    )


def parse(body: bytes, headers: Mapping[str, str], defaults: RequestDefaults) -> ParsedRequest:
    """Parse a body of ``POST /v1/jobs``."""
    wire = parse_body(JobBody, body)
    chat = ChatRequest(
        model=wire.model or defaults.model,
        messages=merge_turns([wire.system or ""], messages_of(wire)),
        max_tokens=clamp_max_tokens(wire.max_tokens, defaults.max_tokens),
        sampling=sampling_of(wire.sampling, wire.seed, defaults.ids),
        tools=tools_of(wire.tools),
        stop=stop_texts(wire.stop),
        thinking=bool(wire.thinking),
        thinking_limit=defaults.efforts.limit(None, forbidden=wire.thinking is False),
    )
    agent = agent_of(headers, named=wire.agent_id)
    queued = queued_request(
        chat, wire, agent=agent, stream=True, names_model=wire.model is not None
    )
    limits = [one for one in (wire.start_within_s, wire.reject_after) if one is not None]
    after = _after(wire)
    if after:
        require_known(chat, [one.name for one in after])
    return replace(
        queued,
        unique=None if wire.unique is None else wire.unique.unique,
        urgency=wire.urgency or 0,
        start_within_s=min(limits, default=None),
        after=after,
        is_skippable=wire.otherwise == "skip",
    )


def _after(wire: JobBody) -> tuple[Predecessor, ...]:
    """Return the jobs that a job waits for; those of a list have their index as name."""
    if wire.after is None:
        return ()
    named = wire.after if isinstance(wire.after, dict) else dict(enumerate(wire.after))
    return tuple(
        Predecessor(name=str(name), job=one)
        if isinstance(one, str)
        else Predecessor(name=str(name), job=one.job, condition=AfterCondition(one.condition))
        for name, one in named.items()
    )


#: ``{attempt}-{n}`` as in ``id:`` lines, or ``n`` alone, which counts as of the first attempt.
CURSOR_PATTERN: Final = r"^([0-9]{1,9}-)?[0-9]{1,9}$"
_CURSOR = re.compile(CURSOR_PATTERN)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last item that a client has: its number, -1 for none, and the attempt that emitted it."""

    n: int = -1
    attempt: int = 1


#: The cursor of a client that has no item.
NO_ITEM: Final = Cursor()


class NativeEncoder:
    """Encodes items unchanged; numbered ones carry ``id: {attempt}-{n}``, transient ones none."""

    def __init__(self) -> None:
        self._attempt = 1

    def open(self) -> list[Part]:
        """Return a comment, so that the headers and a first byte are sent at once."""
        return [Comment("open")]

    def item(self, item: StreamItem) -> list[Part]:
        """Return the event of an item."""
        self._attempt = item.attempt
        data = item_to_dict(item)
        name = None if item.n is None else f"{item.attempt}-{item.n}"
        return [Frame(id=name, event=data["kind"], data=data)]

    def ping(self) -> list[Part]:
        """Return a comment."""
        return [Comment("ping")]

    def fail(self, error: SemanticError) -> list[Part]:
        """Return a last event without a number: the stream ends, the job may go on."""
        body = Failed(error=error.code, message=error.message, retryable=error.retryable)
        return self.item(StreamItem(n=None, attempt=self._attempt, body=body))


def parse_cursor(text: str | None, *, field: str) -> Cursor:
    """Return the last item that a client has.

    Args:
        field: Field of the request that the error names.

    Raises:
        InvalidRequest: The text is not a cursor.
    """
    if text is None:
        return NO_ITEM
    if not _CURSOR.fullmatch(text):
        msg = "a cursor is the id of an event of this stream, such as 1-17"
        raise InvalidRequest(msg, field=field)
    attempt, _, n = text.rpartition("-")
    return Cursor(int(n), max(1, int(attempt or 1)))


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
