"""Parses agents and their turns."""

from __future__ import annotations

from collections.abc import Sequence

from api.protocols.native.queued_request import messages_of, queued_request
from api.protocols.openai_chat.tools import tools_of
from api.protocols.shared.parsed_request import (
    ParsedRequest,
    RequestDefaults,
    clamp_max_tokens,
    sampling_of,
    stop_texts,
)
from api.protocols.shared.turns import merge_turns
from api.schemas.agents import AgentBody, TurnBody
from api.schemas.jobs import OptionsBody
from domain.agent.state import AgentOptions, Profile
from domain.chat.request import ChatRequest, Message
from domain.errors import InvalidRequest
from domain.values import AgentId


def profile_of(wire: AgentBody) -> Profile:
    """Return the profile of a new agent."""
    return Profile(system=wire.system or "", tools=tools_of(wire.tools), options=_options_of(wire))


def parse_turn(
    wire: TurnBody,
    agent: AgentId,
    profile: Profile,
    before: Sequence[Message],
    defaults: RequestDefaults,
) -> ParsedRequest:
    """Return a turn of an agent as a request with the agent's history.

    Args:
        profile: The profile of the agent.
        before: The conversation before the turn; empty for the first turn.
        defaults: Values for fields that neither the turn nor the profile sets.

    Raises:
        InvalidRequest: The turn begins with an assistant message.
    """
    turns = messages_of(wire)
    if turns[0].role == "assistant":
        msg = "a turn begins with a message to the agent; the service stores the agent's answers"
        raise InvalidRequest(msg, field="messages")
    options = _options_of(wire).over(profile.options)
    history = [turn for turn in before if turn.role != "system"]
    chat = ChatRequest(
        model=options.model or defaults.model,
        messages=merge_turns([profile.system], [*history, *turns]),
        max_tokens=clamp_max_tokens(options.max_tokens, defaults.max_tokens),
        sampling=sampling_of(options, wire.seed, defaults.ids, min_p=options.min_p),
        tools=profile.tools,
        stop=options.stop or (),
        thinking=bool(options.thinking),
        thinking_limit=defaults.efforts.limit(None, forbidden=options.thinking is False),
    )
    return queued_request(
        chat,
        wire,
        agent=agent,
        stream=bool(wire.stream),
        names_model=options.model is not None,
    )


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
