"""What the routes of OpenAI's Responses and of its completions of texts take and give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from api.http.messages import Dialect
from api.openapi.operations import IDEMPOTENCY_KEY, KEY_REFUSED, QUEUE_FULL, Operation
from api.openapi.parameters import limit, path, query
from api.schemas.base import INT64_MAX
from api.schemas.openai_completions import CompletionBody, TextCompletion
from api.schemas.responses import (
    RESPONSE_ID_PATTERN,
    ResponseDeleted,
    ResponseItems,
    ResponseObject,
    ResponsesBody,
)

_DIALECTS: Final = (Dialect.OPENAI,)
_ID: Final = path(
    "response_id", {"type": "string", "pattern": RESPONSE_ID_PATTERN}, "resp_" + "0" * 32
)
#: By method and pattern.
RESPONSE_OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    ("POST", "/v1/completions"): Operation(
        id="createCompletion",
        summary="Answer a text in OpenAI's old format",
        dialects=_DIALECTS,
        body=CompletionBody,
        example={"model": "semantic-demo", "max_tokens": 32, "prompt": "Say hello."},
        reply=TextCompletion,
        streams=True,
        parameters=(IDEMPOTENCY_KEY,),
        extra={409: f"The job was cancelled. {KEY_REFUSED}", 429: QUEUE_FULL},
    ),
    ("POST", "/v1/responses"): Operation(
        id="createResponse",
        summary="Answer a turn in OpenAI's Responses format",
        dialects=_DIALECTS,
        body=ResponsesBody,
        example={"model": "semantic-demo", "max_output_tokens": 32, "input": "Say hello."},
        reply=ResponseObject,
        streams=True,
        parameters=(IDEMPOTENCY_KEY,),
        extra={409: f"The job was cancelled. {KEY_REFUSED}", 429: QUEUE_FULL},
    ),
    ("GET", "/v1/responses/{response_id}"): Operation(
        id="getResponse",
        summary="Show a response as it is now, or tell its events from any point",
        dialects=_DIALECTS,
        reply=ResponseObject,
        streams=True,
        missing=True,
        parameters=(
            _ID,
            query("stream", {"type": "string", "enum": ["true", "false"]}, "tell the events"),
            query(
                "starting_after",
                {"type": "integer", "minimum": 0, "maximum": INT64_MAX - 1},
                "sequence number of the last event that is known",
            ),
        ),
    ),
    ("DELETE", "/v1/responses/{response_id}"): Operation(
        id="deleteResponse",
        summary="Tell nobody of a response any more; one that goes on is cancelled",
        dialects=_DIALECTS,
        reply=ResponseDeleted,
        missing=True,
        parameters=(_ID,),
    ),
    ("POST", "/v1/responses/{response_id}/cancel"): Operation(
        id="cancelResponse",
        summary="Ask for the end of a response; asking again changes nothing",
        dialects=_DIALECTS,
        reply=ResponseObject,
        missing=True,
        parameters=(_ID,),
    ),
    ("GET", "/v1/responses/{response_id}/input_items"): Operation(
        id="listInputItems",
        summary="List what a response was asked with",
        dialects=_DIALECTS,
        reply=ResponseItems,
        missing=True,
        parameters=(
            _ID,
            limit(20, 100, "most items of the page"),
            query("order", {"type": "string", "enum": ["asc", "desc"]}, "newest first if desc"),
            query("after", {"type": "string"}, "only items behind this one"),
        ),
    ),
}
