"""The lines of a batch: as requests, as faults of the whole, and as results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from api.errors import error_body, status_of
from api.http.json_body import load_json
from api.http.messages import Dialect
from api.protocols.anthropic import parse as anthropic
from api.protocols.anthropic.cache_control import marks_cache
from api.protocols.anthropic.stream import assemble_message
from api.protocols.batches.endpoints import LINE_KINDS
from api.protocols.shared.answer import AssembledAnswer, Block, hex_of, proper_end
from api.protocols.shared.efforts import Efforts
from api.protocols.shared.parsed import ParsedRequest, ThinkingShown
from api.schemas.anthropic import CountBody
from api.schemas.base import parse_body
from domain.batch.jsonl import read_lines
from domain.batch.ports import BatchLine, BatchViews
from domain.batch.state import Batch
from domain.chat.items import Failed, Finished
from domain.chat.logprobs import from_json
from domain.errors import InvalidRequest, PayloadMissing, SemanticError
from domain.job.view import JobView
from domain.log.ports import PayloadStore
from domain.ports import IdSource
from domain.values import Digest, JobStatus, StopReason

MESSAGES_PATH: Final = "/v1/messages"
ANTHROPIC: Final = "anthropic"
#: What tells the lines of a file apart.
CUSTOM_ID_CHARS_MAX: Final = 512
#: Faults that are told of one file; whoever has more has the first ones to mend.
FAULTS_MAX: Final = 50
#: Lines whose results are looked up together.
LINES_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLines:
    """``domain.batch.ports.LineProtocol`` for Anthropic's batches and OpenAI's.

    Attributes:
        ids: Draws seeds.
        payloads: Lines and answers.
        views: The jobs of the lines.
        max_tokens_default: Where a line sets no limit.
        efforts: What efforts of reasoning are worth.
        lines_max: Most lines of one file.
    """

    ids: IdSource
    payloads: PayloadStore
    views: BatchViews
    max_tokens_default: int
    lines_max: int
    efforts: Efforts = Efforts()

    def read(self, batch: Batch, raw: bytes) -> BatchLine:
        """See ``LineProtocol.read``."""
        model = ""
        try:
            line = _object(raw)
            body = line.get("params" if batch.facts.protocol == ANTHROPIC else "body")
            model = _text(body, "model")
            parsed = self._parse(batch, json.dumps(body).encode())
        except InvalidRequest as error:
            return BatchLine(model=model, request=error)
        if parsed.stream:
            refusal = InvalidRequest("the answers of a batch cannot be streamed", field="stream")
            return BatchLine(model=model, request=refusal)
        return BatchLine(model=model, request=parsed.chat, wire=parsed.wire)

    def faults(
        self, batch: Batch, lines: Iterable[tuple[int, bytes]]
    ) -> Sequence[Mapping[str, object]]:
        """See ``LineProtocol.faults``."""
        if not batch.facts.lines:
            return [_no_line("empty_file", "the file holds no line")]
        if batch.facts.lines > self.lines_max:
            text = f"the file holds {batch.facts.lines} lines; at most {self.lines_max} are taken"
            return [_no_line("too_many_tasks", text)]
        seen: set[str] = set()
        found = (
            fault | {"line": number}
            for number, raw in lines
            if (fault := _fault(raw, batch.facts.endpoint, seen)) is not None
        )
        return list(islice(found, FAULTS_MAX))

    def measure(self, batch: Batch) -> Mapping[str, int]:
        """See ``LineProtocol.measure``."""
        if batch.facts.protocol == ANTHROPIC:
            return {}
        sizes: dict[str, int] = {}
        for part, text in self.results(batch):
            sizes[part] = sizes.get(part, 0) + len(text)
        return sizes

    def results(self, batch: Batch) -> Iterator[tuple[str, bytes]]:
        """Yield the result of each line, in order, with the part of the answers it belongs to.

        At no time is more in memory than a chunk of the lines and ``LINES_AT_ONCE`` answers' rows.
        """
        render = _message_result if batch.facts.protocol == ANTHROPIC else _openai_result
        try:
            for number, raw, view in self._lines(batch):
                custom_id = _text(_object_or_empty(raw), "custom_id")
                answer = self._answer(view)
                part, result = render(batch, _Result(number, custom_id, raw, view, answer))
                text = json.dumps(result, ensure_ascii=False, separators=(",", ":"))
                yield part, text.encode("utf-8", "replace") + b"\n"
        except PayloadMissing:
            return  # the lines were erased, and their results with them

    def _lines(self, batch: Batch) -> Iterator[tuple[int, bytes, JobView | None]]:
        views: Mapping[int, JobView] = {}
        for number, raw in enumerate(read_lines(batch.facts.content, self.payloads.get)):
            if number % LINES_AT_ONCE == 0:
                views = self.views.line_jobs(batch.id, first=number, limit=LINES_AT_ONCE)
            yield number, raw, views.get(number)

    def _parse(self, batch: Batch, body: bytes) -> ParsedRequest:
        if batch.facts.protocol == ANTHROPIC:
            return anthropic.parse(body, {}, ids=self.ids, efforts=self.efforts)
        return LINE_KINDS[batch.facts.endpoint].parse(
            body,
            ids=self.ids,
            max_tokens_default=self.max_tokens_default,
            efforts=self.efforts,
        )

    def _answer(self, view: JobView | None) -> AssembledAnswer | SemanticError | None:
        """Return what a job said, how it failed, or ``None`` if it never said anything."""
        if view is None or view.status in {JobStatus.CANCELLED, JobStatus.EXPIRED}:
            return None
        if view.status is not JobStatus.COMPLETED or view.output is None:
            # Somebody put the job of an ended batch back into the queue, or it failed.
            message = view.error_message or "this line is being tried again"
            failed = Failed(error=view.error or "internal_error", message=message, retryable=False)
            end = proper_end(failed)
            return end if isinstance(end, SemanticError) else None
        try:
            output = json.loads(self.payloads.get(Digest(view.output)))
        except PayloadMissing as error:
            return error
        return stored_answer(view, output)


@dataclass(frozen=True, slots=True)
class _Result:
    """A line and what became of it."""

    number: int
    custom_id: str
    raw: bytes
    view: JobView | None
    answer: AssembledAnswer | SemanticError | None


def stored_answer(view: JobView, output: Mapping[str, Any]) -> AssembledAnswer:
    """Return the answer of a completed job from its stored output."""
    answer = AssembledAnswer()
    for kind in ("thinking", "text"):
        if output[kind]:
            answer.blocks.append(Block(kind=kind, text=output[kind]))
            if kind == "text":
                answer.blocks[-1].logprobs += from_json(output.get("logprobs", ()))
    for call in output.get("tool_calls", ()):
        block = Block(
            kind="tool",
            text=call["arguments"],
            id=call["id"],
            name=call["name"],
            is_whole=call.get("is_complete", True),
        )
        answer.blocks.append(block)
    answer.ending = Finished(
        stop_reason=StopReason(view.stop_reason or StopReason.END_TURN),
        usage=view.usage,
        stop_sequence=view.stop_sequence,
    )
    return answer


def _fault(raw: bytes, endpoint: str, seen: set[str]) -> dict[str, object] | None:
    try:
        line = _object(raw)
    except InvalidRequest as error:
        return _no_line("invalid_json_line", error.message)
    custom_id = line.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= CUSTOM_ID_CHARS_MAX:
        text = f"custom_id must be a text of 1 to {CUSTOM_ID_CHARS_MAX} characters"
        return _no_line("missing_required_parameter", text, "custom_id")
    if custom_id in seen:
        text = f"the custom_id {custom_id!a} stands twice in this file"
        return _no_line("duplicate_custom_id", text, "custom_id")
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
            return _no_line(code, text, name)
    return None


def _no_line(code: str, message: str, param: str | None = None) -> dict[str, object]:
    return {"code": code, "message": message, "param": param, "line": None}


def _message_result(batch: Batch, one: _Result) -> tuple[str, dict[str, Any]]:
    if isinstance(one.answer, AssembledAnswer) and one.view is not None:
        message = assemble_message(
            one.answer,
            job_id=one.view.id,
            model=one.view.model,
            thinking=_thinking_shown(one.raw),
            marks_cache=_marks_cache(one.raw),
        )
        result: dict[str, Any] = {"type": "succeeded", "message": message}
    elif isinstance(one.answer, SemanticError):
        error = error_body(one.answer, Dialect.ANTHROPIC, _request_id(batch, one.number))
        result = {"type": "errored", "error": error}
    else:
        result = {"type": _unheard(batch, one.view)}
    return "output", {"custom_id": one.custom_id, "result": result}


def _openai_result(batch: Batch, one: _Result) -> tuple[str, dict[str, Any]]:
    request_id = _request_id(batch, one.number)
    line: dict[str, Any] = {
        "id": f"batch_req_{hex_of(one.view.id) if one.view else request_id}",
        "custom_id": one.custom_id,
        "response": None,
        "error": None,
    }
    if isinstance(one.answer, AssembledAnswer) and one.view is not None:
        body = _object_or_empty(one.raw).get("body", {})
        whole = LINE_KINDS[batch.facts.endpoint].whole(one.view, body, one.answer)
        line["response"] = {"status_code": 200, "request_id": request_id, "body": whole}
        return "output", line
    if isinstance(one.answer, SemanticError):
        body = error_body(one.answer, Dialect.OPENAI, request_id)
        status = status_of(one.answer)
        line["response"] = {"status_code": status, "request_id": request_id, "body": body}
    else:
        line["error"] = _UNHEARD_ERRORS[_unheard(batch, one.view)]
    return "error", line


_UNHEARD_ERRORS: Final[Mapping[str, Mapping[str, str]]] = {
    "expired": {
        "code": "batch_expired",
        "message": "This request could not be executed before the completion window expired.",
    },
    "canceled": {"code": "batch_cancelled", "message": "The batch was cancelled."},
}


def _unheard(batch: Batch, view: JobView | None) -> str:
    """Return why a line has no answer: as its job says, else as the batch ended."""
    if view is not None:
        return "expired" if view.status is JobStatus.EXPIRED else "canceled"
    return "canceled" if batch.cancel_requested_at else "expired"


def _request_id(batch: Batch, number: int) -> str:
    return f"req_{batch.id.removeprefix('batch-')}-{number}"


def _thinking_shown(raw: bytes) -> ThinkingShown:
    params = _object_or_empty(raw).get("params")
    thinking = params.get("thinking") if isinstance(params, dict) else None
    if _text(thinking, "type") not in {"enabled", "adaptive"}:
        return "none"
    return "omitted" if _text(thinking, "display") == "omitted" else "whole"


def _marks_cache(raw: bytes) -> bool:
    if b"cache_control" not in raw:
        return False
    params = _object_or_empty(raw).get("params")
    try:
        return marks_cache(parse_body(CountBody, json.dumps(params).encode()))
    except InvalidRequest:
        return False


def _object(raw: bytes) -> dict[str, Any]:
    line = load_json(raw)
    if not isinstance(line, dict):
        msg = "a line must be a JSON object"
        raise InvalidRequest(msg)
    return line


def _object_or_empty(raw: bytes) -> dict[str, Any]:
    try:
        return _object(raw)
    except InvalidRequest:
        return {}


def _text(value: Any, name: str) -> str:  # noqa: ANN401 - any JSON value
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""
