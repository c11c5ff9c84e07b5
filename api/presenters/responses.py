"""Responses of OpenAI's Responses as clients read them."""

from __future__ import annotations

from api.protocols.openai_responses.response_object import (
    ResponseEnvelope,
    ended_response,
    response_object,
    unfinished_status,
)
from api.protocols.shared.answer import AssembledAnswer
from api.schemas.responses import ResponseObject
from domain.chat.items import Failed, Finished
from domain.chat.stored_answer import StoredAnswer
from domain.job.state import Job
from domain.values import JobStatus, StopReason


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
    answer = AssembledAnswer() if stored is None else AssembledAnswer.from_stored(view, stored)
    answer.ending = _ending(view)
    return ended_response(envelope, answer)


def _ending(view: Job) -> Finished | Failed:
    if view.error is not None or view.stop_reason is None:
        message = view.error_message or "the job failed"
        return Failed(error=view.error or "failure", message=message, retryable=False)
    return Finished(
        stop_reason=StopReason(view.stop_reason),
        usage=view.usage,
        stop_sequence=view.stop_sequence,
    )
