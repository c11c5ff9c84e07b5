"""The sequences that run and those that wait for room in the batch."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from domain.chat.items import Progress
from worker.engine.ports import ModelRunner, is_device_error
from worker.engine.scheduling.quarantine import Quarantine
from worker.engine.scheduling.waiting_queue import WaitingQueue
from worker.engine.sequence import Sequence

_log = structlog.get_logger(__name__)


class SequenceScheduler:
    """Admits waiting sequences to the batch. Only the engine thread uses it.

    Args:
        places: Most sequences that run at once.
        window_s: Length of the ``BatchWindow``, in seconds.
        on_progress: Reports the place of a waiting sequence.
        on_failure: Ends a sequence that the runner refuses.
    """

    def __init__(
        self,
        *,
        places: int,
        window_s: float,
        on_progress: Callable[[Sequence, Progress], None],
        on_failure: Callable[[Sequence, Exception], None],
    ) -> None:
        self._places = places
        self._on_progress = on_progress
        self._on_failure = on_failure
        self._waiting: WaitingQueue[Sequence] = WaitingQueue(window_s)
        #: The sequences in the batch, by uid.
        self.running: dict[int, Sequence] = {}
        #: The sequences of a failed step.
        self.quarantine: Quarantine[Sequence] = Quarantine(lambda one: one.task.job_id)

    def set_window(self, window_s: float) -> None:
        """Set the length of the batch window, in seconds; any thread may call it."""
        self._waiting.window.window_s = window_s

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until there is work; ``None`` until the next message."""
        return 0.0 if self.running else self._waiting.wait_s(now)

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait for a place."""
        cost = len(sequence.admission.tokens) - sequence.task.prompt.cached_tokens
        self._waiting.add(sequence, cost=cost, at=sequence.times.submitted)
        ahead = len(self.running) + len(self._waiting) - self._places
        if ahead > 0:
            self._on_progress(sequence, Progress(phase="queued", done=0, total=ahead))

    def admit(self, runner: ModelRunner, now: float) -> None:
        """Insert waiting sequences in the order of the queue, while there is room."""
        quarantine = self.quarantine
        places = 1 if quarantine.is_active else self._places
        self._waiting.admit(
            now,
            places - len(self.running),
            must_wait=lambda one: not quarantine.admits(one) or runner.must_wait(one.admission),
            join=lambda sequence: self._insert(sequence, runner, now),
        )

    def put_back(self, sequence: Sequence, *, is_alone: bool = False) -> None:
        """Let a sequence that left the batch wait for a place again, before all others.

        Args:
            sequence: It continues after its last token.
            is_alone: Whether its prompt is prefilled alone then.
        """
        if sequence.uid is not None:
            self.running.pop(sequence.uid, None)
        sequence.prepare_resume(is_alone=is_alone)
        self._waiting.put_back(sequence)

    def withdraw(self, sequence: Sequence, runner: ModelRunner) -> None:
        """Remove a sequence from the batch or from the queue."""
        self.quarantine.forget(sequence)
        if sequence.uid is not None and self.running.pop(sequence.uid, None) is not None:
            runner.remove(sequence.uid)
        else:
            self._waiting.remove(sequence)

    def clear(self) -> tuple[list[Sequence], list[Sequence]]:
        """Forget all sequences and return those that ran and those that waited."""
        running = list(self.running.values())
        self.running.clear()
        return running, self._waiting.clear()

    def _insert(self, sequence: Sequence, runner: ModelRunner, now: float) -> bool:
        try:
            admitted = runner.insert(sequence.admission)
        except Exception as error:
            if is_device_error(error):
                raise
            _log.exception("admission_failed", job=sequence.task.job_id)
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
        sequence.uid = admitted.uid
        self.running[admitted.uid] = sequence
        return True
