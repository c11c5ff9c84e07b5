"""The bars of a timeline: where the time of a job went, attempt by attempt. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from domain.job.timeline import Timeline, TimelineStep


class BarKind(StrEnum):
    """What a stretch of time was spent on."""

    QUEUED = "queued"
    RESTORE = "restore"
    PREFILL = "prefill"
    DECODE = "decode"
    #: An attempt whose phases are not recorded: it runs, or it ended without an answer.
    RUN = "run"
    #: An attempt whose worker died.
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineBar:
    """A stretch of time.

    Attributes:
        kind: What it was spent on.
        attempt: The attempt, or the one that was waited for.
        from_ms: Its begin, in milliseconds since the acceptance.
        to_ms: Its end; ``None`` while it lasts.
    """

    kind: BarKind
    attempt: int
    from_ms: float
    to_ms: float | None


def bars_of(timeline: Timeline) -> tuple[TimelineBar, ...]:
    """Return the bars of a timeline in order of time; they do not overlap."""
    builder = _BarBuilder()
    for step in timeline.steps:
        builder.take(step)
    builder.leave_open()
    return tuple(builder.bars)


@dataclass(slots=True)
class _BarBuilder:
    bars: list[TimelineBar] = field(default_factory=list)
    _started: int = 0
    _kind: BarKind | None = None
    _since_ms: float = 0.0

    def take(self, step: TimelineStep) -> None:
        match step.what:
            case "accepted" | "retried":
                self._begin(BarKind.QUEUED, step)
            case "attempt":
                self._close(step)
                self._started = step.attempt or self._started + 1
                self._begin(BarKind.RUN, step)
            case "prefill":
                # Between the begin of the attempt and this step, cached blocks are restored.
                self._close(step, as_kind=BarKind.RESTORE)
                self._begin(BarKind.PREFILL, step)
            case "first_token":
                self._close(step)
                self._begin(BarKind.DECODE, step)
            case "lost" | "attempt_failed":
                self._close(step, as_kind=BarKind.LOST if step.what == "lost" else None)
                self._begin(BarKind.QUEUED, step)
            case "completed" | "failed" | "cancelled" | "expired":
                self._close(step)
            case _:
                pass  # the job goes on as before

    def leave_open(self) -> None:
        if self._kind is not None:
            self._append(self._kind, None)

    def _begin(self, kind: BarKind, step: TimelineStep) -> None:
        self._kind, self._since_ms = kind, step.after_ms

    def _close(self, step: TimelineStep, *, as_kind: BarKind | None = None) -> None:
        if self._kind is not None and step.after_ms > self._since_ms:
            self._append(as_kind or self._kind, step.after_ms)
        self._kind = None

    def _append(self, kind: BarKind, to_ms: float | None) -> None:
        attempt = self._started + (kind is BarKind.QUEUED)
        self.bars.append(
            TimelineBar(kind=kind, attempt=attempt, from_ms=self._since_ms, to_ms=to_ms)
        )
