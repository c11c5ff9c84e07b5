"""Direct agents: what they are made with, and a turn of one as a domain request."""

from __future__ import annotations

from collections.abc import Sequence

from api.protocols.openai_chat.messages import turn_of
from api.protocols.openai_chat.tools import tools_of
from api.protocols.shared.efforts import EFFORTS, Efforts
from api.protocols.shared.parsed_request import (
    ParsedRequest,
    clamp_max_tokens,
    sampling_of,
    stop_texts,
)
from api.protocols.shared.turns import merge_turns
from api.schemas.agents import AgentBody, OptionsBody, TurnBody
from domain.agent.state import AgentOptions, Profile
from domain.chat.request import ChatRequest, Message
from domain.errors import InvalidRequest
from domain.ports import IdSource
from domain.values import AgentId, Priority


def profile_of(wire: AgentBody) -> Profile:
    """Return what an agent is made with."""
    return Profile(system=wire.system or "", tools=tools_of(wire.tools), options=_options_of(wire))


def parse_turn(
    wire: TurnBody,
    agent: AgentId,
    profile: Profile,
    before: Sequence[Message],
    *,
    ids: IdSource,
    max_tokens_default: int,
    model_default: str,
    efforts: Efforts = EFFORTS,
) -> ParsedRequest:
    """Translate a turn of an agent, its history put before it.

    Args:
        wire: The turn.
        agent: Whose.
        profile: What it was made with.
        before: The conversation up to here; empty for the first turn.
        ids: Draws the seed if the caller gave none.
        max_tokens_default: Where neither the turn nor the agent sets a limit.
        model_default: Where neither names a model.
        efforts: What efforts are worth.

    Raises:
        InvalidRequest: The turn begins with an answer.
    """
    turns = _turns_of(wire)
    options = _options_of(wire).over(profile.options)
    said = [turn for turn in before if turn.role != "system"]
    chat = ChatRequest(
        model=options.model or model_default,
        messages=merge_turns([profile.system], [*said, *turns]),
        max_tokens=clamp_max_tokens(options.max_tokens, max_tokens_default),
        sampling=sampling_of(
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            min_p=options.min_p,
            seed=wire.seed,
            ids=ids,
        ),
        tools=profile.tools,
        stop=options.stop or (),
        thinking=bool(options.thinking),
        thinking_limit=efforts.limit(None, forbidden=options.thinking is False),
    )
    return ParsedRequest(
        chat=chat,
        stream=bool(wire.stream),
        priority=Priority(wire.priority or Priority.INTERACTIVE),
        agent=agent,
        seeded=wire.seed is not None,
        start_within_s=wire.start_within_s,
        finish_within_s=wire.finish_within_s,
        webhook=wire.webhook,
    )


def _turns_of(wire: TurnBody) -> list[Message]:
    if wire.messages is None:
        return [Message(role="user", content=wire.prompt or "")]
    turns = [turn_of(message) for message in wire.messages]
    if turns[0].role == "assistant":
        msg = "a turn begins with what is said to the agent: its answers are kept for it"
        raise InvalidRequest(msg, field="messages")
    return turns


def _options_of(wire: OptionsBody) -> AgentOptions:
    return AgentOptions(
        model=wire.model,
        max_tokens=wire.max_tokens,
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=wire.top_k,
        min_p=wire.min_p,
        stop=None if wire.stop is None else stop_texts(wire.stop),
        thinking=wire.thinking,
    )
