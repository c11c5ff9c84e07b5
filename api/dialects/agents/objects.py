"""Agents as clients read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
    AgentObject,
    AgentTurn,
    CacheHit,
    CacheMiss,
    ContextBlock,
    LatestTurn,
    SavedContext,
)
from api.dialects.jobs.objects import cache_object
from domain.agent.contexts import MappedBlock, MappedContext
from domain.agent.state import Agent, Profile
from domain.audit.recent_ends import CacheDiagnosis
from domain.chat.request import Message
from domain.errors import (
    AgentNotFound,
    PayloadMissing,
)
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
#: Number, job and status of a turn.
ShownTurn = tuple[int, JobId, JobStatus]


def agent_object(agent: Agent) -> AgentObject:
    """Return an agent without its turns."""
    path = f"/v1/agents/{quote(agent.id, safe='')}"
    return {
        "id": agent.id,
        "object": "agent",
        "created_at": agent.created_at,
        "forked_from": (
            {"agent_id": agent.parent, "turn": agent.inherited} if agent.parent else None
        ),
        "links": {
            "self": path,
            "generate": f"{path}/generate",
            "messages": f"{path}/messages",
            "cache": f"{path}/cache",
            "fork": f"{path}/fork",
        },
    }


def listed_agent_object(view: Agent) -> AgentObject:
    """Return a row of the list of agents."""
    path = f"/v1/agents/{quote(view.id, safe='')}"
    is_registered = view.exists
    links: AgentLinks = {"cache": f"{path}/cache"}
    if is_registered:
        links |= {
            "self": path,
            "generate": f"{path}/generate",
            "messages": f"{path}/messages",
            "fork": f"{path}/fork",
        }
    return {
        "id": view.id,
        "object": "agent",
        "created_at": view.created_at or view.first_seen,
        "forked_from": ({"agent_id": view.parent, "turn": view.inherited} if view.parent else None),
        "links": links,
        "registered": is_registered,
        "activity": _activity(view),
    }


def full_agent_object(
    agent: Agent,
    status: JobStatus | None,
    *,
    profile: Profile | None,
    history: Sequence[ShownTurn],
) -> AgentObject:
    """Return an agent with its profile and its latest turns.

    Args:
        status: Status of the job of its last turn, if it has a turn.
        profile: Its profile; ``None`` if it was erased.
        history: Its latest turns, oldest first.
    """
    is_open = status is not None and not status.is_terminal
    shown = agent_object(agent)
    shown["turns"] = agent.counted(status)
    shown["open_job"] = agent.last if is_open else None
    shown["system"] = profile.system if profile else None
    shown["tools"] = [dict(tool) for tool in profile.tools] if profile else None
    shown["options"] = profile.options.by_name() if profile else None
    shown["metadata"] = dict(profile.metadata) if profile else None
    shown["history"] = [_turn(number, job, status) for number, job, status in history]
    return shown


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


def agent_cache_object(
    agent_id: AgentId,
    recorded: Sequence[RecordedEvent],
    latest: JobId | None,
    diagnosis: CacheDiagnosis | None,
) -> AgentCache | None:
    """Return the cache state of the context of an agent, ``None`` if the agent was deleted.

    Args:
        agent_id: The agent, registered or not.
        recorded: The events of its stream.
        latest: Its latest job, if it has one.
        diagnosis: The cache diagnosis of that job.
    """
    context: SavedContext | None = None
    hit: CacheHit | None = None
    miss: CacheMiss | None = None
    is_deleted = False
    for one in recorded:
        event = decode_recorded(one)
        at = one.recorded_at
        if isinstance(event, AgentCacheSaved):
            context = _context(event, at)
        elif isinstance(event, AgentCacheRestored):
            hit = _hit(event, at)
        elif isinstance(event, AgentCacheMissed):
            miss = _miss(event, at)
        elif isinstance(event, AgentCacheEvicted):
            context = None
        elif isinstance(event, AgentDeleted | AgentForgotten):
            context = hit = miss = None
            is_deleted = isinstance(event, AgentDeleted)
        elif isinstance(event, AgentRegistered | AgentForked):
            is_deleted = False
    if is_deleted:
        return None
    return {
        "object": "agent.cache",
        "agent_id": agent_id,
        "context": context,
        "last_hit": hit,
        "last_miss": miss,
        "latest": _latest(latest, diagnosis),
    }


def _activity(view: Agent) -> AgentActivity:
    figures = view.figures
    return {
        "first_seen": view.first_seen,
        "last_seen": view.last_seen,
        "jobs": view.jobs,
        "open_jobs": view.open_jobs,
        "last_job": view.last_job,
        "last_model": view.last_model,
        "prompt_tokens": figures.prompt_tokens,
        "cached_tokens": figures.cached_tokens,
        "known_tokens": view.known_tokens,
        "completion_tokens": figures.completion_tokens,
        "hits": figures.hits,
        "ram_tokens": figures.ram_tokens,
        "disk_tokens": figures.disk_tokens,
        "misses": {
            "diverged": figures.misses_diverged,
            "gone": figures.misses_gone,
            "model_changed": figures.misses_model_changed,
        },
        "missed_tokens": figures.missed_tokens,
        "context_tokens": view.context_tokens,
        "context_blocks": view.disk_blocks,
    }


def _turn(number: int, job: JobId, status: JobStatus) -> AgentTurn:
    counts = status is JobStatus.COMPLETED
    return {"turn": number, "job": job, "status": status.value, "counts": counts}


def _latest(job_id: JobId | None, diagnosis: CacheDiagnosis | None) -> LatestTurn | None:
    if job_id is None or diagnosis is None:
        return None
    return {"job": job_id, **cache_object(diagnosis)}


def _context(event: AgentCacheSaved, at: str) -> SavedContext:
    return {
        "job": event.job,
        "at": at,
        "tokens": event.tokens,
        "blocks": len(event.blocks) + (event.tail is not None),
        "tier": "disk",
        "fingerprint": event.fingerprint,
    }


def _hit(event: AgentCacheRestored, at: str) -> CacheHit:
    return {
        "job": event.job,
        "at": at,
        "source": event.source,
        "tokens": event.tokens,
        "disk_tokens": event.disk_tokens,
        "prompt_tokens": event.prompt_tokens,
        "took_ms": event.took_ms,
    }


def _miss(event: AgentCacheMissed, at: str) -> CacheMiss:
    return {
        "job": event.job,
        "at": at,
        "reason": event.reason,
        "at_token": event.at_token,
        "missed_tokens": event.missed_tokens,
    }


def contexts_object(
    agent_id: AgentId, contexts: Sequence[MappedContext], *, registered: bool
) -> AgentContextMaps:
    """Return the contexts of an agent as maps of blocks."""
    return {
        "object": "agent.blocks",
        "agent_id": agent_id,
        "registered": registered,
        "block_tokens": BLOCK_TOKENS,
        "contexts": [
            {
                "job": context.saved.job,
                "at": context.at,
                "fingerprint": context.saved.fingerprint,
                "tokens": context.saved.tokens,
                "blocks": [_block(block) for block in context.blocks],
                "shared_with": _sharing(context),
            }
            for context in contexts
        ],
    }


def _block(block: MappedBlock) -> ContextBlock:
    return {
        "name": block.name,
        "tokens": block.tokens,
        "in_memory": block.in_memory,
        "on_disk": block.on_disk,
        "shared_with": len(block.agents),
    }


def _sharing(context: MappedContext) -> list[str]:
    agents = {str(agent) for block in context.blocks for agent in block.agents}
    return sorted(agents)[:SHARED_WITH_MAX]


#: Turns of the history of an agent.
HISTORY_MAX: Final = 20


def present_agent(app: App, agent: Agent) -> AgentObject:
    """Return an agent with its profile and its latest turns."""
    try:
        profile = app.agent_records.profile_of(agent)
    except PayloadMissing:
        profile = None
    return full_agent_object(
        agent,
        app.agent_records.last_status(agent),
        profile=profile,
        history=_history(app, agent),
    )


def load_agent_cache(app: App, agent_id: AgentId) -> AgentCache:
    """Return the cache state of the context of an agent, registered or not.

    Raises:
        AgentNotFound: The agent has neither events nor jobs, or was deleted.
    """
    recorded = app.log.load(StreamName(AGENT_STREAM + agent_id))
    jobs = app.views.page(JobFilter(agent=agent_id), limit=1).jobs
    latest = jobs[0].id if jobs else None
    diagnosis = None if latest is None else app.records.diagnose(latest)
    shown = agent_cache_object(agent_id, recorded, latest, diagnosis)
    if shown is None or not (recorded or jobs):
        raise AgentNotFound(agent_id)
    return shown


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


def _history(app: App, agent: Agent) -> list[ShownTurn]:
    own = list(enumerate(agent.turns, start=agent.inherited + 1))
    turns: list[ShownTurn] = []
    for number, job in own[-HISTORY_MAX:]:
        view = app.views.get(job)
        turns.append((number, job, JobStatus.EXPIRED if view is None else view.status))
    return turns
