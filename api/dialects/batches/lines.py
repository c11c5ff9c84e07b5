"""Lines of Anthropic and OpenAI batches: their endpoints, requests and results in the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final

from api.app import App
from api.dialects import embeddings
from api.dialects.anthropic import parse as anthropic
from api.dialects.anthropic.bodies import CountBody
from api.dialects.anthropic.encode import assemble_message
from api.dialects.anthropic.parse import has_cache_control
from api.dialects.anthropic.tools import AnthropicTools
from api.dialects.embeddings import embedding_list
from api.dialects.openai_chat.completions import CompletionEnvelope, CompletionKind, assemble
from api.dialects.openai_chat.parse import CHAT
from api.dialects.openai_completions import TEXT
from api.dialects.openai_responses import parse as responses
from api.dialects.openai_responses.bodies import ResponsesBody
from api.dialects.openai_responses.encode import PROTOCOL, ResponseEnvelope, ended_response
from api.dialects.openai_responses.requested import RequestedFields
from api.errors import error_body, status_of
from api.generation import (
    AssembledAnswer,
    ParsedRequest,
    RequestDefaults,
    ThinkingShown,
    ending_or_error,
    job_hex,
    unix_seconds,
)
from api.http.bodies import load_json, parse_body
from api.http.messages import Dialect, json_bytes
from domain.batch.jsonl import read_lines
from domain.batch.ports import BatchLine, BatchViews
from domain.batch.state import Batch
from domain.chat.embedding import EMBEDDINGS_PROTOCOL
from domain.chat.items import Failed
from domain.chat.stored_answer import StoredAnswer
from domain.errors import TEXT_LOST, InvalidRequest, ModelNotFound, SemanticError
from domain.job.state import Job
from domain.log.ports import PayloadStore
from domain.model.registry import ModelRegistry
from domain.values import Digest, JobStatus

#: Protocol of an Anthropic batch, and the endpoint of all its lines.
ANTHROPIC: Final = "anthropic"
MESSAGES_PATH: Final = "/v1/messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEndpoint:
    """An endpoint of OpenAI.

    Attributes:
        protocol: Name in the log.
        parse: Parses the body of a line.
        encode: Returns the reply, given the row of the job, the body of the line and the answer.
    """

    protocol: str
    parse: Callable[[bytes, RequestDefaults], ParsedRequest]
    encode: Callable[[Job, Mapping[str, Any], AssembledAnswer], Mapping[str, Any]]


def _parse_completion(
    kind: CompletionKind, body: bytes, defaults: RequestDefaults
) -> ParsedRequest:
    parsed = kind.parse(body, {}, defaults)
    if parsed.more:
        msg = "a line of a batch has one answer to one prompt; send as many lines"
        field = "n" if parsed.answers_each > 1 else "prompt"
        raise InvalidRequest(msg, field=field)
    return parsed


def _encode_completion(
    kind: CompletionKind, view: Job, body: Mapping[str, Any], answer: AssembledAnswer
) -> Mapping[str, Any]:
    del body
    created = unix_seconds(view.finished_at or view.created_at)
    envelope = CompletionEnvelope(
        kind=kind, jobs=(view.id,), model=view.submitted.model, created=created
    )
    return assemble(envelope, [answer])


def _parse_response(body: bytes, defaults: RequestDefaults) -> ParsedRequest:
    wire = responses.read_body(body)
    if wire.background:
        msg = "background has no effect in a batch; leave it out"
        raise InvalidRequest(msg, field="background")
    for name in ("previous_response_id", "conversation"):
        if getattr(wire, name) is not None:
            msg = "a line of a batch stands by itself; send the conversation before it as input"
            raise InvalidRequest(msg, field=name)
    if wire.prompt_cache_options and wire.prompt_cache_options.comparison_response_id is not None:
        msg = "a line of a batch stands by itself and is compared with no response"
        raise InvalidRequest(msg, field="prompt_cache_options.comparison_response_id")
    if wire.context_management:
        msg = "a line of a batch is not counted before it runs, so it is not compacted"
        raise InvalidRequest(msg, field="context_management")
    requested = _requested(wire)
    return responses.parse_request(wire, requested, requested.items, {}, defaults)


def _requested(wire: ResponsesBody) -> RequestedFields:
    items = responses.input_items(wire)
    for index, item in enumerate(items):
        if item["type"] in ("item_reference", "compaction"):
            msg = "a line of a batch stands by itself; send the item"
            raise InvalidRequest(msg, field=f"input.{index}")
    return responses.requested_fields(wire, items)


def _encode_response(
    view: Job, body: Mapping[str, Any], answer: AssembledAnswer
) -> Mapping[str, Any]:
    requested = _requested(responses.read_body(json.dumps(body).encode()))
    return ended_response(
        ResponseEnvelope(
            job_id=view.id, created_s=unix_seconds(view.created_at), requested=requested
        ),
        answer,
    )


def _parse_embeddings(body: bytes, defaults: RequestDefaults) -> ParsedRequest:
    return embeddings.parse(body, {}, defaults)


def _encode_embeddings(
    view: Job, body: Mapping[str, Any], answer: AssembledAnswer
) -> Mapping[str, Any]:
    assert answer.vectors is not None, "a completed job of this kind has vectors"  # noqa: S101 - a fact of the log
    return embedding_list(
        answer.vectors,
        model=view.submitted.model,
        prompt_tokens=view.usage.prompt_tokens,
        encoding=body.get("encoding_format"),
    )


def _completion_endpoint(kind: CompletionKind) -> BatchEndpoint:
    return BatchEndpoint(
        protocol=kind.protocol,
        parse=partial(_parse_completion, kind),
        encode=partial(_encode_completion, kind),
    )


#: Endpoints by path.
OPENAI_ENDPOINTS: Final[Mapping[str, BatchEndpoint]] = {
    "/v1/chat/completions": _completion_endpoint(CHAT),
    "/v1/completions": _completion_endpoint(TEXT),
    "/v1/responses": BatchEndpoint(
        protocol=PROTOCOL, parse=_parse_response, encode=_encode_response
    ),
    "/v1/embeddings": BatchEndpoint(
        protocol=EMBEDDINGS_PROTOCOL, parse=_parse_embeddings, encode=_encode_embeddings
    ),
}


def line_object(raw: bytes) -> dict[str, Any]:
    """Return the object that a line holds.

    Raises:
        InvalidRequest: The line is not a JSON object.
    """
    line = load_json(raw)
    if not isinstance(line, dict):
        msg = "a line must be a JSON object"
        raise InvalidRequest(msg)
    return line


def object_or_empty(raw: bytes) -> dict[str, Any]:
    """Return the object that a line holds, an empty one if it holds none."""
    try:
        return line_object(raw)
    except InvalidRequest:
        return {}


def text_member(value: Any, name: str) -> str:  # noqa: ANN401 - any JSON value
    """Return a member that is a text, "" if there is none."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""


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
            tools=_tools(result.raw),
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
    wire = _params(raw) if b"cache_control" in raw else None
    return wire is not None and has_cache_control(wire)


def _tools(raw: bytes) -> AnthropicTools | None:
    """Return the tools of a line, if some calls are shown under other names than the model's."""
    marked = b"toolset_" in raw or b"tool_search_tool_" in raw
    wire = _params(raw) if marked else None
    return None if wire is None else AnthropicTools(wire.tools)


def _params(raw: bytes) -> CountBody | None:
    params = object_or_empty(raw).get("params")
    try:
        return parse_body(CountBody, json.dumps(params).encode())
    except InvalidRequest:
        return None


#: Lines whose jobs are looked up together.
LINES_AT_ONCE: Final = 100


def lines_of(app: App) -> BatchLines:
    """Return the lines of all batches; a line that names no model follows the loaded one."""
    return BatchLines(
        payloads=app.payloads,
        views=app.batch_views,
        defaults=replace(app.defaults, model=""),
        registry=app.registry,
        lines_max=app.batch_limits.file_lines_max,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLines:
    """``domain.batch.ports.LineProtocol`` for Anthropic's batches and OpenAI's.

    Attributes:
        payloads: Lines and answers.
        views: The jobs of the lines.
        defaults: Values for the open fields of a line.
        registry: Returns the registered models.
        lines_max: Most lines of one file.
    """

    payloads: PayloadStore
    views: BatchViews
    defaults: RequestDefaults
    registry: Callable[[], ModelRegistry]
    lines_max: int

    def read(self, batch: Batch, raw: bytes) -> BatchLine:
        """See ``LineProtocol.read``."""
        line = parse_line(batch, raw, self.defaults)
        if isinstance(line.request, SemanticError):
            return line
        try:
            embeds = line.request.embedding is not None
            bound = self.registry().bind(line.model, embeds=embeds)
            return replace(line, bound_model=bound)
        except (InvalidRequest, ModelNotFound) as error:
            return replace(line, request=error)

    def faults(
        self, batch: Batch, lines: Iterable[tuple[int, bytes]]
    ) -> Sequence[Mapping[str, object]]:
        """See ``LineProtocol.faults``."""
        return file_faults(batch, lines, lines_max=self.lines_max)

    def measure(self, batch: Batch) -> Mapping[str, int]:
        """See ``LineProtocol.measure``."""
        if batch.facts.protocol == ANTHROPIC:
            return {}
        sizes: dict[str, int] = {}
        for part, text in self.results(batch):
            sizes[part] = sizes.get(part, 0) + len(text)
        return sizes

    def results(self, batch: Batch) -> Iterator[tuple[str, bytes]]:
        """Yield the result of each line, in order, with the part of the results it belongs to.

        Memory holds a chunk of the lines and ``LINES_AT_ONCE`` rows of jobs. After the lines have
        been erased, the iterator ends early.
        """
        try:
            for number, raw, view in self._lines(batch):
                yield encode_result(batch, LineResult(number, raw, view, self._answer(view)))
        except TEXT_LOST:
            return

    def _lines(self, batch: Batch) -> Iterator[tuple[int, bytes, Job | None]]:
        views: Mapping[int, Job] = {}
        for number, raw in enumerate(read_lines(batch.facts.content, self.payloads.get)):
            if number % LINES_AT_ONCE == 0:
                views = self.views.line_jobs(batch.id, first=number, limit=LINES_AT_ONCE)
            yield number, raw, views.get(number)

    def _answer(self, view: Job | None) -> AssembledAnswer | SemanticError | None:
        """Return the answer of a job, its failure, or ``None`` if the job never ran to an end."""
        if view is None or view.status in {JobStatus.CANCELLED, JobStatus.EXPIRED}:
            return None
        if view.status is not JobStatus.COMPLETED or view.output is None:
            # The job failed, or was enqueued again after the batch had ended.
            message = view.error_message or "this line is being tried again"
            failed = Failed(error=view.error or "internal_error", message=message, retryable=False)
            end = ending_or_error(failed)
            return end if isinstance(end, SemanticError) else None
        try:
            answer = StoredAnswer.from_bytes(self.payloads.get(Digest(view.output)))
        except TEXT_LOST as error:
            return error
        return AssembledAnswer.from_stored(view, answer)
