"""The list of agents as it was at some position of the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from domain.agent.views import TURNS_KEPT, AgentView, agent_of, project_agent, turn_of
from domain.events.job import JobSubmitted
from domain.job.state import Job, fold_recorded, is_job_event
from domain.log.record import RecordedEvent
from domain.values import AgentId, JobStatus


@dataclass(slots=True)
class Agents:
    """The fold of the list of agents; it takes every event of the log in order."""

    _views: dict[AgentId, AgentView] = field(default_factory=dict)
    #: Jobs that can still change or are among the latest turns; a completed job cannot be retried.
    _jobs: dict[str, Job] = field(default_factory=dict)
    _turns: dict[AgentId, list[str]] = field(default_factory=dict)

    def fold(self, recorded: RecordedEvent) -> None:
        """Take the next event of the log."""
        job = self._job_after(recorded)
        agent = agent_of(recorded, job)
        if agent is None:
            return
        self._views[agent] = project_agent(self._views.get(agent), agent, recorded, job)
        if recorded.type == JobSubmitted.__name__:
            turns = self._turns.setdefault(agent, [])
            turns.append(recorded.stream)
            if len(turns) > TURNS_KEPT:
                self._drop(turns.pop(0))

    def views(self) -> tuple[AgentView, ...]:
        """Return the agents, the latest seen first."""
        listed = sorted(self._views.values(), key=lambda view: -view.position)
        return tuple(
            replace(
                view,
                turns=tuple(turn_of(self._jobs[job]) for job in self._turns.get(view.id, ())),
            )
            for view in listed
        )

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
        if before is not None and job.id not in self._turns[AgentId(job.submitted.agent)]:
            self._drop(job.id)
        return job

    def _drop(self, job: str) -> None:
        if self._jobs[job].status is JobStatus.COMPLETED:
            del self._jobs[job]


def fold_agents(events: Iterable[RecordedEvent]) -> tuple[AgentView, ...]:
    """Return the agents of all events of the log, the latest seen first."""
    agents = Agents()
    for event in events:
        agents.fold(event)
    return agents.views()
