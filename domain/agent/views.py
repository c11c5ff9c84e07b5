"""The lists of agents: their port, and the fold of a whole log that answers it for the past."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol

from domain.agent.state import Agent, agent_of, evolve
from domain.events.job import JobSubmitted
from domain.job.state import Job, fold_recorded, is_job_event
from domain.log.record import RecordedEvent
from domain.values import AgentId, JobStatus, Owner

#: Most jobs of an agent that ``AgentViews.latest_jobs`` returns.
LATEST_JOBS_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPage:
    """A page of agents; ``has_more``: whether others follow."""

    agents: tuple[Agent, ...]
    has_more: bool


class AgentViews(Protocol):
    """The agents projection. Each method raises ``LogUnavailable``."""

    def get(self, agent: AgentId) -> Agent | None:
        """Return an agent, if an event names it."""

    def page(
        self,
        *,
        limit: int,
        before: AgentId | None = None,
        is_registered: bool = False,
        owner: Owner | None = None,
    ) -> AgentPage:
        """Return agents, the latest seen first.

        Args:
            limit: Most rows, from 1.
            before: Only agents after this one; an unknown name gives an empty page.
            is_registered: Only agents with a history of their own, the latest created first.
        """

    def latest_jobs(self, agent: AgentId) -> tuple[Job, ...]:
        """Return the latest jobs of an agent, oldest first, at most ``LATEST_JOBS_MAX``."""


@dataclass(slots=True)
class FoldedAgents:
    """``AgentViews`` of the past: the fold of every event of the log in order."""

    _agents: dict[AgentId, Agent] = field(default_factory=dict)
    #: Jobs that can still change or are among the latest; a completed job cannot be retried.
    _jobs: dict[str, Job] = field(default_factory=dict)
    _latest: dict[AgentId, list[str]] = field(default_factory=dict)

    def fold(self, recorded: RecordedEvent) -> None:
        """Take the next event of the log."""
        job = self._job_after(recorded)
        agent = agent_of(recorded, job)
        if agent is None:
            return
        before = self._agents.get(agent, Agent(id=agent))
        self._agents[agent] = evolve(before, recorded, job)
        if recorded.type == JobSubmitted.__name__:
            latest = self._latest.setdefault(agent, [])
            latest.append(recorded.stream)
            if len(latest) > LATEST_JOBS_MAX:
                self._drop(latest.pop(0))

    def get(self, agent: AgentId) -> Agent | None:
        """See ``AgentViews.get``."""
        return self._agents.get(agent)

    def page(
        self,
        *,
        limit: int,
        before: AgentId | None = None,
        is_registered: bool = False,
        owner: Owner | None = None,
    ) -> AgentPage:
        """See ``AgentViews.page``."""
        place = attrgetter("created_position" if is_registered else "position")
        found = [one for one in self._agents.values() if place(one) and owner in {None, one.owner}]
        found.sort(key=place, reverse=True)
        if before is not None:
            names = [one.id for one in found]
            found = found[names.index(before) + 1 :] if before in names else []
        return AgentPage(agents=tuple(found[:limit]), has_more=len(found) > limit)

    def latest_jobs(self, agent: AgentId) -> tuple[Job, ...]:
        """See ``AgentViews.latest_jobs``."""
        return tuple(self._jobs[job] for job in self._latest.get(agent, ()))

    def _job_after(self, recorded: RecordedEvent) -> Job | None:
        if not is_job_event(recorded):
            return None
        before = self._jobs.get(recorded.stream)
        if before is None and recorded.type != JobSubmitted.__name__:
            return None  # without an agent, or dropped
        job = fold_recorded(before, recorded)
        if job.submitted.agent is None:
            return None
        self._jobs[recorded.stream] = job
        if before is not None and job.id not in self._latest[AgentId(job.submitted.agent)]:
            self._drop(job.id)
        return job

    def _drop(self, job: str) -> None:
        if self._jobs[job].status is JobStatus.COMPLETED:
            del self._jobs[job]


def fold_agents(events: Iterable[RecordedEvent]) -> FoldedAgents:
    """Return the agents after all events of the log."""
    agents = FoldedAgents()
    for event in events:
        agents.fold(event)
    return agents
