"""Results of the lines of a batch, in the shape of the batch's protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from api.errors import error_body, status_of
from api.http.messages import Dialect
from api.http.replies import json_bytes
from api.protocols.anthropic.cache_control import has_cache_control
from api.protocols.anthropic.stream import assemble_message
from api.protocols.batches.endpoints import ANTHROPIC, OPENAI_ENDPOINTS
from api.protocols.batches.line_json import object_or_empty, text_member
from api.protocols.shared.answer import AssembledAnswer
from api.protocols.shared.answer_ids import job_hex
from api.protocols.shared.parsed_request import ThinkingShown
from api.schemas.anthropic import CountBody
from api.schemas.base import parse_body
from domain.batch.state import Batch
from domain.errors import InvalidRequest, SemanticError
from domain.job.state import Job
from domain.values import JobStatus

#: ``error`` of an OpenAI line that has no answer, by the reason.
_UNANSWERED_ERRORS: Final[Mapping[str, Mapping[str, str]]] = {
    "expired": {
        "code": "batch_expired",
        "message": "This request could not be executed before the completion window expired.",
    },
    "canceled": {"code": "batch_cancelled", "message": "The batch was cancelled."},
}


@dataclass(frozen=True, slots=True)
class LineResult:
    """A line and the outcome of its job.

    Attributes:
        number: Number of the line.
        raw: The line as the client sent it.
        view: The row of its job; ``None`` if the line never became a job.
        answer: The answer or the failure; ``None`` if the job was cancelled, has expired or never
            existed.
    """

    number: int
    raw: bytes
    view: Job | None
    answer: AssembledAnswer | SemanticError | None

    @property
    def custom_id(self) -> str:
        """The client's name of the line."""
        return text_member(object_or_empty(self.raw), "custom_id")


def encode_result(batch: Batch, result: LineResult) -> tuple[str, bytes]:
    """Return the part of the results that a line belongs to, and its line there.

    Args:
        batch: The batch of the line.
        result: The line and the outcome of its job.

    Returns:
        ``output`` or ``error``, and JSON with a newline at the end.
    """
    encode = _message_result if batch.facts.protocol == ANTHROPIC else _openai_result
    part, line = encode(batch, result)
    return part, json_bytes(line) + b"\n"


def _message_result(batch: Batch, result: LineResult) -> tuple[str, dict[str, Any]]:
    if isinstance(result.answer, AssembledAnswer) and result.view is not None:
        message = assemble_message(
            result.answer,
            job_id=result.view.id,
            model=result.view.submitted.model,
            thinking=_thinking_shown(result.raw),
            has_cache_control=_has_cache_control(result.raw),
        )
        outcome: dict[str, Any] = {"type": "succeeded", "message": message}
    elif isinstance(result.answer, SemanticError):
        error = error_body(result.answer, Dialect.ANTHROPIC, _request_id(batch, result.number))
        outcome = {"type": "errored", "error": error}
    else:
        outcome = {"type": _unanswered(batch, result.view)}
    return "output", {"custom_id": result.custom_id, "result": outcome}


def _openai_result(batch: Batch, result: LineResult) -> tuple[str, dict[str, Any]]:
    request_id = _request_id(batch, result.number)
    line: dict[str, Any] = {
        "id": f"batch_req_{job_hex(result.view.id) if result.view else request_id}",
        "custom_id": result.custom_id,
        "response": None,
        "error": None,
    }
    if isinstance(result.answer, AssembledAnswer) and result.view is not None:
        body = object_or_empty(result.raw).get("body", {})
        whole = OPENAI_ENDPOINTS[batch.facts.endpoint].encode(result.view, body, result.answer)
        line["response"] = {"status_code": 200, "request_id": request_id, "body": whole}
        return "output", line
    if isinstance(result.answer, SemanticError):
        body = error_body(result.answer, Dialect.OPENAI, request_id)
        status = status_of(result.answer)
        line["response"] = {"status_code": status, "request_id": request_id, "body": body}
    else:
        line["error"] = _UNANSWERED_ERRORS[_unanswered(batch, result.view)]
    return "error", line


def _unanswered(batch: Batch, view: Job | None) -> str:
    """Return the reason why a line has no answer: of its job, or of the batch without a job."""
    if view is not None:
        return "expired" if view.status is JobStatus.EXPIRED else "canceled"
    return "canceled" if batch.cancel_requested_at else "expired"


def _request_id(batch: Batch, number: int) -> str:
    return f"req_{batch.id.removeprefix('batch-')}-{number}"


def _thinking_shown(raw: bytes) -> ThinkingShown:
    params = object_or_empty(raw).get("params")
    thinking = params.get("thinking") if isinstance(params, dict) else None
    if text_member(thinking, "type") not in {"enabled", "adaptive"}:
        return "none"
    return "omitted" if text_member(thinking, "display") == "omitted" else "whole"


def _has_cache_control(raw: bytes) -> bool:
    if b"cache_control" not in raw:
        return False
    params = object_or_empty(raw).get("params")
    try:
        return has_cache_control(parse_body(CountBody, json.dumps(params).encode()))
    except InvalidRequest:
        return False
