"""Parses chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from api.protocols.openai_chat.choices import ChatChoiceRenderer, chat_choice
from api.protocols.openai_chat.messages import turns_of
from api.protocols.openai_chat.tools import strict_among, tool_choice_of, tools_of
from api.protocols.shared.completion_request import completion_request
from api.protocols.shared.completions import CompletionKind
from api.protocols.shared.parsed_request import (
    ParsedRequest,
    RequestDefaults,
    clamp_max_tokens,
    effort_of,
    sampling_of,
    stop_texts,
)
from api.protocols.shared.turns import merge_turns
from api.schemas.base import parse_body
from api.schemas.logprobs import logprobs_wanted
from api.schemas.openai_chat import ChatCompletionBody, ResponseFormat
from domain.chat.request import ChatRequest


def parse(body: bytes, headers: Mapping[str, str], defaults: RequestDefaults) -> ParsedRequest:
    """Parse a body of ``POST /v1/chat/completions``.

    Args:
        body: The body of the request.
        headers: Headers by lower-case name.
        defaults: Values for open fields.

    Raises:
        InvalidRequest: The error names the first invalid field.
    """
    wire = parse_body(ChatCompletionBody, body)
    tools = tools_of(wire.tools)
    choice = tool_choice_of(wire.tool_choice, tools, parallel=wire.parallel_tool_calls is not False)
    wanted = wire.max_completion_tokens or wire.max_tokens
    chat = ChatRequest(
        model=wire.model,
        messages=merge_turns((), turns_of(wire.messages)),
        max_tokens=clamp_max_tokens(wanted, defaults.max_tokens),
        sampling=sampling_of(wire, wire.seed, defaults.ids, min_p=wire.min_p),
        tools=tools,
        tool_choice=choice,
        answer_schema=_answer_schema(wire.response_format),
        is_strict=_is_strict(wire.response_format),
        strict_tools=strict_among(wire.tools),
        stop=stop_texts(wire.stop),
        logprobs=logprobs_wanted(wanted=bool(wire.logprobs), top=wire.top_logprobs),
        thinking=(
            wire.reasoning_effort not in (None, "none") and choice.mode not in ("any", "tool")
        ),
        effort=effort_of(wire.reasoning_effort),
        thinking_limit=defaults.efforts.limit(wire.reasoning_effort),
    )
    return completion_request(wire, [chat], headers)


def _answer_schema(wanted: ResponseFormat | None) -> Mapping[str, Any] | None:
    """Return the schema of the answer, an empty one for any object."""
    if wanted is None or wanted.type not in ("json_object", "json_schema"):
        return None
    schema = wanted.json_schema.json_schema if wanted.json_schema is not None else None
    return (schema or {}) if wanted.type == "json_schema" else {}


def _is_strict(wanted: ResponseFormat | None) -> bool:
    """Whether the request must fail if the service cannot enforce the schema."""
    return wanted is not None and wanted.json_schema is not None and bool(wanted.json_schema.strict)


#: ``POST /v1/chat/completions``.
CHAT: Final = CompletionKind(
    protocol="openai-chat",
    id_prefix="chatcmpl-",
    whole="chat.completion",
    chunk="chat.completion.chunk",
    parse=parse,
    choice_renderer=ChatChoiceRenderer,
    choice=chat_choice,
)
