"""The state of the service after an event of the log, with an upper limit of work for each call.

``semantic status --as-of`` folds the whole log; this reads the latest jobs before the event and
the events of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from domain.audit.replay import fold_jobs_as_of
from domain.engine.control import ADMISSION_AFTER, ENGINE_STREAM, AdmissionState
from domain.events.cache import AgentCacheSaved
from domain.events.job import JobSubmitted
from domain.events.model import ModelLoaded, ModelUnloaded
from domain.events.worker import (
    WorkerLost,
    WorkerStopped,
)
from domain.job.state import Job
from domain.log.codec import decode_event
from domain.log.ports import EventLog
from domain.log.record import AGENT_STREAM, EventFilter, LogHead, RecordedEvent
from domain.values import AgentId, WorkerId

#: Events of workers and models that are read to find the loaded models.
MODEL_EVENTS_MAX = 200
_MODEL_TYPES = tuple(
    cls.__name__ for cls in (ModelLoaded, ModelUnloaded, WorkerStopped, WorkerLost)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAgent:
    """An agent of the listed jobs.

    Attributes:
        open_jobs: Those of them that had not ended.
        context_tokens: Length of its context that was saved last; ``None`` if none was.
    """

    id: AgentId
    jobs: int
    open_jobs: int
    context_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PastState:
    """The state after an event.

    Attributes:
        event: The event; ``None`` if its position is 0 or in an archive.
        head: The last event of the log now.
        loaded: The model of each worker that had one.
        jobs: The jobs accepted last, newest first.
        has_more: Whether older jobs are left out.
        agents: The agents of these jobs, the one of the newest job first.
    """

    event: RecordedEvent | None
    position: int
    head: LogHead
    admission: AdmissionState
    loaded: dict[WorkerId, str]
    jobs: tuple[Job, ...]
    has_more: bool
    agents: tuple[PastAgent, ...]


def read_past_state(log: EventLog, *, at: int | None, jobs_max: int) -> PastState:
    """Return the state after the event at a position.

    Args:
        at: The position; one behind the end of the log means its end, as ``None`` does.

    Raises:
        LogUnavailable: The log cannot be read.
        CorruptLog: An event cannot be read.
    """
    head = log.head()
    position = head.position if at is None else min(at, head.position)
    before = position + 1
    submitted = log.select_before(
        EventFilter(types=[JobSubmitted.__name__]), before=before, limit=jobs_max + 1
    )
    listed = submitted[max(0, len(submitted) - jobs_max) :]
    jobs = fold_jobs_as_of(
        event for first in listed for event in log.load(first.stream) if event.position <= position
    ).jobs
    last = log.select_before(EventFilter(), before=before, limit=1)
    return PastState(
        event=last[0] if last and last[0].position == position else None,
        position=position,
        head=head,
        admission=_admission(log, before),
        loaded=_loaded(log, before),
        jobs=jobs,
        has_more=len(submitted) > len(listed),
        agents=tuple(_agents(log, jobs, before)),
    )


def _admission(log: EventLog, before: int) -> AdmissionState:
    wanted = EventFilter(stream=ENGINE_STREAM, types=tuple(ADMISSION_AFTER))
    last = log.select_before(wanted, before=before, limit=1)
    return ADMISSION_AFTER[last[0].type] if last else AdmissionState.OPEN


def _loaded(log: EventLog, before: int) -> dict[WorkerId, str]:
    loaded: dict[WorkerId, str] = {}
    recorded = log.select_before(
        EventFilter(types=_MODEL_TYPES), before=before, limit=MODEL_EVENTS_MAX
    )
    for one in recorded:
        event = decode_event(one.type, one.schema_version, one.data)
        match event:
            case ModelLoaded():
                loaded[event.worker] = event.model
            case ModelUnloaded() | WorkerStopped() | WorkerLost():
                loaded.pop(event.worker, None)
            case _:
                raise AssertionError(one.type)
    return loaded


def _agents(log: EventLog, jobs: tuple[Job, ...], before: int) -> list[PastAgent]:
    by_agent: dict[str, list[Job]] = {}
    for job in jobs:
        if job.submitted.agent is not None:
            by_agent.setdefault(job.submitted.agent, []).append(job)
    return [
        PastAgent(
            id=AgentId(agent),
            jobs=len(own),
            open_jobs=sum(not job.status.is_terminal for job in own),
            context_tokens=_context_tokens(log, agent, before),
        )
        for agent, own in by_agent.items()
    ]


def _context_tokens(log: EventLog, agent: str, before: int) -> int | None:
    wanted = EventFilter(stream=AGENT_STREAM + agent, types=[AgentCacheSaved.__name__])
    last = log.select_before(wanted, before=before, limit=1)
    return int(last[0].data["tokens"]) if last else None
