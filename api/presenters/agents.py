"""Agents as clients see them."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from api.presenters.cache_diagnostics import cache_object
from api.schemas.agents import (
    AgentCache,
    AgentObject,
    AgentTurn,
    CacheHit,
    CacheMiss,
    LatestTurn,
    SavedContext,
)
from api.streaming.log_backfill import JobRecords
from domain.agent.state import Agent
from domain.errors import AgentNotFound, PayloadMissing
from domain.events.agent import AgentDeleted, AgentForgotten, AgentForked, AgentRegistered
from domain.events.cache import AgentCacheMissed, AgentCacheRestored, AgentCacheSaved
from domain.log.codec import decode_event
from domain.log.record import AGENT_STREAM
from domain.usecases.agents import last_status, profile_of
from domain.values import AgentId, JobId, JobStatus, StreamName

#: Turns that are shown with an agent.
HISTORY_MAX: Final = 20


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
            "cache": f"{path}/cache",
            "fork": f"{path}/fork",
        },
    }


def full_agent_object(agent: Agent, records: JobRecords) -> AgentObject:
    """Return an agent with what it was made with and its latest turns; blocks."""
    status = last_status(agent, records.views)
    is_open = status is not None and not status.is_terminal
    shown = agent_object(agent)
    shown["turns"] = agent.counted(status)
    shown["open_job"] = agent.last if is_open else None
    try:
        profile = profile_of(agent, records.payloads)
    except PayloadMissing:
        profile = None
    shown["system"] = profile.system if profile else None
    shown["tools"] = [dict(tool) for tool in profile.tools] if profile else None
    shown["options"] = profile.options.said() if profile else None
    shown["history"] = _history(agent, records)
    return shown


def agent_cache(agent_id: AgentId, records: JobRecords) -> AgentCache:
    """Return what is known of an agent's context; blocks.

    Raises:
        AgentNotFound: Nothing was ever asked for it, or it was deleted.
    """
    context: SavedContext | None = None
    hit: CacheHit | None = None
    miss: CacheMiss | None = None
    is_gone = False
    recorded = records.log.load(StreamName(AGENT_STREAM + agent_id))
    for one in recorded:
        event = decode_event(one.type, one.schema_version, one.data)
        at = one.recorded_at
        if isinstance(event, AgentCacheSaved):
            context = _context(event, at)
        elif isinstance(event, AgentCacheRestored):
            hit = _hit(event, at)
        elif isinstance(event, AgentCacheMissed):
            miss = _miss(event, at)
        elif isinstance(event, AgentDeleted | AgentForgotten):
            context = hit = miss = None
            is_gone = isinstance(event, AgentDeleted)
        elif isinstance(event, AgentRegistered | AgentForked):
            is_gone = False
    page = records.views.page(limit=1, agent=agent_id)
    if is_gone or not (recorded or page.jobs):
        raise AgentNotFound(agent_id)
    return {
        "object": "agent.cache",
        "agent_id": agent_id,
        "context": context,
        "last_hit": hit,
        "last_miss": miss,
        "latest": _latest(page.jobs[0].id, records) if page.jobs else None,
    }


def _history(agent: Agent, records: JobRecords) -> list[AgentTurn]:
    own = list(enumerate(agent.turns, start=agent.inherited + 1))
    turns: list[AgentTurn] = []
    for number, job in own[-HISTORY_MAX:]:
        view = records.views.get(job)
        status = JobStatus.EXPIRED if view is None else view.status
        counts = status is JobStatus.COMPLETED
        turns.append({"turn": number, "job": job, "status": status.value, "counts": counts})
    return turns


def _latest(job_id: JobId, records: JobRecords) -> LatestTurn | None:
    diagnosis = records.diagnose(job_id)
    return None if diagnosis is None else {"job": job_id, **cache_object(diagnosis)}


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
