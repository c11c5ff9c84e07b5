"""Makes the job of a parsed request: its rules, its model, its webhook and its owner."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from api.access.job_limits import JobLimits
from api.access.ownership import OwnershipCheck
from api.access.rate_limits import AgentLimits
from api.access.webhook_policy import WebhookPolicy
from api.http.messages import Request
from api.http.request_headers import IDEMPOTENCY_KEY
from api.parsed_request import ParsedRequest
from domain.chat.schema_bounds import require_bounded_schemas
from domain.events.job import JobSubmitted
from domain.job.new_job import UNSEALED, NewJob
from domain.job.state import Job
from domain.model.presence import LoadedModels
from domain.model.registry import ModelRegistry
from domain.ports import Clock
from domain.usecases.jobs.submit import idempotency_digest
from domain.values import rfc3339


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBinding:
    """Finds the model of a request, and whether a worker has it.

    Attributes:
        registry: Returns the registered models.
        loaded: The models of the live workers.
    """

    registry: Callable[[], ModelRegistry]
    loaded: LoadedModels

    def bind(self, parsed: ParsedRequest) -> str | None:
        """Return the model that a request is bound to; ``None`` if it follows the loaded one.

        Raises:
            InvalidRequest: The model is of another kind.
            ModelNotFound: The name is unknown.
        """
        if not parsed.names_model:
            return None
        return self.registry().bind(parsed.chat.model, embeds=parsed.chat.embedding is not None)

    def require(self, command: NewJob) -> None:
        """Refuse a request that cannot wait for its model; blocks.

        Raises:
            ModelNotLoaded: No worker has the model.
        """
        if command.submitted.bound_model is not None and not command.submitted.waits_for_model:
            embeds = command.request.embedding is not None
            self.loaded.require(command.submitted.bound_model, embeds=embeds)

    def require_present(self, job: Job | None) -> None:
        """Refuse to read a job that waits for its model; blocks.

        Raises:
            ModelNotLoaded: No worker has the model.
        """
        if job is not None and job.submitted.bound_model is not None and not job.status.is_terminal:
            self.loaded.require(job.submitted.bound_model, embeds=job.kind == "embedding")

    def same(self, jobs: Iterable[Job], command: NewJob) -> tuple[Job, ...]:
        """Return the jobs of the same binding that do not wait for their model; blocks."""
        bound = command.submitted.bound_model
        return tuple(
            job
            for job in jobs
            if job.submitted.bound_model == bound and not self.loaded.awaits_model(job)
        )


#: Characters of a User-Agent that are kept.
CLIENT_CHARS_MAX: Final = 256
#: The dialect whose requests give agents their names; others send sessions of their clients.
_NAMING_PROTOCOL: Final = "jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCommands:
    """Makes jobs of requests.

    Attributes:
        limits: Limits of every job.
        agents: Limits of every agent.
        webhook_policy: Which URLs a request may name.
        models: Binds requests to models.
        ownership: Whose job a request makes.
        clock: For deadlines.
    """

    limits: JobLimits
    agents: AgentLimits
    webhook_policy: WebhookPolicy
    models: ModelBinding
    ownership: OwnershipCheck
    clock: Clock

    def of(
        self, parsed: ParsedRequest, request: Request, *, protocol: str, waits_for_model: bool
    ) -> NewJob:
        """Return the job of a request, without its digest; blocks.

        Raises:
            AgentExists: The agent belongs to another key.
            InvalidRequest: The idempotency key, the webhook or a strict schema is not valid.
            ModelNotFound: There is no model of that name.
            RateLimited: The agent sends too many requests.
        """
        client = request.headers.get("user-agent")
        key = IDEMPOTENCY_KEY.read(request)
        ignored = require_bounded_schemas(parsed.chat)
        request.marks.warning = "; ".join(ignored) or None
        limits = self.limits
        is_named = protocol == _NAMING_PROTOCOL
        identity = self.ownership.identify(request.caller, parsed.agent, is_named=is_named)
        self.agents.count_request(identity.agent)
        submitted = JobSubmitted(
            protocol=protocol,
            model=parsed.chat.model,
            request=UNSEALED,
            sampling=parsed.chat.sampling,
            max_tokens=parsed.chat.max_tokens,
            priority=parsed.priority,
            agent=identity.agent,
            attempts_max=limits.attempts_max,
            worker_deaths_max=limits.worker_deaths_max,
            idempotency=idempotency_digest(key, identity.keyspace) if key is not None else None,
            deadline=self._instant_in(parsed.start_within_s),
            finish_deadline=self._instant_in(parsed.finish_within_s),
            webhook=None if parsed.webhook is None else self.webhook_policy.url_of(parsed.webhook),
            bound_model=self.models.bind(parsed),
            waits_for_model=waits_for_model,
            trace=str(request.trace),
            owner=identity.owner,
            cache_owner=identity.cache_owner,
        )
        return NewJob(
            submitted=submitted,
            request=parsed.chat,
            correlation_id=request.id,
            client=client[:CLIENT_CHARS_MAX] if client else None,
            wire=parsed.wire,
            keyspace=identity.keyspace,
        )

    def _instant_in(self, seconds: float | None) -> str | None:
        if seconds is None:
            return None
        return rfc3339(self.clock.now() + timedelta(seconds=seconds))
