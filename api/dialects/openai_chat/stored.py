"""Stored chat completions (``store: true``): jobs whose request has its wire form in the log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from api.app import App
from api.dialects.openai_chat.bodies import (
    COMPLETION_ID_PATTERN,
    CompletionChangeBody,
    StoredCompletion,
)
from api.dialects.openai_chat.completions import CompletionEnvelope, assemble
from api.dialects.openai_chat.parse import ChatKind, stored_form
from api.generation import AssembledAnswer, job_hex, unix_seconds
from api.http.messages import Deleted, Listing, Request, listing_of
from api.http.operation import Operation, Order, PageOfRows, body_of, choice, page_size, path, text
from domain.errors import CompletionNotFound, PayloadMissing
from domain.events.job import JobHidden, JobRelabelled
from domain.job.commit import commit
from domain.job.listing import JobFilter
from domain.job.state import Job
from domain.values import JobId, JobStatus, digest_of

#: Latest jobs among which a list finds stored completions.
SCANNED_MAX: Final = 10_000
_PAGE: Final = 500

_COMPLETION_ID: Final = path(
    "completion_id", pattern=COMPLETION_ID_PATTERN, example="chatcmpl-" + "0" * 32
)
_LIMIT: Final = page_size(default=20, most=100)
_ORDER: Final = choice("order", "newest first if desc", Order, default=Order.ASC)
_AFTER: Final = text("after", "only those behind this one, in the order of the list")
_MODEL: Final = text("model", "only those whose request names this model")
PAGE_PARAMETERS: Final = (_LIMIT, _ORDER, _AFTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """A completion: its job, and what its request asked to store."""

    job: Job
    messages: Sequence[dict[str, Any]]
    metadata: dict[str, str]


def get_chat_completion(app: App, request: Request) -> StoredCompletion:
    """Return a stored chat completion."""
    completion_id = _COMPLETION_ID.read(request)
    whole = _object(app, _find(app, completion_id))
    if whole is None:
        raise CompletionNotFound(completion_id)
    return whole


def list_chat_completions(app: App, request: Request) -> Listing[StoredCompletion]:
    """List stored chat completions, the oldest first.

    ``metadata[key]=value`` selects.
    """
    wanted = {
        name.removeprefix("metadata[").removesuffix("]"): values[-1]
        for name, values in request.query.items()
        if name.startswith("metadata[")
    }
    rows = [
        {"id": ChatKind.id_prefix + job_hex(one.job.id), "found": one}
        for one in _recent(app, request)
        if wanted.items() <= one.metadata.items()
    ]
    page = _read_page(request).of(rows[::-1])
    data = [whole for row in page["data"] if (whole := _object(app, row["found"])) is not None]
    return listing_of(data, has_more=page["has_more"])


def update_chat_completion(app: App, request: Request) -> StoredCompletion:
    """Replace the metadata of a stored chat completion."""
    wire = body_of(CompletionChangeBody, request)
    completion_id = _COMPLETION_ID.read(request)
    found = _find(app, completion_id)
    payload = stored_form(found.messages, wire.metadata or {})
    event = JobRelabelled(wire=digest_of(payload))
    payloads = {event.wire: payload}
    commit(found.job.id, event, log=app.log, ids=app.ids, payloads=payloads)
    return get_chat_completion(app, request)


def delete_chat_completion(app: App, request: Request) -> Deleted:
    """Delete a stored chat completion."""
    completion_id = _COMPLETION_ID.read(request)
    found = _find(app, completion_id)
    commit(found.job.id, JobHidden(), log=app.log, ids=app.ids)
    return {"id": completion_id, "object": "chat.completion.deleted", "deleted": True}


def list_chat_completion_messages(app: App, request: Request) -> Listing[dict[str, Any]]:
    """List the messages of the request of a stored chat completion."""
    completion_id, wanted = _COMPLETION_ID.read(request), _read_page(request)
    found = _find(app, completion_id)
    messages = []
    for number, message in enumerate(found.messages):
        content = message.get("content")
        text, parts = (None, content) if isinstance(content, list) else (content, None)
        row = {"id": f"{completion_id}-{number}", **message}
        messages.append(row | {"content": text, "content_parts": parts})
    return wanted.of(messages)


def _find(app: App, completion_id: str) -> _Stored:
    """Return a stored completion; blocks.

    Raises:
        CompletionNotFound: It does not exist, was deleted, has no answer, or was not to be stored.
    """
    job = app.views.get(JobId("job-" + completion_id.removeprefix(ChatKind.id_prefix)))
    found = None if job is None else _stored(app, job)
    if found is None:
        raise CompletionNotFound(completion_id)
    return found


def _stored(app: App, job: Job) -> _Stored | None:
    """Return the stored completion of a job, if it is one."""
    submitted = job.submitted
    if submitted.protocol != ChatKind.protocol or submitted.wire is None:
        return None
    if job.hidden or job.status is not JobStatus.COMPLETED:
        return None
    try:
        wire = json.loads(app.payloads.get(submitted.wire))
    except PayloadMissing:
        return None
    return _Stored(job=job, messages=wire["messages"], metadata=wire["metadata"])


def _object(app: App, found: _Stored) -> StoredCompletion | None:
    """Return a stored completion as its request got it; ``None`` where its texts were erased."""
    stored = app.records.read_stored(found.job)
    if stored is None:
        return None
    envelope = CompletionEnvelope(
        kind=ChatKind,
        jobs=(found.job.id,),
        model=found.job.submitted.model,
        created=unix_seconds(found.job.created_at),
    )
    made = assemble(envelope, [AssembledAnswer.from_stored(found.job, stored)])
    shown: StoredCompletion = {**made, "metadata": found.metadata}  # type: ignore[typeddict-item]  # made has the rest
    return shown


def _recent(app: App, request: Request) -> Iterator[_Stored]:
    """Yield the stored completions among the latest jobs, newest first."""
    before: JobId | None = None
    wanted = JobFilter(
        status=JobStatus.COMPLETED, model=_MODEL.read(request), owner=request.caller.sees
    )
    for _ in range(SCANNED_MAX // _PAGE):
        page = app.views.page(wanted, limit=_PAGE, before=before)
        yield from (one for job in page.jobs if (one := _stored(app, job)) is not None)
        if not page.has_more:
            return
        before = page.jobs[-1].id


def _read_page(request: Request) -> PageOfRows:
    return PageOfRows(_LIMIT.read(request), _ORDER.read(request), _AFTER.read(request))


STORED_OPERATIONS: Final = (
    Operation(
        "GET /v1/chat/completions", list_chat_completions, parameters=(*PAGE_PARAMETERS, _MODEL)
    ),
    Operation(
        "GET /v1/chat/completions/{completion_id}",
        get_chat_completion,
        parameters=(_COMPLETION_ID,),
    ),
    Operation(
        "POST /v1/chat/completions/{completion_id}",
        update_chat_completion,
        parameters=(_COMPLETION_ID,),
        body=CompletionChangeBody,
        example={"metadata": {"topic": "letters"}},
    ),
    Operation(
        "DELETE /v1/chat/completions/{completion_id}",
        delete_chat_completion,
        parameters=(_COMPLETION_ID,),
    ),
    Operation(
        "GET /v1/chat/completions/{completion_id}/messages",
        list_chat_completion_messages,
        parameters=(_COMPLETION_ID, *PAGE_PARAMETERS),
    ),
)
