"""Makes the rules of jobs, batches, agents, keys and webhooks from the settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from api.access.rate_limits import AgentLimits, KeyJobs, Rate
from api.access.webhook_policy import WebhookPolicy
from api.background.batches import BatchRules
from api.protocols.shared.efforts import Efforts
from api.submission.job_rules import JobRules
from domain.events.event import Event
from domain.model.on_demand import OnDemandRules
from domain.values import Owner
from ops.adapters.data_dir.free_space import DiskFloor, floor_of
from ops.setting_groups.models import ModelsSettings
from ops.setting_groups.service import (
    BatchSettings,
    JobSettings,
    ReasoningSettings,
    ServerSettings,
    WebhookSettings,
)
from ops.settings import Settings


def efforts_of(reasoning: ReasoningSettings) -> Efforts:
    """Return the shares of reasoning efforts."""
    return Efforts(
        minimal=reasoning.minimal_share,
        low=reasoning.low_share,
        medium=reasoning.medium_share,
        answer=reasoning.answer_share,
    )


def batch_rules_of(batches: BatchSettings) -> BatchRules:
    """Return the limits of batches and files."""
    return BatchRules(
        open_max=batches.open_max,
        lines_max=batches.lines_max,
        file_lines_max=batches.file_lines_max,
        file_bytes_max=batches.file_bytes_max,
        window_s=batches.window_s,
        results_kept_s=batches.results_kept_s,
        file_kept_s=batches.file_kept_s,
    )


def on_demand_of(models: ModelsSettings) -> OnDemandRules | None:
    """Return the limits of swaps that jobs cause; ``None`` if jobs cause none."""
    if not models.swaps_on_demand:
        return None
    return OnDemandRules(residence_min_s=models.residence_min_s, wait_max_s=models.wait_max_s)


def webhook_policy_of(webhooks: WebhookSettings) -> WebhookPolicy:
    """Return which URLs a request may name."""
    return WebhookPolicy(from_requests=webhooks.from_requests, allow_hosts=webhooks.allow_hosts)


def agent_limits_of(server: ServerSettings) -> AgentLimits:
    """Return the limits of every agent."""
    return AgentLimits(
        rate=Rate(server.agent_requests_per_minute, whose="agent"),
        jobs_at_once=server.agent_jobs_at_once,
    )


def job_rules_of(jobs: JobSettings) -> JobRules:
    """Return the rules of every job."""
    return JobRules(
        attempts_max=jobs.attempts_max,
        worker_deaths_max=jobs.worker_deaths_max,
        queue_limit=jobs.queue_limit,
        batch_queue_limit=jobs.batch_queue_limit,
        memory_wait_s=jobs.memory_wait_s,
        start_within_s=jobs.start_within_s,
        finish_within_s=jobs.finish_within_s,
        disconnect_grace_s=jobs.disconnect_grace_s,
        dedup_grace_s=jobs.dedup_grace_s,
        join_window_s=jobs.join_window_s,
    )


def disk_floor_of(settings: Settings) -> DiskFloor:
    """Return the floor of the disk that has the event log."""
    return floor_of(settings.disk, log_file=settings.log_file, data_dir=settings.data_dir)


def work_admission(
    server: ServerSettings, disk: DiskFloor, open_jobs: Callable[[Owner], int]
) -> Callable[[Sequence[Event]], None]:
    """Return the check of new work: the disk has space for it, and the key may have more jobs."""
    jobs = KeyJobs(open_jobs=open_jobs, at_once=server.key_jobs_at_once)

    def admit(events: Sequence[Event]) -> None:
        disk.require_space()
        jobs.admit(events)

    return admit
