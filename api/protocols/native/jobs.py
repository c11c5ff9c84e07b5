"""Parses jobs."""

from __future__ import annotations

from collections.abc import Mapping

from api.protocols.native.queued_request import messages_of, queued_request
from api.protocols.openai_chat.tools import tools_of
from api.protocols.shared.agent_hints import agent_of
from api.protocols.shared.parsed_request import (
    ParsedRequest,
    RequestDefaults,
    clamp_max_tokens,
    sampling_of,
    stop_texts,
)
from api.protocols.shared.turns import merge_turns
from api.schemas.base import parse_body
from api.schemas.jobs import JobBody
from domain.chat.request import ChatRequest


def parse(body: bytes, headers: Mapping[str, str], defaults: RequestDefaults) -> ParsedRequest:
    """Parse a body of ``POST /v1/jobs``.

    Args:
        body: The body of the request.
        headers: Headers by lower-case name.
        defaults: Values for open fields.

    Raises:
        InvalidRequest: The error names the first invalid field.
    """
    wire = parse_body(JobBody, body)
    chat = ChatRequest(
        model=wire.model or defaults.model,
        messages=merge_turns([wire.system or ""], messages_of(wire)),
        max_tokens=clamp_max_tokens(wire.max_tokens, defaults.max_tokens),
        sampling=sampling_of(wire, wire.seed, defaults.ids, min_p=wire.min_p),
        tools=tools_of(wire.tools),
        stop=stop_texts(wire.stop),
        thinking=bool(wire.thinking),
        thinking_limit=defaults.efforts.limit(None, forbidden=wire.thinking is False),
    )
    agent = agent_of(headers, named=wire.agent_id)
    return queued_request(chat, wire, agent=agent, stream=True, names_model=wire.model is not None)
