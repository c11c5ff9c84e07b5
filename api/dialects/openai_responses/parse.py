"""Parses requests of OpenAI Responses, and the fields of a request that the log stores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from api.dialects.agent_hints import agent_of
from api.dialects.openai_responses.bodies import ResponsesBody, TextFormat
from api.dialects.openai_responses.items import Item, found_tools, item_turns, stored_items
from api.dialects.openai_responses.response_object import RequestedFields
from api.dialects.openai_responses.tools import (
    echoed_choice,
    echoed_tool,
    is_callable,
    tool_choice_of,
    toolbox_of,
)
from api.dialects.turns import merge_turns
from api.http.bodies import parse_body
from api.parsed_request import (
    ParsedRequest,
    RequestDefaults,
    clamp_max_tokens,
    effort_of,
    sampling_of,
)
from domain.chat.request import ChatRequest, canonical_json
from domain.errors import InvalidRequest

_ENCRYPTED: Final = "reasoning.encrypted_content"
_LOGPROBS: Final = "message.output_text.logprobs"


def read_body(body: bytes) -> ResponsesBody:
    """Return a validated body of ``POST /v1/responses``.

    Raises:
        InvalidRequest: The error names the first invalid field.
    """
    wire = parse_body(ResponsesBody, body)
    if wire.conversation is not None:
        msg = "the service has no conversations; use previous_response_id"
        raise InvalidRequest(msg, field="conversation")
    if wire.prompt is not None:
        msg = "the service has no prompt templates; send instructions and input"
        raise InvalidRequest(msg, field="prompt")
    if wire.background and wire.store is False:
        msg = "a response in the background must be stored"
        raise InvalidRequest(msg, field="background")
    return wire


def requested_fields(
    wire: ResponsesBody, items: Sequence[Item], before: Sequence[Item] = ()
) -> RequestedFields:
    """Return the fields of a request that the log stores.

    Args:
        wire: The request.
        items: Its input, with references resolved.
        before: Items of the previous responses, oldest first.

    Raises:
        InvalidRequest: The error names the first invalid field.
    """
    return RequestedFields(
        items=tuple(items),
        previous=wire.previous_response_id,
        is_stored=wire.store is not False,
        is_background=bool(wire.background),
        is_signed=_ENCRYPTED in (wire.include or ()),
        kinds=toolbox_of(wire.tools, found_tools((*before, *items))).kinds,
        echo=_echo(wire),
    )


def input_items(wire: ResponsesBody) -> list[dict[str, Any]]:
    """Return the input as stored items, with unresolved references.

    Raises:
        InvalidRequest: An item lacks a field that its type requires.
    """
    return stored_items(wire.input)


def parse_request(
    wire: ResponsesBody,
    requested: RequestedFields,
    before: Sequence[Item],
    headers: Mapping[str, str],
    defaults: RequestDefaults,
) -> ParsedRequest:
    """Parse a request.

    Args:
        wire: The request.
        requested: Its stored fields.
        before: Items of the previous responses, oldest first.
        headers: Headers by lower-case name.
        defaults: Values for open fields.

    Raises:
        InvalidRequest: The error names the first invalid field.
    """
    items = (*before, *requested.items)
    box = toolbox_of(wire.tools, found_tools(items))
    choice = tool_choice_of(wire.tool_choice, box, parallel=wire.parallel_tool_calls is not False)
    effort = wire.reasoning.effort if wire.reasoning is not None else None
    wanted = wire.text.format if wire.text is not None else None
    chat = ChatRequest(
        model=wire.model,
        messages=merge_turns([wire.instructions] if wire.instructions else (), item_turns(items)),
        max_tokens=clamp_max_tokens(wire.max_output_tokens, defaults.max_tokens),
        sampling=sampling_of(wire, wire.seed, defaults.ids, min_p=wire.min_p),
        tools=tuple(offer.function for offer in box.loaded.values()),
        deferred_tools=tuple(offer.function for offer in box.found.values()),
        narrowed=box.narrowed,
        tool_choice=choice,
        answer_schema=_schema(wanted),
        is_strict=wanted is not None and wanted.type == "json_schema" and bool(wanted.strict),
        strict_tools=box.strict,
        thinking=effort not in (None, "none") and choice.mode not in ("any", "tool"),
        effort=effort_of(effort),
        logprobs=(wire.top_logprobs or 0) if _LOGPROBS in (wire.include or ()) else None,
        thinking_limit=defaults.efforts.limit(effort),
    )
    return ParsedRequest(
        chat=chat,
        stream=bool(wire.stream),
        agent=agent_of(headers, session=wire.session_id, cache_key=wire.prompt_cache_key),
        seeded=wire.seed is not None,
        wire=encode_fields(requested),
    )


def encode_fields(requested: RequestedFields) -> bytes:
    """Return the stored form of the fields of a request."""
    return canonical_json(
        {
            "items": list(requested.items),
            "previous": requested.previous,
            "is_stored": requested.is_stored,
            "is_background": requested.is_background,
            "is_signed": requested.is_signed,
            "kinds": requested.kinds,
            "echo": requested.echo,
        }
    )


def decode_fields(payload: bytes) -> RequestedFields:
    """Return the fields that ``encode_fields`` encoded."""
    data = json.loads(payload)
    return RequestedFields(
        items=tuple(data["items"]),
        previous=data["previous"],
        is_stored=data["is_stored"],
        is_background=data["is_background"],
        is_signed=data["is_signed"],
        kinds=data.get("kinds", {}),
        echo=data["echo"],
    )


def _echo(wire: ResponsesBody) -> dict[str, Any]:
    return {
        "instructions": wire.instructions,
        "max_output_tokens": wire.max_output_tokens,
        "max_tool_calls": wire.max_tool_calls,
        "metadata": wire.metadata or {},
        "model": wire.model,
        "parallel_tool_calls": wire.parallel_tool_calls is not False,
        "prompt_cache_key": wire.prompt_cache_key,
        "reasoning": {
            "effort": wire.reasoning.effort if wire.reasoning is not None else None,
            "summary": None,
        },
        "safety_identifier": wire.safety_identifier,
        "temperature": wire.temperature,
        "text": {"format": _shown_format(wire.text.format if wire.text is not None else None)},
        "tool_choice": echoed_choice(wire.tool_choice),
        "top_logprobs": wire.top_logprobs or 0,
        "tools": [echoed_tool(tool) for tool in wire.tools or () if is_callable(tool)],
        "top_p": wire.top_p,
        "truncation": "disabled",
        "user": wire.user,
    }


def _schema(wanted: TextFormat | None) -> Mapping[str, Any] | None:
    if wanted is None or wanted.type not in ("json_object", "json_schema"):
        return None
    return (wanted.json_schema or {}) if wanted.type == "json_schema" else {}


def _shown_format(wanted: TextFormat | None) -> dict[str, Any]:
    if wanted is None or wanted.type not in ("json_object", "json_schema"):
        return {"type": "text"}
    if wanted.type == "json_object":
        return {"type": "json_object"}
    schema = wanted.json_schema or {}
    return {
        "type": "json_schema",
        "name": wanted.name or "answer",
        "schema": schema,
        "strict": bool(wanted.strict),
    }
