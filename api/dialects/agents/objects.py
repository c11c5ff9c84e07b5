"""Agents as clients read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import quote

from api.app import App
from api.dialects.agents.bodies import (
    AgentActivity,
    AgentCache,
    AgentContextMaps,
    AgentLinks,
    AgentMessage,
    AgentMessages,
    AgentMisses,
    AgentObject,
    AgentTurn,
    CacheHit,
    CacheMiss,
    ContextBlock,
    MappedContextObject,
    SavedContext,
)
from api.dialects.encoding import shown
from api.dialects.jobs.objects import cache_object
from domain.agent.contexts import MappedContext
from domain.agent.state import Agent
from domain.chat.request import Message
from domain.errors import AgentNotFound, PayloadMissing
from domain.events.agent import AgentDeleted, AgentForgotten, AgentForked, AgentRegistered
from domain.events.cache import (
    AgentCacheEvicted,
    AgentCacheMissed,
    AgentCacheRestored,
    AgentCacheSaved,
)
from domain.job.listing import JobFilter
from domain.kv.spec import BLOCK_TOKENS
from domain.log.codec import decode_recorded
from domain.log.record import AGENT_STREAM, EventFilter, RecordedEvent
from domain.values import AgentId, JobId, JobStatus, StreamName

#: Most names of other agents that share blocks with a context.
SHARED_WITH_MAX: Final = 20
#: Turns of the history of an agent.
HISTORY_MAX: Final = 20


def _agent_object(agent: Agent, *, registered: bool = True) -> AgentObject:
    """Return an agent without its turns; one that was not created here has only a cache."""
    path = f"/v1/agents/{quote(agent.id, safe='')}"
    links: AgentLinks = {"cache": f"{path}/cache"}
    if registered:
        links |= {
            "self": path,
            "generate": f"{path}/generate",
            "messages": f"{path}/messages",
            "fork": f"{path}/fork",
        }
    return shown(
        AgentObject,
        agent,
        object="agent",
        created_at=agent.created_at or agent.first_seen,
        forked_from={"agent_id": agent.parent, "turn": agent.inherited} if agent.parent else None,
        links=links,
    )


def listed_agent_object(view: Agent) -> AgentObject:
    """Return a row of the list of agents."""
    row = _agent_object(view, registered=view.exists)
    row["registered"], figures = view.exists, view.figures
    misses: AgentMisses = {
        "diverged": figures.misses_diverged,
        "gone": figures.misses_gone,
        "model_changed": figures.misses_model_changed,
    }
    blocks = view.disk_blocks
    row["activity"] = shown(AgentActivity, view, figures, misses=misses, context_blocks=blocks)
    return row


def messages_object(messages: Sequence[Message], last: JobId | None) -> AgentMessages:
    """Return a conversation whose last turn has the job ``last``."""
    job: str | None = last
    shown: list[AgentMessage] = []
    for one in reversed(messages):
        job = one.origin or job
        shown.append(_message(one, None if one.role == "system" else job))
    return {"object": "list", "data": shown[::-1]}


def _message(one: Message, job: str | None) -> AgentMessage:
    shown: AgentMessage = {"role": one.role, "content": one.content, "job": job}
    if one.reasoning:
        shown["reasoning_content"] = one.reasoning
    if one.tool_calls:
        shown["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in one.tool_calls
        ]
    if one.tool_call_id is not None:
        shown["tool_call_id"] = one.tool_call_id
    return shown


def _cache_events(
    recorded: Sequence[RecordedEvent],
) -> tuple[SavedContext | None, CacheHit | None, CacheMiss | None] | None:
    """Return what the stream of an agent states of its context; ``None`` if it was deleted."""
    context: SavedContext | None = None
    hit: CacheHit | None = None
    miss: CacheMiss | None = None
    is_deleted = False
    for one in recorded:
        match decode_recorded(one):
            case AgentCacheSaved() as event:
                count = len(event.blocks) + (event.tail is not None)
                at = one.recorded_at
                context = shown(SavedContext, event, at=at, blocks=count, tier="disk")
            case AgentCacheRestored() as event:
                hit = shown(CacheHit, event, at=one.recorded_at)
            case AgentCacheMissed() as event:
                miss = shown(CacheMiss, event, at=one.recorded_at)
            case AgentCacheEvicted():
                context = None
            case (AgentDeleted() | AgentForgotten()) as event:
                context = hit = miss = None
                is_deleted = isinstance(event, AgentDeleted)
            case AgentRegistered() | AgentForked():
                is_deleted = False
            case _:
                pass
    return None if is_deleted else (context, hit, miss)


def contexts_object(
    agent_id: AgentId, contexts: Sequence[MappedContext], *, registered: bool
) -> AgentContextMaps:
    """Return the contexts of an agent as maps of blocks."""
    return {
        "object": "agent.blocks",
        "agent_id": agent_id,
        "registered": registered,
        "block_tokens": BLOCK_TOKENS,
        "contexts": [_context(one) for one in contexts],
    }


def _context(context: MappedContext) -> MappedContextObject:
    blocks = [shown(ContextBlock, one, shared_with=len(one.agents)) for one in context.blocks]
    agents = sorted({str(agent) for block in context.blocks for agent in block.agents})
    sharing = agents[:SHARED_WITH_MAX]
    return shown(MappedContextObject, context, context.saved, blocks=blocks, shared_with=sharing)


def present_agent(app: App, agent: Agent) -> AgentObject:
    """Return an agent with its profile, unless it was erased, and its latest turns."""
    status = app.agent_records.last_status(agent)
    whole = _agent_object(agent)
    whole["turns"] = agent.counted(status)
    whole["open_job"] = agent.last if status is not None and not status.is_terminal else None
    whole |= {"system": None, "tools": None, "options": None, "metadata": None}
    with suppress(PayloadMissing):
        profile = app.agent_records.profile_of(agent)
        whole["system"] = profile.system
        whole["tools"] = [dict(tool) for tool in profile.tools]
        whole["options"] = profile.options.by_name()
        whole["metadata"] = dict(profile.metadata)
    own = list(enumerate(agent.turns, start=agent.inherited + 1))
    whole["history"] = [_turn(app, number, job) for number, job in own[-HISTORY_MAX:]]
    return whole


def _turn(app: App, number: int, job: JobId) -> AgentTurn:
    view = app.views.get(job)
    status = JobStatus.EXPIRED if view is None else view.status
    counts = status is JobStatus.COMPLETED
    return {"turn": number, "job": job, "status": status, "counts": counts}


def load_agent_cache(app: App, agent_id: AgentId) -> AgentCache:
    """Return the cache state of the context of an agent, registered or not.

    Raises:
        AgentNotFound: The agent has neither events nor jobs, or was deleted.
    """
    recorded = app.log.load(StreamName(AGENT_STREAM + agent_id))
    jobs = app.views.page(JobFilter(agent=agent_id), limit=1).jobs
    found = _cache_events(recorded)
    if found is None or not (recorded or jobs):
        raise AgentNotFound(agent_id)
    diagnosis = app.records.diagnose(jobs[0].id) if jobs else None
    return {
        "object": "agent.cache",
        "agent_id": agent_id,
        "context": found[0],
        "last_hit": found[1],
        "last_miss": found[2],
        "latest": {"job": jobs[0].id, **cache_object(diagnosis)} if diagnosis else None,
    }


def is_registered(app: App, agent_id: AgentId) -> bool:
    """Return whether an agent was created here; others only have events or jobs.

    Raises:
        AgentNotFound: It has neither.
    """
    stream = StreamName(AGENT_STREAM + agent_id)
    events = app.log.select(EventFilter(stream=stream), limit=1)
    if not events and not app.views.page(JobFilter(agent=agent_id), limit=1).jobs:
        raise AgentNotFound(agent_id)
    try:
        app.agent_records.load(agent_id)
    except AgentNotFound:
        return False
    return True
