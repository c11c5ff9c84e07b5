"""Makes the job of a parsed request: its rules, its model, its webhook and its owner."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from api.access.ownership import OwnershipCheck
from api.access.rate_limits import AgentLimits
from api.access.webhook_policy import WebhookPolicy
from api.http.messages import Request
from api.http.request_headers import IDEMPOTENCY_KEY
from api.protocols.shared.parsed_request import ParsedRequest
from api.submission.job_limits import JobLimits
from api.submission.model_binding import ModelBinding
from domain.chat.schema_bounds import require_bounded_schemas
from domain.events.job import JobSubmitted
from domain.job.new_job import UNSEALED, NewJob
from domain.ports import Clock
from domain.usecases.jobs.submit import idempotency_digest
from domain.values import rfc3339

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
