"""OpenAI's conversations: each is an agent, whose turns are responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from api.app import App
from api.dialects.agents.turns import claim_turn
from api.dialects.openai_responses.requested import Item
from api.generation import Claim
from api.http.messages import Request
from api.http.operation import IDEMPOTENCY_KEY
from domain.agent.agents import PlannedTurn
from domain.agent.state import Agent, Conversation, Profile
from domain.errors import AgentNotFound, AgentTurnConflict, ConversationNotFound, InvalidRequest
from domain.job.submit import idempotency_digest
from domain.log.record import AGENT_STREAM
from domain.values import AgentId, JobId

#: Turns of one conversation; each is read from the log at every turn.
TURNS_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationTurn:
    """The next turn of a conversation: what it continues, and how its job becomes that turn.

    Attributes:
        agent: The conversation.
        jobs: The responses before it, oldest first.
        held: What else the conversation has.
        claim: As in ``ParsedRequest``.
    """

    agent: AgentId
    jobs: Sequence[JobId]
    held: Conversation
    claim: Claim


def load_conversation(app: App, conversation_id: str) -> tuple[Agent, Profile, Conversation]:
    """Return a conversation; blocks.

    Raises:
        ConversationNotFound: There is no such conversation, or it was deleted.
    """
    try:
        agent = app.agent_records.load(AgentId(conversation_id))
    except AgentNotFound:
        raise ConversationNotFound(conversation_id) from None
    profile = app.agent_records.profile_of(agent)
    if profile.conversation is None or agent.parent is not None:
        raise ConversationNotFound(conversation_id)
    return agent, profile, profile.conversation


def plan_conversation_turn(app: App, conversation_id: str, request: Request) -> ConversationTurn:
    """Return the next turn of a conversation, or the one that the same key already added; blocks.

    Raises:
        AgentTurnConflict: A response of the conversation has not ended.
        ConversationNotFound: It does not exist, or belongs to another key.
        InvalidRequest: It has too many turns.
    """
    missing = ConversationNotFound(conversation_id)
    app.ownership.require(request.caller, AGENT_STREAM + conversation_id, missing)
    _, __, held = load_conversation(app, conversation_id)
    key = IDEMPOTENCY_KEY.read(request)
    planned: PlannedTurn = app.agent_records.plan_turn(
        AgentId(conversation_id),
        expected=None,
        key=None if key is None else idempotency_digest(key, request.caller.keyspace),
    )
    if planned.turn > TURNS_MAX:
        msg = f"the conversation has {TURNS_MAX} responses, the most that one can have"
        raise InvalidRequest(msg, field="conversation")
    return ConversationTurn(
        agent=planned.agent.id,
        jobs=planned.agent.turns[: planned.turn - 1],
        held=held,
        claim=partial(claim_turn, app, planned, request),
    )


def items_of(held: Conversation, turns: Sequence[Sequence[Item]]) -> list[dict[str, Any]]:
    """Return the items of a conversation, oldest first.

    Args:
        turns: The items of each turn, those of its answer too.
    """
    removed = frozenset(held.removed)
    parts: list[Sequence[Item]] = []
    for number in range(len(turns) + 1):
        parts += turns[number - 1 : number] if number else []
        parts.append([item for after, item in held.added if after == number])
    return [dict(item) for part in parts for item in part if item["id"] not in removed]


def counted_turns(app: App, agent: Agent) -> tuple[JobId, ...]:
    """Return the responses of a conversation that have an answer; blocks."""
    return agent.turns[: agent.counted(app.agent_records.last_status(agent))]


def change_conversation(
    app: App, conversation_id: str, changed: Conversation | dict[str, str], request: Request
) -> Agent:
    """Put further items or removals behind those of a conversation, or replace its metadata.

    Raises:
        AgentTurnConflict: Items were given while a response of the conversation has not ended.
        ConversationNotFound: There is no such conversation.
    """
    load_conversation(app, conversation_id)

    def change(agent: Agent, before: Profile) -> Profile:
        held = before.conversation
        if not isinstance(changed, Conversation):
            return replace(before, metadata=changed)
        assert held is not None, "only a conversation was loaded"  # noqa: S101 - for the checker
        status = app.agent_records.last_status(agent)
        turn = agent.counted(status)
        if status is not None and not status.is_terminal:
            raise AgentTurnConflict(agent.id, turn=turn, job=agent.last)
        added = tuple((turn, item) for _, item in changed.added)
        kept = tuple(one for one in held.added if one[1]["id"] not in changed.removed)
        removed = changed.removed if len(kept) == len(held.added) else ()
        after = Conversation(added=kept + added, removed=held.removed + removed)
        return replace(before, conversation=after)

    return app.agent_records.change(AgentId(conversation_id), change, correlation_id=request.id)
