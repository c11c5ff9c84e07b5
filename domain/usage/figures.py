"""Counts and sums of ended jobs; all are integers, so a sum does not depend on its order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFigures:
    """Counts and sums of one hour, model or agent.

    A job is counted when it ends; a job that ends again after a retry is counted again, so no
    figure ever decreases. Durations are in microseconds.

    Attributes:
        completed: Jobs with a complete answer.
        failed: Jobs that ended without an answer.
        cancelled: Jobs that ended on request.
        expired: Jobs that ended at a deadline.
        attempts: Attempts that began.
        failed_attempts: Attempts that ended without an answer; dead workers record none.
        cached_tokens: The part of them that came from the cache.
        completion_tokens: Of the answers, reasoning included.
        reasoning_tokens: The part of the answers that is reasoning.
        kept_tokens: The part of the prompts in whole blocks that are kept.
        hits: Contexts of agents that were restored.
        ram_tokens: Restored tokens that were in memory.
        disk_tokens: Restored tokens that were read from disk.
        misses_diverged: Saved contexts that the prompt did not continue.
        misses_gone: Saved contexts whose blocks were evicted.
        misses_model_changed: Saved contexts of another model.
        missed_tokens: Saved tokens that were computed again.
        started_jobs: Ended jobs with an attempt: the count of ``queue_us``.
        timed_jobs: Ended jobs with a first token: the count of ``first_token_us``, ``prefill_us``
            and ``decode_us``.
        queue_us: From acceptance to the first attempt.
        restore_us: Of the restored contexts; their count is ``hits``.
        prefill_us: Of prompts, the restored part included.
        first_token_us: From the engine's acceptance of a job to its first token.
        decode_us: From the first token to the last.
        total_us: From acceptance to the end, of all ended jobs.
    """

    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    attempts: int = 0
    failed_attempts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    kept_tokens: int = 0
    hits: int = 0
    ram_tokens: int = 0
    disk_tokens: int = 0
    misses_diverged: int = 0
    misses_gone: int = 0
    misses_model_changed: int = 0
    missed_tokens: int = 0
    started_jobs: int = 0
    timed_jobs: int = 0
    queue_us: int = 0
    restore_us: int = 0
    prefill_us: int = 0
    first_token_us: int = 0
    decode_us: int = 0
    total_us: int = 0

    @property
    def jobs(self) -> int:
        """Jobs that ended."""
        return self.completed + self.failed + self.cancelled + self.expired

    @property
    def misses(self) -> int:
        """Saved contexts that were not reused in full."""
        return self.misses_diverged + self.misses_gone + self.misses_model_changed

    @property
    def cached_ratio(self) -> float:
        """The share of prompt tokens that came from the cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def __add__(self, other: UsageFigures) -> UsageFigures:
        """Return both together."""
        return UsageFigures(
            **{name: getattr(self, name) + getattr(other, name) for name in FIGURES}
        )

    def as_mapping(self) -> Mapping[str, int]:
        """Return the figures by name."""
        return {name: getattr(self, name) for name in FIGURES}


#: Names of the figures, in order.
FIGURES: Final = tuple(field.name for field in fields(UsageFigures))
