"""How much one agent may ask for, whoever sends it."""

from __future__ import annotations

from dataclasses import dataclass, field

from api.access.rate_limits import Rate
from domain.errors import RateLimited
from domain.job.listing import JobViews
from domain.values import AgentId, JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentScope:
    """Limits that hold for every agent by itself; requests without an agent pass.

    Attributes:
        rate: Generations asked for per minute.
        jobs_at_once: Open jobs, read from the log, so that they outlive this process and count
            whichever way they were sent in. ``None``: any.
    """

    rate: Rate = field(default_factory=lambda: Rate(None, whose="agent"))
    jobs_at_once: int | None = None

    def knock(self, agent: AgentId | None) -> None:
        """Count a request.

        Raises:
            RateLimited: Too many within a minute.
        """
        if agent is not None:
            self.rate.take(agent)

    def require_place(self, agent: AgentId | None, views: JobViews, jobs: int = 1) -> None:
        """Refuse jobs where the agent has enough open ones; blocks.

        Callers that check at the same time may overshoot by their number.

        Raises:
            RateLimited: Naming the limit.
        """
        most = self.jobs_at_once
        if agent is None or most is None:
            return
        pages = (
            views.page(limit=most, agent=agent, status=status)
            for status in (JobStatus.QUEUED, JobStatus.RUNNING)
        )
        if sum(len(page.jobs) for page in pages) + jobs > most:
            message = f"this agent may have {most} jobs open at once"
            raise RateLimited(message)
