"""What the lines of an OpenAI batch can ask for, and how each of their answers looks alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from api.protocols.openai_chat.parse import CHAT
from api.protocols.openai_completions.parse import TEXT
from api.protocols.openai_responses import parse as responses
from api.protocols.openai_responses.response_object import (
    PROTOCOL,
    RequestedFields,
    ResponseEnvelope,
    ended_response,
)
from api.protocols.shared.answer import AssembledAnswer
from api.protocols.shared.completions import CompletionEnvelope, CompletionKind, assemble
from api.protocols.shared.efforts import Efforts
from api.protocols.shared.parsed_request import ParsedRequest
from api.schemas.responses import ResponsesBody
from domain.errors import InvalidRequest
from domain.job.view import JobView
from domain.ports import IdSource

#: Protocol of an Anthropic batch, and the path that each of its lines could be sent to alone.
ANTHROPIC: Final = "anthropic"
MESSAGES_PATH: Final = "/v1/messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEndpoint:
    """An endpoint that a line can name.

    Attributes:
        protocol: What the log calls it.
        parse: From a body to a request; takes ``ids``, ``max_tokens_default`` and
            ``efforts``.
        whole: The answer of a job, from its row, the body of its line and what it said.
    """

    protocol: str
    parse: Callable[..., ParsedRequest]
    whole: Callable[[JobView, Mapping[str, Any], AssembledAnswer], Mapping[str, Any]]


def unix_seconds(instant: str) -> int:
    """Return an instant of the log in Unix seconds."""
    return int(datetime.fromisoformat(instant).timestamp())


def _parse_completion(
    kind: CompletionKind, body: bytes, *, ids: IdSource, max_tokens_default: int, efforts: Efforts
) -> ParsedRequest:
    most = kind.max_tokens_default or max_tokens_default
    parsed = kind.parse(body, {}, ids=ids, max_tokens_default=most, efforts=efforts)
    if parsed.more:
        msg = "a line of a batch has one answer to one prompt; send as many lines"
        field = "n" if parsed.answers_each > 1 else "prompt"
        raise InvalidRequest(msg, field=field)
    return parsed


def _completion(
    kind: CompletionKind, view: JobView, body: Mapping[str, Any], answer: AssembledAnswer
) -> Mapping[str, Any]:
    del body
    created = unix_seconds(view.finished_at or view.created_at)
    envelope = CompletionEnvelope(kind=kind, jobs=(view.id,), model=view.model, created=created)
    return assemble(envelope, [answer])


def _parse_response(
    body: bytes, *, ids: IdSource, max_tokens_default: int, efforts: Efforts
) -> ParsedRequest:
    wire = responses.read_body(body)
    if wire.background:
        msg = "the answers of a batch are all made in the background"
        raise InvalidRequest(msg, field="background")
    if wire.previous_response_id is not None:
        msg = "a line of a batch stands by itself; send the conversation before it as input"
        raise InvalidRequest(msg, field="previous_response_id")
    return responses.parse_request(
        wire,
        _requested(wire),
        (),
        {},
        ids=ids,
        max_tokens_default=max_tokens_default,
        efforts=efforts,
    )


def _requested(wire: ResponsesBody) -> RequestedFields:
    items = responses.input_items(wire)
    for index, item in enumerate(items):
        if item["type"] == "item_reference":
            msg = "a line of a batch stands by itself; send the item"
            raise InvalidRequest(msg, field=f"input.{index}")
    return responses.requested_fields(wire, items)


def _response(view: JobView, body: Mapping[str, Any], answer: AssembledAnswer) -> Mapping[str, Any]:
    requested = _requested(responses.read_body(json.dumps(body).encode()))
    return ended_response(
        ResponseEnvelope(
            job_id=view.id, created_s=unix_seconds(view.created_at), requested=requested
        ),
        answer,
    )


def _completion_kind(kind: CompletionKind) -> BatchEndpoint:
    return BatchEndpoint(
        protocol=kind.protocol,
        parse=partial(_parse_completion, kind),
        whole=partial(_completion, kind),
    )


#: By the path that a line would be sent to alone.
OPENAI_ENDPOINTS: Final[Mapping[str, BatchEndpoint]] = {
    "/v1/chat/completions": _completion_kind(CHAT),
    "/v1/completions": _completion_kind(TEXT),
    "/v1/responses": BatchEndpoint(protocol=PROTOCOL, parse=_parse_response, whole=_response),
}
