"""Rates of the last hour, from samples of what the workers have done. Pure, bounded in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from domain.engine.figures import WorkCounts
from domain.values import WorkerId

#: Length of one step of the history, in seconds.
STEP_S: Final = 5
#: Seconds that are kept, and the steps in them.
KEPT_S: Final = 3600
STEPS_KEPT: Final = KEPT_S // STEP_S
#: Samples for the rates of now, and the seconds over which these are means.
RECENT_KEPT: Final = 128
RATE_S: Final = 5.0
#: Seconds over which the means of finished prompts are taken, since they are rarer than tokens.
PROMPTS_S: Final = 60.0
#: Longest time between two samples over which a rate is computed, in seconds.
GAP_S_MAX: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The figures at one instant.

    Attributes:
        at_s: Seconds since 1970.
        counts: What each worker has done since it started.
        queue_depth: Waiting jobs.
    """

    at_s: float
    counts: Mapping[WorkerId, WorkCounts]
    running: int
    queue_depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Means over a time; ``None`` where nothing was measured.

    Attributes:
        tokens_per_s: Generated tokens.
        prompt_tokens_per_s: Computed tokens of prompts.
        cached_share: Share of the prompts that the cache held.
        queue_depth: Waiting jobs.
    """

    tokens_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    first_token_ms: float | None = None
    cached_share: float | None = None
    running: float | None = None
    queue_depth: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
    """The rates of one step that begins at ``at_s``, seconds since 1970."""

    at_s: int
    rates: Rates


@dataclass(slots=True)
class _Step:
    """Sums of one step: what was done in ``seconds``, and what ``samples`` showed."""

    at_s: int
    done: WorkCounts = WorkCounts()
    seconds: float = 0.0
    running: int = 0
    queue_depth: int = 0
    samples: int = 0

    def __add__(self, other: _Step) -> _Step:
        return _Step(
            at_s=self.at_s,
            done=self.done + other.done,
            seconds=self.seconds + other.seconds,
            running=self.running + other.running,
            queue_depth=self.queue_depth + other.queue_depth,
            samples=self.samples + other.samples,
        )

    def rates(self) -> Rates:
        done, seconds = self.done, self.seconds
        return Rates(
            tokens_per_s=done.generated_tokens / seconds if seconds else None,
            prompt_tokens_per_s=done.computed_tokens / seconds if seconds else None,
            first_token_ms=done.first_token_mean_ms,
            cached_share=done.cached_share,
            running=self.running / self.samples if self.samples else None,
            queue_depth=self.queue_depth / self.samples if self.samples else None,
        )


class RateHistory:
    """Samples, folded into steps of ``STEP_S``; the caller holds a lock.

    A worker that is seen for the first time has no rate before its next sample, since it may have
    worked before this process started.
    """

    def __init__(self) -> None:
        self._steps: deque[_Step] = deque(maxlen=STEPS_KEPT)
        self._recent: deque[_Step] = deque(maxlen=RECENT_KEPT)
        self._last: Sample | None = None

    def record(self, sample: Sample) -> None:
        """Add a sample; one that is not newer than the last is ignored."""
        last = self._last
        if last is not None and sample.at_s <= last.at_s:
            if last.at_s - sample.at_s < GAP_S_MAX:
                return
            # The clock of the machine was set back: what was recorded later is not known now.
            self._steps.clear()
            self._recent.clear()
            last = None
        self._last = sample
        step = _Step(
            at_s=int(sample.at_s) // STEP_S * STEP_S,
            running=sample.running,
            queue_depth=sample.queue_depth,
            samples=1,
        )
        if last is not None and sample.at_s - last.at_s <= GAP_S_MAX:
            step.done, step.seconds = _done(last, sample), sample.at_s - last.at_s
        self._recent.append(step)
        if self._steps and self._steps[-1].at_s == step.at_s:
            step = self._steps.pop() + step
        self._steps.append(step)

    def now(self) -> Rates:
        """Return the rates of the last seconds; those of prompts over the last minute."""
        recent = list(self._recent)
        tokens, prompts = _latest(recent, RATE_S).rates(), _latest(recent, PROMPTS_S).rates()
        return replace(
            tokens, first_token_ms=prompts.first_token_ms, cached_share=prompts.cached_share
        )

    def points(self, *, since_s: float, step_s: int = STEP_S) -> tuple[RatePoint, ...]:
        """Return the rates of the steps since an instant, the oldest first.

        Args:
            since_s: Seconds since 1970.
            step_s: Length of a step in seconds, a multiple of ``STEP_S``.
        """
        merged: list[_Step] = []
        for step in self._steps:
            if step.at_s < since_s:
                continue
            at_s = step.at_s // step_s * step_s
            if merged and merged[-1].at_s == at_s:
                merged[-1] += step
            else:
                merged.append(_Step(at_s=at_s) + step)
        return tuple(RatePoint(at_s=step.at_s, rates=step.rates()) for step in merged)


def _done(last: Sample, sample: Sample) -> WorkCounts:
    """Return what the workers did between two samples."""
    done = WorkCounts()
    for worker, counts in sample.counts.items():
        before = last.counts.get(worker)
        if before is not None:
            done += counts.since(before)
    return done


def _latest(steps: list[_Step], seconds: float) -> _Step:
    """Return the sum of the last steps, of at least ``seconds`` where there are so many."""
    total = _Step(at_s=0)
    for step in reversed(steps):
        if total.seconds >= seconds:
            break
        total += step
    return total
