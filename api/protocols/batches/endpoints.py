"""Endpoints that the lines of an OpenAI batch can name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from api.protocols.openai_chat.parse import CHAT
from api.protocols.openai_completions.parse import TEXT
from api.protocols.openai_embeddings import parse as embeddings
from api.protocols.openai_embeddings.encode import embedding_list
from api.protocols.openai_responses import parse as responses
from api.protocols.openai_responses.response_object import (
    PROTOCOL,
    RequestedFields,
    ResponseEnvelope,
    ended_response,
)
from api.protocols.shared.answer import AssembledAnswer
from api.protocols.shared.completions import CompletionEnvelope, CompletionKind, assemble
from api.protocols.shared.parsed_request import ParsedRequest, RequestDefaults
from api.protocols.shared.timestamps import unix_seconds
from api.schemas.responses import ResponsesBody
from domain.chat.embedding import EMBEDDINGS_PROTOCOL
from domain.errors import InvalidRequest
from domain.job.state import Job

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
    if wire.previous_response_id is not None:
        msg = "a line of a batch stands by itself; send the conversation before it as input"
        raise InvalidRequest(msg, field="previous_response_id")
    return responses.parse_request(wire, _requested(wire), (), {}, defaults)


def _requested(wire: ResponsesBody) -> RequestedFields:
    items = responses.input_items(wire)
    for index, item in enumerate(items):
        if item["type"] == "item_reference":
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
