"""Lines of Anthropic and OpenAI batches: their endpoints, requests and results in the store."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final

from api.app import App
from api.dialects import embeddings
from api.dialects.anthropic import parse as anthropic
from api.dialects.anthropic.bodies import CountBody
from api.dialects.anthropic.encode import MessageForm, assemble_message
from api.dialects.anthropic.tools import AnthropicTools
from api.dialects.embeddings import embedding_list
from api.dialects.jobs.bodies import Metadata, Tags, Urgency
from api.dialects.openai_chat.completions import CompletionEnvelope, CompletionKind, assemble
from api.dialects.openai_chat.parse import ChatKind
from api.dialects.openai_completions import TextKind
from api.dialects.openai_responses import parse as responses
from api.dialects.openai_responses.bodies import ResponsesBody
from api.dialects.openai_responses.encode import PROTOCOL, ResponseEnvelope, ended_response
from api.dialects.openai_responses.requested import RequestedFields
from api.errors import error_body, status_of
from api.generation import (
    AssembledAnswer,
    ParsedRequest,
    RequestDefaults,
    ending_or_error,
    job_hex,
    unix_seconds,
)
from api.http.bodies import VendorBody, load_json, parse_body
from api.http.messages import Dialect, json_bytes
from domain.batch.jsonl import read_lines
from domain.batch.ports import BatchLine
from domain.batch.state import Batch
from domain.chat.embedding import EMBEDDINGS_PROTOCOL
from domain.chat.items import Failed
from domain.chat.stored_answer import StoredAnswer
from domain.errors import TEXT_LOST, InvalidRequest, ModelNotFound, SemanticError
from domain.job.listing import labels_of
from domain.job.state import Job
from domain.values import Digest, JobStatus


class LineLabels(VendorBody):
    """What a line may have beside its request: labels of its job, and its place in its line."""

    tags: Tags | None = None
    metadata: Metadata | None = None
    urgency: Urgency | None = None


#: Protocol of an Anthropic batch, and the endpoint of all its lines.
ANTHROPIC: Final = "anthropic"
MESSAGES_PATH: Final = "/v1/messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEndpoint:
    """An endpoint of OpenAI.

    Attributes:
        protocol: Name in the log.
        encode: Returns the reply, given the row of the job, the body of the line and the answer.
    """

    protocol: str
    parse: Callable[[bytes, RequestDefaults], ParsedRequest]
    encode: Callable[[Job, Mapping[str, Any], AssembledAnswer], Mapping[str, Any]]


def _parse_completion(
    kind: type[CompletionKind], body: bytes, defaults: RequestDefaults
) -> ParsedRequest:
    parsed = kind.parse(body, {}, defaults)
    if parsed.more:
        msg = "a line of a batch has one answer to one prompt; send as many lines"
        field = "n" if parsed.answers_each > 1 else "prompt"
        raise InvalidRequest(msg, field=field)
    return parsed


def _encode_completion(
    kind: type[CompletionKind], view: Job, body: Mapping[str, Any], answer: AssembledAnswer
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


#: Endpoints by path.
OPENAI_ENDPOINTS: Final[Mapping[str, BatchEndpoint]] = {
    **{
        f"/v1/{name}completions": BatchEndpoint(
            protocol=kind.protocol,
            parse=partial(_parse_completion, kind),
            encode=partial(_encode_completion, kind),
        )
        for name, kind in (("chat/", ChatKind), ("", TextKind))
    },
    "/v1/responses": BatchEndpoint(
        protocol=PROTOCOL, parse=_parse_response, encode=_encode_response
    ),
    "/v1/embeddings": BatchEndpoint(
        protocol=EMBEDDINGS_PROTOCOL,
        parse=lambda body, _: embeddings.parse(body),
        encode=_encode_embeddings,
    ),
}


def _is_anthropic(batch: Batch) -> bool:
    return batch.facts.protocol == ANTHROPIC


def _line(raw: bytes) -> dict[str, Any]:
    """Return the object that a line holds.

    Raises:
        InvalidRequest: The line is not a JSON object.
    """
    line = load_json(raw)
    if not isinstance(line, dict):
        raise InvalidRequest("a line must be a JSON object")
    return line


#: Longest ``custom_id``, in characters.
CUSTOM_ID_CHARS_MAX: Final = 512
#: Most faults that are reported of one file.
FAULTS_MAX: Final = 50


def _line_fault(raw: bytes, endpoint: str, seen: set[str]) -> dict[str, object] | None:
    try:
        line = _line(raw)
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
    method, url, body = (line.get(name) for name in ("method", "url", "body"))
    missing = "missing_required_parameter"
    for name, fits, code, text in (
        ("method", method == "POST", "invalid_method", "method must be POST"),
        ("url", url == endpoint, "mismatched_endpoint", f"url must be {endpoint}"),
        ("body", isinstance(body, dict), missing, "body must be an object"),
    ):
        if not fits:
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


#: The outcome of a line: ``None`` if its job was cancelled, has expired or never existed.
LineAnswer = AssembledAnswer | SemanticError | None
#: What a raw line has if its message may be shown in another form than the plain one.
_FORMED: Final = re.compile(rb"thinking|cache_control|toolset_|tool_search_tool_")


def encode_result(
    batch: Batch,
    number: int,
    raw: bytes,
    view: Job | None,
    answer: LineAnswer,
    warning: str | None = None,
) -> tuple[str, bytes]:
    """Return the part of the results that a line belongs to, and its line there.

    Args:
        view: The row of its job; ``None`` if the line never became a job.
        warning: What of the line has no effect.

    Returns:
        ``output`` or ``error``, and JSON with a newline at the end.
    """
    line: dict[str, Any] = {}
    with suppress(InvalidRequest):
        line = _line(raw)
    custom_id = line.get("custom_id")
    result: dict[str, Any] = {"custom_id": custom_id if isinstance(custom_id, str) else ""}
    request_id = f"req_{batch.id.removeprefix('batch-')}-{number}"
    if _is_anthropic(batch):
        part, members = "output", _message_result(batch, request_id, raw, view, answer)
    else:
        part, members = _openai_result(batch, request_id, line, view, answer)
    if warning is not None:
        result["warning"] = warning
    return part, json_bytes(result | members) + b"\n"


def _message_result(
    batch: Batch, request_id: str, raw: bytes, view: Job | None, answer: LineAnswer
) -> dict[str, Any]:
    if isinstance(answer, AssembledAnswer) and view is not None:
        form = MessageForm(model=view.submitted.model)
        if _FORMED.search(raw):
            wire = parse_body(CountBody, json.dumps(_line(raw)["params"]).encode())
            form = anthropic.form_of(wire, AnthropicTools(wire.tools))
        message = assemble_message(answer, form, view.id)
        return {"result": {"type": "succeeded", "message": message}}
    if isinstance(answer, SemanticError):
        error = error_body(answer, Dialect.ANTHROPIC, request_id)
        return {"result": {"type": "errored", "error": error}}
    return {"result": {"type": _unanswered(batch, view)}}


def _openai_result(
    batch: Batch, request_id: str, line: Mapping[str, Any], view: Job | None, answer: LineAnswer
) -> tuple[str, dict[str, Any]]:
    result: dict[str, Any] = {
        "id": f"batch_req_{job_hex(view.id) if view else request_id}",
        "response": None,
        "error": None,
    }
    if isinstance(answer, AssembledAnswer) and view is not None:
        encode = OPENAI_ENDPOINTS[batch.facts.endpoint].encode
        whole = encode(view, line.get("body", {}), answer)
        response = {"status_code": 200, "request_id": request_id, "body": whole}
        return "output", result | {"response": response}
    if isinstance(answer, SemanticError):
        body = error_body(answer, Dialect.OPENAI, request_id)
        response = {"status_code": status_of(answer), "request_id": request_id, "body": body}
        return "error", result | {"response": response}
    return "error", result | {"error": _UNANSWERED_ERRORS[_unanswered(batch, view)]}


def _unanswered(batch: Batch, view: Job | None) -> str:
    """Return the reason why a line has no answer: of its job, or of the batch without a job."""
    if view is not None:
        return "expired" if view.status is JobStatus.EXPIRED else "canceled"
    return "canceled" if batch.cancel_requested_at else "expired"


#: What a line has in the vendors' forms.
_LINE_FIELDS: Final = frozenset({"custom_id", "params", "method", "url", "body"})
#: Lines whose jobs are looked up together.
LINES_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class BatchLines:
    """``domain.batch.ports.LineProtocol`` for Anthropic's batches and OpenAI's."""

    app: App

    def read(self, batch: Batch, raw: bytes) -> BatchLine:
        """Return the request of a line, or the error of an invalid one.

        A line that names no model follows the loaded one.
        """
        defaults, is_anthropic = replace(self.app.defaults, model=""), _is_anthropic(batch)
        model = ""
        try:
            line = _line(raw)
            body = line.get("params" if is_anthropic else "body")
            named = body.get("model") if isinstance(body, dict) else None
            model = named if isinstance(named, str) else ""
            encoded = json.dumps(body).encode()
            beside = {name: value for name, value in line.items() if name not in _LINE_FIELDS}
            own = parse_body(LineLabels, json.dumps(beside).encode())
            if is_anthropic:
                parsed: ParsedRequest = anthropic.parse(encoded, {}, defaults)
            else:
                parsed = OPENAI_ENDPOINTS[batch.facts.endpoint].parse(encoded, defaults)
            embeds = parsed.chat.embedding is not None
            bound = self.app.registry().bind(model, embeds=embeds)
            warning = replace(parsed, unknown=(*own.unknown, *parsed.unknown)).warning()
        except (InvalidRequest, ModelNotFound) as error:
            return BatchLine(model=model, request=error)
        if parsed.stream:
            refusal = InvalidRequest("the answers of a batch cannot be streamed", field="stream")
            return BatchLine(model=model, request=refusal)
        return BatchLine(
            model=model,
            request=parsed.chat,
            wire=parsed.wire,
            warning=warning,
            bound_model=bound,
            labels=labels_of(own.tags or (), own.metadata or {}),
            urgency=own.urgency or 0,
        )

    def faults(
        self, batch: Batch, lines: Iterable[tuple[int, bytes]]
    ) -> Sequence[Mapping[str, object]]:
        """Return the faults of a file of numbered lines, at most ``FAULTS_MAX``."""
        lines_max = self.app.batch_limits.file_lines_max
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

    def measure(self, batch: Batch) -> Mapping[str, int]:
        """See ``LineProtocol.measure``."""
        if _is_anthropic(batch):
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
                warning = None if view is None else self.app.records.read_warning(view)
                yield encode_result(batch, number, raw, view, self._answer(view), warning)
        except TEXT_LOST:
            return

    def _lines(self, batch: Batch) -> Iterator[tuple[int, bytes, Job | None]]:
        views: Mapping[int, Job] = {}
        for number, raw in enumerate(read_lines(batch.facts.content, self.app.payloads.get)):
            if number % LINES_AT_ONCE == 0:
                views = self.app.batch_views.line_jobs(batch.id, first=number, limit=LINES_AT_ONCE)
            yield number, raw, views.get(number)

    def _answer(self, view: Job | None) -> LineAnswer:
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
            answer = StoredAnswer.from_bytes(self.app.payloads.get(Digest(view.output)))
        except TEXT_LOST as error:
            return error
        return AssembledAnswer.from_stored(view, answer)
