"""Reads recorded agents and the cache state of their contexts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from api.presenters.agents import ShownTurn, agent_cache_object, full_agent_object
from api.schemas.agents import AgentCache, AgentObject
from api.streaming.log_backfill import JobRecords
from domain.agent.state import Agent
from domain.log.record import AGENT_STREAM
from domain.not_found import AgentNotFound, PayloadMissing
from domain.usecases.agents import AgentRecords
from domain.values import AgentId, JobStatus, StreamName

#: Turns of the history of an agent.
HISTORY_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReader:
    """Reads agents; every method blocks."""

    agents: AgentRecords
    records: JobRecords

    def present(self, agent: Agent) -> AgentObject:
        """Return an agent with its profile and its latest turns."""
        try:
            profile = self.agents.profile_of(agent)
        except PayloadMissing:
            profile = None
        return full_agent_object(
            agent,
            self.agents.last_status(agent),
            profile=profile,
            history=self._history(agent),
        )

    def load_cache(self, agent_id: AgentId) -> AgentCache:
        """Return the cache state of the context of an agent, registered or not.

        Raises:
            AgentNotFound: The agent has neither events nor jobs, or was deleted.
        """
        recorded = self.records.log.load(StreamName(AGENT_STREAM + agent_id))
        jobs = self.records.views.page(limit=1, agent=agent_id).jobs
        latest = jobs[0].id if jobs else None
        diagnosis = None if latest is None else self.records.diagnose(latest)
        shown = agent_cache_object(agent_id, recorded, latest, diagnosis)
        if shown is None or not (recorded or jobs):
            raise AgentNotFound(agent_id)
        return shown

    def is_registered(self, agent_id: AgentId) -> bool:
        """Return whether an agent was created here; others only have events or jobs.

        Raises:
            AgentNotFound: It has neither.
        """
        stream = StreamName(AGENT_STREAM + agent_id)
        events = self.records.log.read_all(limit=1, stream=stream)
        if not events and not self.records.views.page(limit=1, agent=agent_id).jobs:
            raise AgentNotFound(agent_id)
        try:
            self.agents.load(agent_id)
        except AgentNotFound:
            return False
        return True

    def _history(self, agent: Agent) -> list[ShownTurn]:
        own = list(enumerate(agent.turns, start=agent.inherited + 1))
        turns: list[ShownTurn] = []
        for number, job in own[-HISTORY_MAX:]:
            view = self.records.views.get(job)
            turns.append((number, job, JobStatus.EXPIRED if view is None else view.status))
        return turns
