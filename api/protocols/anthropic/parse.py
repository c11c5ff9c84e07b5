"""Parses Anthropic messages."""

from __future__ import annotations

from collections.abc import Mapping

from api.protocols.anthropic.cache_control import has_cache_control
from api.protocols.anthropic.messages import message_turns, system_texts
from api.protocols.anthropic.tools import AnthropicTools, answer_schema_of, tool_choice_of
from api.protocols.shared.agent_hints import agent_of
from api.protocols.shared.efforts import Efforts
from api.protocols.shared.parsed_request import (
    ParsedRequest,
    RequestDefaults,
    ThinkingShown,
    clamp_max_tokens,
    effort_of,
    sampling_of,
    stop_texts,
)
from api.protocols.shared.turns import merge_turns
from api.schemas.anthropic import CountBody, MessagesBody, ThinkingSpec
from api.schemas.base import MAX_TOKENS_CEILING, parse_body
from domain.chat.reasoning_limit import ThinkingLimit
from domain.chat.request import ChatRequest


def parse(body: bytes, headers: Mapping[str, str], defaults: RequestDefaults) -> ParsedRequest:
    """Parse a body of ``POST /v1/messages``.

    Args:
        body: The body of the request.
        headers: Headers by lower-case name.
        defaults: Values for open fields; the token limit is required in this dialect.

    Raises:
        InvalidRequest: The error names the first invalid field.
    """
    wire = parse_body(MessagesBody, body)
    return ParsedRequest(
        chat=_chat(wire, wire.max_tokens, defaults),
        stream=bool(wire.stream),
        agent=agent_of(headers, user_id=wire.user_id),
        seeded=wire.seed is not None,
        thinking=_thinking_of(wire.thinking),
        has_cache_control=has_cache_control(wire),
    )


def parse_count(
    body: bytes, headers: Mapping[str, str], defaults: RequestDefaults
) -> ParsedRequest:
    """Parse a body of ``POST /v1/messages/count_tokens``; see ``parse``."""
    wire = parse_body(CountBody, body)
    chat = _chat(wire, 1, defaults)
    return ParsedRequest(chat=chat, agent=agent_of(headers, user_id=wire.user_id))


def _chat(wire: CountBody, max_tokens: int, defaults: RequestDefaults) -> ChatRequest:
    toolbox = AnthropicTools(wire.tools)
    messages = merge_turns(system_texts(wire.system), message_turns(wire.messages, toolbox))
    choice = tool_choice_of(wire.tool_choice, toolbox)
    schema = answer_schema_of(wire.output_config, wire.output_format)
    # A request that demands a call must not reason first.
    is_thinking = _thinking_of(wire.thinking) != "none" and choice.mode not in ("any", "tool")
    return ChatRequest(
        model=wire.model,
        messages=messages,
        max_tokens=clamp_max_tokens(max_tokens, MAX_TOKENS_CEILING),
        sampling=sampling_of(wire, wire.seed, defaults.ids),
        tools=toolbox.loaded,
        deferred_tools=toolbox.referred,
        tool_choice=choice,
        answer_schema=schema,
        # As at the vendor, a schema that cannot be enforced is a 400.
        is_strict=schema is not None,
        strict_tools=toolbox.strict,
        stop=stop_texts(wire.stop_sequences),
        thinking=is_thinking,
        effort=effort_of(wire.output_config.effort if wire.output_config is not None else None),
        thinking_limit=_thinking_limit(wire, defaults.efforts),
    )


def _thinking_of(spec: ThinkingSpec | None) -> ThinkingShown:
    if spec is None or spec.type not in ("enabled", "adaptive"):
        return "none"
    return "omitted" if spec.display == "omitted" else "whole"


def _thinking_limit(wire: CountBody, efforts: Efforts) -> ThinkingLimit:
    spec = wire.thinking
    return efforts.limit(
        wire.output_config.effort if wire.output_config is not None else None,
        budget=spec.budget_tokens if spec is not None and spec.type == "enabled" else None,
        forbidden=spec is not None and spec.type == "disabled",
    )
