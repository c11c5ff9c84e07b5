"""Fields that jobs and agent turns share."""

from __future__ import annotations

from api.protocols.openai_chat.messages import turns_of
from api.protocols.shared.parsed_request import ParsedRequest
from api.schemas.agents import TurnBody
from api.schemas.jobs import JobBody
from domain.chat.request import ChatRequest, Message
from domain.values import AgentId, Priority


def messages_of(wire: JobBody | TurnBody) -> list[Message]:
    """Return the messages of a body, or its prompt as a user turn."""
    if wire.messages is None:
        return [Message(role="user", content=wire.prompt or "")]
    return list(turns_of(wire.messages))


def queued_request(
    chat: ChatRequest,
    wire: JobBody | TurnBody,
    *,
    agent: AgentId | None,
    stream: bool,
    names_model: bool,
) -> ParsedRequest:
    """Return a request with the priority, the deadlines and the webhook of a body.

    Args:
        chat: The generation.
        agent: The agent of the request, if it names one.
        stream: Whether the reply is a stream.
        names_model: Whether the body, or the profile of its agent, names a model.
    """
    return ParsedRequest(
        chat=chat,
        stream=stream,
        priority=Priority(wire.priority or Priority.INTERACTIVE),
        agent=agent,
        seeded=wire.seed is not None,
        start_within_s=wire.start_within_s,
        finish_within_s=wire.finish_within_s,
        webhook=wire.webhook,
        names_model=names_model,
    )
