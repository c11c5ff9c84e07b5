"""The sequences that run and those that wait for room in the batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Many

import structlog

from domain.chat.items import Progress
from domain.engine.control import EngineValues
from domain.engine.figures import RowFigures, WorkCounts
from domain.kv.owned_tokens import cache_ids
from domain.values import Priority, WaitingFor, WaitingJob
from ops.observe.exposition import HistogramRecorder
from ops.observe.families import BATCH_BOUNDS
from worker.engine.ports import CachedPrefix, ModelRunner, is_device_error
from worker.engine.scheduling.quarantine import Quarantine
from worker.engine.scheduling.step_watch import StepKind, StepSize
from worker.engine.scheduling.waiting_queue import BatchRoom, Turn, WaitingQueue
from worker.engine.sequence import Sequence

_log = structlog.get_logger(__name__)

#: Cost of reading a token from the disk, as a share of the cost of computing it.
READ_COST = 0.05
#: Longest time for which the costs of waiting sequences stay as they are, in seconds.
COSTS_FRESH_S = 1.0
#: Least time between two reports of the places of waiting sequences, in seconds.
REPORT_S = 0.25
#: How often one batch sequence makes room for interactive work; then it runs to its end. One that
#: was passed too often while it waited is not preempted either.
PREEMPTIONS_MAX = 3
#: Time in which the disk saves what a preempted sequence leaves, so that its memory can be
#: evicted, before the next one is preempted; in seconds.
PREEMPTION_PAUSE_S = 0.05


class SequenceScheduler:
    """Admits waiting sequences to the batch. Only the engine thread uses it.

    Sequences whose context is in memory are preferred, so that contexts that do not fit together
    take turns; ``FairQueue`` bounds how long the others wait. The later attempts of jobs, whose
    clients may have read half an answer, are due at once. Interactive work comes before batch work,
    and preempts the youngest batch sequence where it lacks memory or a place.

    Args:
        places: Most sequences that run at once.
        on_progress: Reports the place of a waiting sequence.
        on_failure: Ends a sequence that the runner refuses.
    """

    def __init__(
        self,
        *,
        places: int,
        window_s: float,
        cached_prefix: Callable[[Many[int]], CachedPrefix],
        on_progress: Callable[[Sequence, Progress], None],
        on_failure: Callable[[Sequence, Exception], None],
    ) -> None:
        self._places = places
        self._cached_prefix = cached_prefix
        self._on_progress = on_progress
        self._on_failure = on_failure
        self._waiting: WaitingQueue[Sequence] = WaitingQueue(window_s)
        #: The running sequences, by uid, when the costs of the waiting ones were computed.
        self._costs_with: set[int] = set()
        #: Until when the costs are used.
        self._costs_fresh_until = -math.inf
        self._reported_at = -math.inf
        self._preempted_at = -math.inf
        #: The sequences in the batch, by uid.
        self.running: dict[int, Sequence] = {}
        #: What the engine has done so far; replaced as a whole.
        self.counts = WorkCounts()
        #: The sequences that got a token, of each step.
        self.batch_sizes = HistogramRecorder(BATCH_BOUNDS)
        #: The sequences of a failed step.
        self.quarantine: Quarantine[Sequence] = Quarantine(lambda one: one.task.job_id)

    def tune(self, values: EngineValues) -> None:
        """Change the places and the batch window; running sequences keep their places."""
        self._places = values.max_batch_size
        self._waiting.window.window_s = values.batch_window_ms / 1000

    def waiting_jobs(self) -> tuple[WaitingJob, ...]:
        """Return the waiting jobs in their order; any thread may call it."""
        return tuple(
            WaitingJob(
                id=sequence.task.job_id,
                waiting_for=reason,
                position=position,
                priority=sequence.task.priority,
            )
            for position, (sequence, reason) in enumerate(self._waiting.reasons.items())
        )

    def row_figures(self, now: float) -> tuple[RowFigures, ...]:
        """Return what the running sequences do; any thread may call it."""
        return tuple(sequence.figures(now) for sequence in list(self.running.values()))

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until there is work; ``None`` until the next message."""
        return 0.0 if self.running else self._waiting.wait_s(now)

    def step_size(self) -> StepSize:
        """Return the work of the next step."""
        rows = len(self.running)
        # What the cache restores is not known here: a limit and not an estimate.
        unread = sum(len(one.admission.tokens) for one in self.running.values() if not one.decoded)
        return StepSize(StepKind.PREFILL if unread else StepKind.DECODE, rows, unread + rows)

    def admission_size(self) -> StepSize:
        """Return the work of the next admission."""
        waiting = len(self._waiting)
        return StepSize(StepKind.ADMIT, waiting, waiting)

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait for a place."""
        cost = len(sequence.admission.tokens) - sequence.task.prompt.cached_tokens
        self._waiting.add(
            sequence,
            cost=cost,
            now=sequence.times.submitted,
            rank=_rank(sequence),
            is_due=sequence.task.attempt > 1,
        )

    def admit(self, runner: ModelRunner, now: float) -> None:
        """Insert waiting sequences in the order of the queue, while there is room."""
        if not len(self._waiting):
            return
        places = self._free_places()
        if places > 0 and len(self._waiting) > 1:
            self._refresh_costs(now)
        room: BatchRoom[Sequence] = BatchRoom(
            has_place=lambda sequence: self._has_place(sequence, runner, now),
            must_wait=lambda sequence: self._must_wait(sequence, runner),
            join=lambda turn: self._join(turn, runner, now),
        )
        self._waiting.admit(now, places, room)
        self._report(now)

    def put_back(
        self, sequence: Sequence, *, is_alone: bool = False, is_cold: bool = False
    ) -> None:
        """Let a sequence that left the batch wait for a place again, first of its priority.

        Args:
            sequence: It continues after its last token.
            is_alone: Whether its prompt is prefilled alone then.
            is_cold: Whether the cache is not used then.
        """
        if sequence.uid is not None:
            self.running.pop(sequence.uid, None)
        sequence.prepare_resume(is_alone=is_alone, is_cold=is_cold)
        self._waiting.put_back(sequence, rank=_rank(sequence))

    def withdraw(self, sequence: Sequence, runner: ModelRunner) -> None:
        """Remove a sequence from the batch or from the queue."""
        self.quarantine.forget(sequence)
        if sequence.uid is not None and self.running.pop(sequence.uid, None) is not None:
            runner.remove(sequence.uid)
        else:
            self._waiting.remove(sequence)

    def park_all(self, runner: ModelRunner) -> None:
        """Remove the running sequences from the batch, so that their contexts can be saved."""
        for uid in self.running:
            runner.remove(uid)

    def clear(self) -> tuple[list[Sequence], list[Sequence]]:
        """Forget all sequences and return those that ran and those that waited."""
        running = list(self.running.values())
        self.running.clear()
        return running, self._waiting.clear()

    def _free_places(self) -> int:
        return (1 if self.quarantine.is_active else self._places) - len(self.running)

    def _must_wait(self, sequence: Sequence, runner: ModelRunner) -> WaitingFor | None:
        if not self.quarantine.admits(sequence):
            return WaitingFor.PLACE
        return runner.must_wait(sequence.admission)

    def _refresh_costs(self, now: float) -> None:
        """Compute the costs again if other contexts may be in memory than before."""
        if self.running.keys() != self._costs_with or now >= self._costs_fresh_until:
            self._waiting.set_costs(self._cost)
            self._costs_with = set(self.running)
            self._costs_fresh_until = now + COSTS_FRESH_S

    def _cost(self, sequence: Sequence) -> float:
        tokens = sequence.admission.tokens
        known = self._cached_prefix(cache_ids(tokens))
        return len(tokens) - known.tokens + READ_COST * (known.tokens - known.resident)

    def _has_place(self, sequence: Sequence, runner: ModelRunner, now: float) -> bool:
        if self._free_places() > 0:
            return True
        victim = self._victim_for(sequence)
        if victim is None or self._must_wait(sequence, runner) is not None:
            return False
        self._preempt(victim, runner, now)
        return True

    def _join(self, turn: Turn[Sequence], runner: ModelRunner, now: float) -> bool:
        sequence = turn.item
        if _rank(sequence) > turn.rank:
            # Interactive work has passed it often enough.
            sequence.preemptions = PREEMPTIONS_MAX
        if self._insert(sequence, runner, now):
            return True
        victim = self._victim_for(sequence)
        if victim is None or now - self._preempted_at < PREEMPTION_PAUSE_S:
            return False
        self._preempt(victim, runner, now)
        return self._insert(sequence, runner, now)

    def _victim_for(self, sequence: Sequence) -> Sequence | None:
        """Return the youngest batch sequence if it may be preempted for ``sequence``."""
        if sequence.task.priority is not Priority.INTERACTIVE:
            return None
        victims = [
            one
            for one in self.running.values()
            if one.task.priority is Priority.BATCH and one.preemptions < PREEMPTIONS_MAX
        ]
        return max(victims, key=lambda one: one.admission.arrival, default=None)

    def _preempt(self, sequence: Sequence, runner: ModelRunner, now: float) -> None:
        assert sequence.uid is not None, "only a running sequence can be preempted"
        _log.info("preempted_for_interactive", **sequence.log_ids)
        runner.remove(sequence.uid)
        sequence.preemptions += 1
        self.put_back(sequence)
        self._preempted_at = now

    def _insert(self, sequence: Sequence, runner: ModelRunner, now: float) -> bool:
        try:
            admitted = runner.insert(sequence.admission)
        except Exception as error:
            if is_device_error(error):
                raise
            _log.exception("admission_failed", **sequence.log_ids)
            self.quarantine.forget(sequence)
            self._on_failure(sequence, error)
            return True
        if admitted is None:
            return False
        if sequence.times.admitted is None:
            sequence.times.admitted = now
            prompt_tokens = len(sequence.task.prompt.tokens)
            sequence.cached_tokens = min(admitted.cached_tokens, prompt_tokens)
            if admitted.block_tokens:
                sequence.kept_tokens = prompt_tokens - prompt_tokens % admitted.block_tokens
        sequence.uid, sequence.reported = admitted.uid, None
        self.running[admitted.uid] = sequence
        return True

    def _report(self, now: float) -> None:
        """Report the places that have changed, at intervals; a first place at once."""
        is_due = now - self._reported_at >= REPORT_S
        if is_due:
            self._reported_at = now
        for position, (sequence, reason) in enumerate(self._waiting.reasons.items()):
            place = reason, position
            if place == sequence.reported or not (is_due or sequence.reported is None):
                continue
            sequence.reported = place
            progress = Progress(phase="queued", done=0, total=position, waiting_for=reason)
            self._on_progress(sequence, progress)


def _rank(sequence: Sequence) -> int:
    return int(sequence.task.priority is Priority.BATCH)
