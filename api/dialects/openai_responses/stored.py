"""Responses in the log: as they are now, and as the conversation before a turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from api.app import App
from api.dialects.compaction import summary_of
from api.dialects.openai_responses.bodies import (
    RESPONSE_ID_PATTERN,
    ResponseObject,
    ResponsesBody,
)
from api.dialects.openai_responses.encode import (
    PROTOCOL,
    ResponseEnvelope,
    ended_response,
    find_item,
    response_object,
    unfinished_status,
)
from api.dialects.openai_responses.parse import (
    input_items,
    listed_items,
    requested_fields,
)
from api.dialects.openai_responses.requested import Item, RequestedFields, decode_fields
from api.generation import AssembledAnswer, job_hex, unix_seconds
from api.http.messages import Caller
from domain.chat.stored_answer import StoredAnswer
from domain.errors import (
    InvalidRequest,
    JobNotFound,
    PayloadMissing,
    PreviousResponseNotFound,
    ResponseNotFound,
)
from domain.job.commit import load_job
from domain.job.state import Job
from domain.values import JobId, JobStatus


def current_response(
    envelope: ResponseEnvelope, view: Job | None, stored: StoredAnswer | None
) -> ResponseObject:
    """Return a response as it is now.

    Args:
        envelope: Its request.
        view: Its job; ``None`` where the projection does not have it yet.
        stored: The answer of the job, if it has one.
    """
    if view is None or not view.status.is_terminal:
        status = JobStatus.QUEUED if view is None else view.status
        return response_object(envelope, unfinished_status(envelope, status))
    if stored is None:
        return ended_response(envelope, AssembledAnswer(ending=view.ending))
    return ended_response(envelope, AssembledAnswer.from_stored(view, stored))


#: Responses of one conversation; each is read from the log at every turn.
CHAIN_MAX: Final = 1000

_RESPONSE_NAME: Final = re.compile(RESPONSE_ID_PATTERN)
_ITEM_ID: Final = re.compile(r"(?:msg|rs|fc|ctc|tsc)_([0-9a-f]{32})_\d{1,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response in the log.

    Attributes:
        envelope: Its request.
        job: The state of its job.
    """

    envelope: ResponseEnvelope
    job: Job


def load_envelope(app: App, job_id: JobId) -> ResponseEnvelope:
    """Return the request of a job that was accepted on this connection.

    The client may have asked not to store the response.

    Raises:
        ResponseNotFound: The job does not exist, or is not of this dialect.
    """
    return _load_job(app, job_id).envelope


def load_response(app: App, response_id: str) -> StoredResponse:
    """Return a response that a client may look up.

    Raises:
        ResponseNotFound: It does not exist, was deleted, or was not to be stored.
    """
    if not _RESPONSE_NAME.match(response_id):
        raise ResponseNotFound(response_id)
    found = _load_job(app, JobId("job-" + response_id.removeprefix("resp_")))
    if found.job.hidden or not found.envelope.requested.is_stored:
        raise ResponseNotFound(response_id)
    return found


def _present(app: App, found: StoredResponse) -> ResponseObject:
    """Return a response as it is now."""
    view = app.views.get(found.envelope.job_id)
    stored = None if view is None else app.records.read_stored(view)
    return current_response(diagnosed(app, found.envelope), view, stored)


def diagnosed(app: App, envelope: ResponseEnvelope) -> ResponseEnvelope:
    """Return the envelope with the cache diagnosis, if the request asks for one."""
    if not envelope.requested.compared:
        return envelope
    return replace(envelope, diagnosis=app.records.diagnose(envelope.job_id))


def load_object(app: App, response_id: str) -> ResponseObject:
    """Return a response as it is now by its id; raises as ``load`` does."""
    return _present(app, load_response(app, response_id))


def resolve(
    app: App, wire: ResponsesBody, caller: Caller, before: list[Item]
) -> tuple[RequestedFields, list[Item]]:
    """Return a request without references, and the items of the conversation before it.

    Args:
        before: The items of the ``conversation`` that it names.

    Raises:
        InvalidRequest: An item is not valid, or the target of a reference does not exist; or
            the conversation has too many responses, or one of them has not ended.
        PreviousResponseNotFound: A response of the conversation does not exist.
    """
    items = [resolve_item(app, item, index, caller) for index, item in enumerate(input_items(wire))]
    before = [*before, *_conversation(app, wire.previous_response_id, caller)]
    requested = requested_fields(wire, items, before)
    return replace(requested, compared=_compared(app, wire, caller)), before


def _compared(app: App, wire: ResponsesBody, caller: Caller) -> str | None:
    """Return the job of the response that the request wants its cache compared with."""
    options = wire.prompt_cache_options
    if options is None or options.comparison_response_id is None:
        return None
    try:
        return _load_visible(app, options.comparison_response_id, caller).job.id
    except ResponseNotFound:
        return ""


def all_input_items(app: App, response_id: str, caller: Caller) -> list[dict[str, Any]]:
    """Return the input items of a response, with those of the conversation before it.

    Raises:
        InvalidRequest: As ``resolve`` does for the conversation.
        PreviousResponseNotFound: As ``resolve`` does.
        ResponseNotFound: As ``load`` does.
    """
    found = load_response(app, response_id)
    requested = found.envelope.requested
    before = _conversation(app, requested.previous, caller)
    return listed_items((*before, *requested.items), job_hex(found.envelope.job_id))


def turn_items(app: App, job_id: JobId) -> list[Item]:
    """Return the items of a response and its answer, each with an id; raises as ``load`` does."""
    found = _load_job(app, job_id)
    own = listed_items(found.envelope.requested.items, job_hex(job_id))
    return [*own, *_output_of(app, found)]


def _conversation(app: App, last: str | None, caller: Caller) -> list[Item]:
    """Return the items of a response and of those that it continues, oldest first."""
    parts: list[Sequence[Item]] = []
    previous = last
    while previous is not None:
        if len(parts) >= CHAIN_MAX:
            msg = f"the conversation has more than {CHAIN_MAX} responses"
            raise InvalidRequest(msg, field="previous_response_id")
        try:
            found = _load_visible(app, previous, caller)
        except ResponseNotFound:
            raise PreviousResponseNotFound(previous) from None
        parts.append((*found.envelope.requested.items, *_output_of(app, found)))
        previous = found.envelope.requested.previous
    return [item for part in reversed(parts) for item in part]


def _output_of(app: App, found: StoredResponse) -> Sequence[Item]:
    if not found.job.status.is_terminal:
        msg = f"response {found.envelope.id} has not ended"
        raise InvalidRequest(msg, field="previous_response_id")
    return _present(app, found)["output"]


def resolve_item(app: App, item: Item, index: int, caller: Caller) -> dict[str, Any]:
    """Return an item, or the target of a reference."""
    if item["type"] != "item_reference":
        return dict(item)
    named = _ITEM_ID.fullmatch(item["id"])
    try:
        found = _load_visible(app, f"resp_{named[1]}", caller) if named else None
    except ResponseNotFound:
        found = None
    target = find_item(_output_of(app, found), item["id"]) if found is not None else None
    if target is None:
        raise InvalidRequest(f"item {item['id']} does not exist", field=f"input.{index}.id")
    return dict(target)


def _load_visible(app: App, response_id: str, caller: Caller) -> StoredResponse:
    """Return a response that the caller may refer to; raises as ``load`` does."""
    found = load_response(app, response_id)
    missing = ResponseNotFound(response_id)
    app.ownership.require(caller, found.envelope.job_id, missing)
    return found


def _load_job(app: App, job_id: JobId) -> StoredResponse:
    response_id = f"resp_{job_id.removeprefix('job-')}"
    try:
        loaded = load_job(job_id, log=app.log)
        submitted = loaded.job.submitted
        if submitted is None or submitted.protocol != PROTOCOL or submitted.wire is None:
            raise ResponseNotFound(response_id)
        requested = decode_fields(app.payloads.get(submitted.wire))
    except (JobNotFound, PayloadMissing):
        raise ResponseNotFound(response_id) from None
    job = loaded.job
    envelope = ResponseEnvelope(
        job_id=job_id,
        created_s=unix_seconds(job.created_at),
        requested=requested,
    )
    return StoredResponse(envelope=envelope, job=job)


def read_summary(app: App, caller: Caller, job_id: JobId) -> tuple[RequestedFields, str] | None:
    """Return the fields and the summary of a compaction of the caller, if there is one."""
    try:
        found = _load_job(app, job_id)
        app.ownership.require(caller, job_id, ResponseNotFound(job_id))
    except ResponseNotFound:
        return None
    stored = app.records.read_stored(found.job)
    if found.job.hidden or stored is None or not found.envelope.requested.is_compaction:
        return None
    answer = AssembledAnswer.from_stored(found.job, stored)
    return found.envelope.requested, summary_of(answer)
