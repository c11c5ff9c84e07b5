"""Native jobs: the request as a domain request."""

from __future__ import annotations

from collections.abc import Mapping

from api.protocols.openai_chat.messages import turn_of
from api.protocols.openai_chat.tools import tools_of
from api.protocols.shared.efforts import EFFORTS, Efforts
from api.protocols.shared.parsed_request import (
    ParsedRequest,
    agent_of,
    clamp_max_tokens,
    sampling_of,
    stop_texts,
)
from api.protocols.shared.turns import merge_turns
from api.schemas.base import parse_body
from api.schemas.jobs import JobBody
from domain.chat.request import ChatRequest, Message
from domain.ports import IdSource
from domain.values import Priority


def parse(
    body: bytes,
    headers: Mapping[str, str],
    *,
    ids: IdSource,
    max_tokens_default: int,
    model_default: str,
    efforts: Efforts = EFFORTS,
) -> ParsedRequest:
    """Translate a body of ``POST /v1/jobs``.

    Args:
        body: As it came.
        headers: By lower-case name.
        ids: Draws the seed if the caller gave none.
        max_tokens_default: Where the caller sets no limit.
        model_default: Where the caller names no model.
        efforts: What efforts are worth.

    Raises:
        InvalidRequest: Naming the first field that does not fit.
    """
    wire = parse_body(JobBody, body)
    turns = (
        [turn_of(message) for message in wire.messages]
        if wire.messages is not None
        else [Message(role="user", content=wire.prompt or "")]
    )
    chat = ChatRequest(
        model=wire.model or model_default,
        messages=merge_turns([wire.system or ""], turns),
        max_tokens=clamp_max_tokens(wire.max_tokens, max_tokens_default),
        sampling=sampling_of(
            temperature=wire.temperature,
            top_p=wire.top_p,
            top_k=wire.top_k,
            min_p=wire.min_p,
            seed=wire.seed,
            ids=ids,
        ),
        tools=tools_of(wire.tools),
        stop=stop_texts(wire.stop),
        thinking=bool(wire.thinking),
        thinking_limit=efforts.limit(None, forbidden=wire.thinking is False),
    )
    return ParsedRequest(
        chat=chat,
        stream=True,
        priority=Priority(wire.priority or Priority.INTERACTIVE),
        agent=agent_of(headers, named=wire.agent_id),
        seeded=wire.seed is not None,
        start_within_s=wire.start_within_s,
        finish_within_s=wire.finish_within_s,
        webhook=wire.webhook,
    )
