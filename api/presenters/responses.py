"""Responses of OpenAI's Responses as the log has them; everything here blocks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from api.protocols.openai_responses.items import Item
from api.protocols.openai_responses.parse import decode_fields, input_items, requested_fields
from api.protocols.openai_responses.response_object import (
    PROTOCOL,
    RequestedFields,
    ResponseEnvelope,
    ended_response,
    find_item,
    response_object,
    unfinished_status,
)
from api.protocols.shared.answer import AssembledAnswer
from api.protocols.shared.timestamps import unix_seconds
from api.schemas.responses import RESPONSE_ID_PATTERN, ResponseObject, ResponsesBody
from api.streaming.log_backfill import JobRecords
from domain.chat.items import Failed, Finished
from domain.errors import (
    InvalidRequest,
    JobNotFound,
    PayloadMissing,
    PreviousResponseNotFound,
    ResponseNotFound,
)
from domain.job.state import Job
from domain.job.view import JobView
from domain.usecases.jobs.commit import load_job
from domain.values import JobId, JobStatus, StopReason

#: Responses that one conversation may be made of; each is read from the log at every turn.
CHAIN_MAX: Final = 1000

_RESPONSE_ID: Final = re.compile(RESPONSE_ID_PATTERN)
_ITEM_ID: Final = re.compile(r"(?:msg|rs|fc|ctc|tsc)_([0-9a-f]{32})_\d{1,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response in the log.

    Attributes:
        envelope: What was requested.
        job: Its state.
    """

    envelope: ResponseEnvelope
    job: Job


def job_of(response_id: str) -> JobId:
    """Return the job that a response is made by.

    Raises:
        ResponseNotFound: The id is none of ours.
    """
    if not _RESPONSE_ID.match(response_id):
        raise ResponseNotFound(response_id)
    return JobId("job-" + response_id.removeprefix("resp_"))


def load_envelope(job_id: JobId, records: JobRecords) -> ResponseEnvelope:
    """Return what was asked of a job that was accepted on this connection, stored or not.

    Raises:
        ResponseNotFound: There is no such response.
        LogUnavailable: The log cannot be read.
    """
    return _load(job_id, records).envelope


def load_response(response_id: str, records: JobRecords) -> StoredResponse:
    """Return a response that may be looked up.

    Raises:
        ResponseNotFound: There is none of that id, or it was deleted, or not to be stored.
        LogUnavailable: The log cannot be read.
    """
    found = _load(job_of(response_id), records)
    if found.job.hidden or not found.envelope.requested.is_stored:
        raise ResponseNotFound(response_id)
    return found


def present(found: StoredResponse, records: JobRecords) -> ResponseObject:
    """Return the object of a response as it is now."""
    envelope, view = found.envelope, records.views.get(found.envelope.job_id)
    if view is None or not view.status.is_terminal:
        status = JobStatus.QUEUED if view is None else view.status
        return response_object(envelope, unfinished_status(envelope, status))
    return ended_response(envelope, _answer_of(view, records))


def prepare(wire: ResponsesBody, records: JobRecords) -> tuple[RequestedFields, list[Item]]:
    """Return what is kept of a request, and the items of the responses that it goes on from.

    Raises:
        InvalidRequest: An item is none, or refers to one that is not there, or the responses are
            too many, or the last of them goes on.
        PreviousResponseNotFound: One of them is not there.
        LogUnavailable: The log cannot be read.
    """
    items = [_resolved(item, index, records) for index, item in enumerate(input_items(wire))]
    before = conversation(wire.previous_response_id, records)
    return requested_fields(wire, items, before), before


def conversation(last: str | None, records: JobRecords) -> list[Item]:
    """Return the items of a response and of all that it goes on from, oldest first.

    Raises:
        InvalidRequest: They are too many, or one of them goes on.
        PreviousResponseNotFound: One of them is not there.
        LogUnavailable: The log cannot be read.
    """
    parts: list[Sequence[Item]] = []
    previous = last
    while previous is not None:
        if len(parts) >= CHAIN_MAX:
            msg = f"the conversation has more than {CHAIN_MAX} responses"
            raise InvalidRequest(msg, field="previous_response_id")
        try:
            found = load_response(previous, records)
        except ResponseNotFound:
            raise PreviousResponseNotFound(previous) from None
        parts.append((*found.envelope.requested.items, *_output(found, records)))
        previous = found.envelope.requested.previous
    return [item for part in reversed(parts) for item in part]


def _output(found: StoredResponse, records: JobRecords) -> Sequence[Item]:
    if not found.job.status.is_terminal:
        msg = f"response {found.envelope.id} has not ended"
        raise InvalidRequest(msg, field="previous_response_id")
    return present(found, records)["output"]


def _resolved(item: Item, index: int, records: JobRecords) -> dict[str, Any]:
    """Return an item, or what it refers to."""
    if item["type"] != "item_reference":
        return dict(item)
    named = _ITEM_ID.fullmatch(item["id"])
    try:
        found = load_response(f"resp_{named[1]}", records) if named else None
    except ResponseNotFound:
        found = None
    said = find_item(_output(found, records), item["id"]) if found is not None else None
    if said is None:
        msg = f"item {item['id']} does not exist"
        raise InvalidRequest(msg, field=f"input.{index}.id")
    return dict(said)


def _load(job_id: JobId, records: JobRecords) -> StoredResponse:
    named = f"resp_{job_id.removeprefix('job-')}"
    try:
        loaded = load_job(job_id, log=records.log)
        submitted = loaded.job.submitted
        if submitted is None or submitted.protocol != PROTOCOL or submitted.wire is None:
            raise ResponseNotFound(named)
        requested = decode_fields(records.payloads.get(submitted.wire))
    except (JobNotFound, PayloadMissing):
        raise ResponseNotFound(named) from None
    envelope = ResponseEnvelope(
        job_id=job_id, created_s=unix_seconds(loaded.accepted_at), requested=requested
    )
    return StoredResponse(envelope=envelope, job=loaded.job)


def _answer_of(view: JobView, records: JobRecords) -> AssembledAnswer:
    output = records.read_stored(view)
    answer = AssembledAnswer() if output is None else AssembledAnswer.from_stored(view, output)
    answer.ending = _ending(view)
    return answer


def _ending(view: JobView) -> Finished | Failed:
    if view.error is not None or view.stop_reason is None:
        message = view.error_message or "the job failed"
        return Failed(error=view.error or "failure", message=message, retryable=False)
    return Finished(
        stop_reason=StopReason(view.stop_reason),
        usage=view.usage,
        stop_sequence=view.stop_sequence,
    )
