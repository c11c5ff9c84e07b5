"""Lines of a batch as requests, and the faults of a file of lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from api.protocols.anthropic import parse as anthropic
from api.protocols.batches.endpoints import ANTHROPIC, OPENAI_ENDPOINTS
from api.protocols.batches.line_json import line_object, text_member
from api.protocols.shared.parsed_request import ParsedRequest, RequestDefaults
from domain.batch.ports import BatchLine
from domain.batch.state import Batch
from domain.errors import InvalidRequest

#: Longest ``custom_id``, in characters.
CUSTOM_ID_CHARS_MAX: Final = 512
#: Most faults that are reported of one file.
FAULTS_MAX: Final = 50


def parse_line(batch: Batch, raw: bytes, defaults: RequestDefaults) -> BatchLine:
    """Return the request of a line, or the error of an invalid one.

    Args:
        batch: The batch of the line.
        raw: The line as the client sent it.
        defaults: Values for open fields.
    """
    model = ""
    try:
        line = line_object(raw)
        body = line.get("params" if batch.facts.protocol == ANTHROPIC else "body")
        model = text_member(body, "model")
        parsed = _parse_body(batch, json.dumps(body).encode(), defaults)
    except InvalidRequest as error:
        return BatchLine(model=model, request=error)
    if parsed.stream:
        refusal = InvalidRequest("the answers of a batch cannot be streamed", field="stream")
        return BatchLine(model=model, request=refusal)
    return BatchLine(model=model, request=parsed.chat, wire=parsed.wire)


def _parse_body(batch: Batch, body: bytes, defaults: RequestDefaults) -> ParsedRequest:
    if batch.facts.protocol == ANTHROPIC:
        return anthropic.parse(body, {}, defaults)
    return OPENAI_ENDPOINTS[batch.facts.endpoint].parse(body, defaults)


def file_faults(
    batch: Batch, lines: Iterable[tuple[int, bytes]], *, lines_max: int
) -> Sequence[Mapping[str, object]]:
    """Return the faults of a file of lines, at most ``FAULTS_MAX``.

    Args:
        batch: The batch of the file.
        lines: Its lines with their numbers.
        lines_max: Most lines of one file.
    """
    if not batch.facts.lines:
        return [_fault("empty_file", "the file holds no line")]
    if batch.facts.lines > lines_max:
        text = f"the file holds {batch.facts.lines} lines; at most {lines_max} are taken"
        return [_fault("too_many_tasks", text)]
    seen: set[str] = set()
    found = (
        fault | {"line": number}
        for number, raw in lines
        if (fault := _line_fault(raw, batch.facts.endpoint, seen)) is not None
    )
    return list(islice(found, FAULTS_MAX))


def _line_fault(raw: bytes, endpoint: str, seen: set[str]) -> dict[str, object] | None:
    try:
        line = line_object(raw)
    except InvalidRequest as error:
        return _fault("invalid_json_line", error.message)
    custom_id = line.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= CUSTOM_ID_CHARS_MAX:
        text = f"custom_id must be a text of 1 to {CUSTOM_ID_CHARS_MAX} characters"
        return _fault("missing_required_parameter", text, "custom_id")
    if custom_id in seen:
        text = f"the custom_id {custom_id!a} stands twice in this file"
        return _fault("duplicate_custom_id", text, "custom_id")
    seen.add(custom_id)
    checks: tuple[tuple[str, Callable[[Any], bool], str, str], ...] = (
        ("method", lambda value: value == "POST", "invalid_method", "method must be POST"),
        ("url", lambda value: value == endpoint, "mismatched_endpoint", f"url must be {endpoint}"),
        (
            "body",
            lambda value: isinstance(value, dict),
            "missing_required_parameter",
            "body must be an object",
        ),
    )
    for name, fits, code, text in checks:
        if not fits(line.get(name)):
            return _fault(code, text, name)
    return None


def _fault(code: str, message: str, param: str | None = None) -> dict[str, object]:
    return {"code": code, "message": message, "param": param, "line": None}
