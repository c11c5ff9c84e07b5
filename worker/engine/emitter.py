"""The thread that turns token ids into text and stream items, apart from the engine thread.

Text assembly and publishing take as long as they take; the engine thread computes the next step
meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from functools import partial
from queue import Empty, SimpleQueue

import structlog

from domain.chat.generation import Outcome
from domain.chat.items import Failed, Progress, StreamItem
from domain.errors import EngineFailure, QueueUnavailable
from domain.job.ports import ItemSink
from domain.ports import Clock
from domain.values import StopReason
from worker.engine.ports import Finish, TokenLikelihood
from worker.engine.sequence import Sequence

_log = structlog.get_logger(__name__)

#: Most items buffered while the sink is unreachable: over four minutes at 200 tokens a second.
ITEMS_BUFFERED_MAX = 50_000
#: Seconds of an outage after which the waiting generations fail retryably.
OUTAGE_S_MAX = 30.0
#: Seconds until the first retry; they double with each failure up to the limit below.
BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 1.0

_UNREACHABLE = Failed(
    error=QueueUnavailable.code,
    message="the stream could not be written for too long",
    retryable=True,
)
#: Counted as a failure, unlike an outage: without a limit a job whose items cannot be stored would
#: never end.
_UNSTORED = Failed(
    error=EngineFailure.code, message="the items could not be stored", retryable=True
)


class Outbox:
    """Buffers items and outcomes and publishes them in order. Belongs to the emitter thread.

    Each publish costs a Redis script, a wake-up of the API and a write to each client, so the items
    of ``interval_s`` share one. The first item and the end of a generation are published at once.

    Args:
        interval_s: Seconds between two publishes; 0 publishes after each engine step.
    """

    def __init__(
        self,
        sink: ItemSink,
        deliver: Callable[[Sequence, Outcome], None],
        *,
        interval_s: float = 0.0,
    ) -> None:
        self._sink = sink
        self._deliver = deliver
        self._interval_s = interval_s
        self._next_at = 0.0
        self._items: list[tuple[Sequence, StreamItem]] = []
        self._outcomes: list[tuple[Sequence, Outcome]] = []
        self._unreachable_since: float | None = None
        self._retry_at = 0.0
        self._backoff_s = BACKOFF_S_MIN

    def add(self, sequence: Sequence, item: StreamItem) -> None:
        """Append an item; one without a number is dropped while the sink is unreachable."""
        if item.n is not None or self._unreachable_since is None:
            self._items.append((sequence, item))
        if item.n == sequence.task.first_item:
            self._next_at = 0.0

    def end(self, sequence: Sequence, outcome: Outcome) -> None:
        """Append an outcome, to deliver after the items appended so far."""
        self._outcomes.append((sequence, outcome))
        self._next_at = 0.0

    def is_empty(self) -> bool:
        """Whether no item or outcome waits."""
        return not self._items and not self._outcomes

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until the next publish, ``None`` if the outbox is empty."""
        if self.is_empty():
            return None
        return max(0.0, self._retry_at - now, self._next_at - now)

    def flush(self, now: float) -> list[tuple[Sequence, Failed]]:
        """Publish all buffered items in one call, if a publish is due.

        Returns:
            The generations to fail, and how: the sink was unreachable for too long, or is broken.
            Their items are dropped.
        """
        if now < self._retry_at:
            return self._give_up_if_overdue(now)
        if now < self._next_at:
            return []
        try:
            if self._items:
                self._next_at = now + self._interval_s
                self._sink.publish([(seq.task.job_id, item) for seq, item in self._items])
        except QueueUnavailable as error:
            self._record_failure(now, error)
            return self._give_up_if_overdue(now)
        except Exception:  # noqa: BLE001 - a sink may raise anything
            # Another kind of failure would repeat; the jobs must not wait for it.
            _log.exception("items_not_published", items=len(self._items))
            return self._drop_all(_UNSTORED)
        self._record_success()
        return []

    def _record_failure(self, now: float, error: QueueUnavailable) -> None:
        if self._unreachable_since is None:
            self._unreachable_since = now
            _log.warning("sink_unreachable", error=error.message, items=len(self._items))
            self._items = [entry for entry in self._items if entry[1].n is not None]
        self._retry_at = now + self._backoff_s
        self._backoff_s = min(BACKOFF_S_MAX, self._backoff_s * 2)

    def _give_up_if_overdue(self, now: float) -> list[tuple[Sequence, Failed]]:
        assert self._unreachable_since is not None, "a retry implies an outage"
        if now - self._unreachable_since < OUTAGE_S_MAX and len(self._items) < ITEMS_BUFFERED_MAX:
            return []
        self._unreachable_since = now
        return self._drop_all(_UNREACHABLE)

    def _drop_all(self, failure: Failed) -> list[tuple[Sequence, Failed]]:
        dropped = dict.fromkeys(
            [seq for seq, _ in self._items] + [sequence for sequence, _ in self._outcomes]
        )
        self._items, self._outcomes = [], []
        return [(sequence, failure) for sequence in dropped]

    def _record_success(self) -> None:
        if self._unreachable_since is not None:
            _log.info("sink_reachable", items=len(self._items))
        self._items.clear()
        outcomes, self._outcomes = self._outcomes, []
        self._unreachable_since, self._retry_at, self._backoff_s = None, 0.0, BACKOFF_S_MIN
        for sequence, outcome in outcomes:
            self._deliver(sequence, outcome)


#: Most messages that one publish combines when the emitter has fallen behind.
MESSAGES_PER_PUBLISH_MAX = 64
#: Messages in the inbox from which on the engine pauses.
MESSAGES_WAITING_MAX = 2048
#: Seconds between two looks of the paused engine at the inbox.
PAUSE_S = 0.005


#: A sequence, its token, why that one is the last, and its log probabilities.
_Token = tuple[Sequence, int, Finish | None, TokenLikelihood | None]


class Emitter:
    """Owns text assembly, stop detection and the outbox. One thread, started by ``start``.

    Any thread may call ``emit``, ``advance``, ``end`` and ``release``, which never block.

    Args:
        remove: Asks the engine to remove a generation whose text has ended.
        on_ended: Called once per generation, after its handle has the outcome.
        on_death: Called if a defect ends the thread.
            published at once.
    """

    def __init__(
        self,
        sink: ItemSink,
        clock: Clock,
        remove: Callable[[Sequence], None],
        on_ended: Callable[[Sequence], None],
        on_death: Callable[[BaseException], None],
        *,
        interval_s: float = 0.0,
    ) -> None:
        self._outbox = Outbox(sink, self._resolve, interval_s=interval_s)
        self._clock = clock
        self._remove = remove
        self._on_ended = on_ended
        self._on_death = on_death
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine-emitter", daemon=True)
        self._closing = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def emit(self, at: float, tokens: Many[_Token]) -> None:
        """Emit the tokens of one engine step, in the order of each sequence."""
        self._inbox.put(partial(self._process_tokens, at, tokens))

    def advance(self, sequence: Sequence, progress: Progress) -> None:
        """Report that a generation waits in the queue, or that its prompt is being computed."""
        self._inbox.put(partial(self._process_progress, sequence, progress))

    def end(
        self,
        sequence: Sequence,
        at: float,
        reason: StopReason = StopReason.CANCELLED,
        failure: Failed | None = None,
    ) -> None:
        """End a generation that was cancelled or failed, or whose tokens were complete."""
        self._inbox.put(partial(self._process_end, sequence, at, reason, failure))

    def release(self, sequence: Sequence) -> None:
        """Publish the items of a generation: the log contains its attempt."""
        self._inbox.put(partial(self._release, sequence))

    def wait_for_room(self) -> None:
        """Block the engine thread while the inbox is full, so that memory stays bounded."""
        while self._inbox.qsize() > MESSAGES_WAITING_MAX and self.is_alive():
            time.sleep(PAUSE_S)

    def close(self, timeout_s: float) -> bool:
        """Publish the remaining items and end the thread; return whether it ended in time."""
        self._inbox.put(self._close)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._closing or not self._outbox.is_empty():
                for process in self._receive():
                    process()
                for sequence, failure in self._outbox.flush(self._clock.monotonic()):
                    self._give_up(sequence, failure)
        except BaseException as error:  # noqa: BLE001 - the thread reports any defect, then ends
            _log.critical("emitter_died", exc_info=error)
            self._on_death(error)

    def _receive(self) -> list[Callable[[], None]]:
        """Wait for a message or the outbox's next publish; return the messages in the inbox."""
        messages: list[Callable[[], None]] = []
        try:
            messages.append(self._inbox.get(timeout=self._outbox.wait_s(self._clock.monotonic())))
            while len(messages) < MESSAGES_PER_PUBLISH_MAX:
                messages.append(self._inbox.get_nowait())
        except Empty:
            pass
        return messages

    def _close(self) -> None:
        self._closing = True

    def _process_tokens(self, at: float, tokens: Many[_Token]) -> None:
        for token in tokens:
            self._when_released(token[0], partial(self._process_token_safely, at, token))

    def _process_progress(self, sequence: Sequence, progress: Progress) -> None:
        if sequence.unreleased is None or progress.phase == "queued":
            self._when_released(sequence, partial(self._add_progress, sequence, progress))

    def _when_released(self, sequence: Sequence, action: Callable[[], None]) -> None:
        if sequence.unreleased is None:
            action()
        else:
            sequence.unreleased.append(action)

    def _add_progress(self, sequence: Sequence, progress: Progress) -> None:
        if not sequence.ended:
            task = sequence.task
            item = StreamItem(n=None, attempt=task.attempt, body=progress, epoch=task.epoch)
            self._outbox.add(sequence, item)

    def _release(self, sequence: Sequence) -> None:
        unreleased, sequence.unreleased = sequence.unreleased or [], None
        for piece in sequence.unpublished:
            self._outbox.add(sequence, sequence.number(piece))
        for action in unreleased:
            action()

    def _process_end(
        self, sequence: Sequence, at: float, reason: StopReason, failure: Failed | None
    ) -> None:
        if failure is None and reason is not StopReason.CANCELLED:
            self._when_released(sequence, partial(self._end, sequence, at, reason))
        else:
            self._end(sequence, at, reason, failure)

    def _process_token_safely(self, at: float, token: _Token) -> None:
        sequence = token[0]
        try:
            self._process_token(at, *token)
        except Exception as error:  # noqa: BLE001 - concerns this generation alone
            self._end(sequence, at, StopReason.END_TURN, _text_failed(sequence, error))
            self._remove(sequence)

    def _process_token(
        self,
        at: float,
        sequence: Sequence,
        token: int,
        finish: Finish | None,
        likelihood: TokenLikelihood | None,
    ) -> None:
        if sequence.ended:
            return
        sequence.record_first_token(at)
        if sequence.only_reads:
            self._end(sequence, at, StopReason.MAX_TOKENS)
            return
        if finish is Finish.END:
            sequence.assembler.score_end(token, likelihood)
            constraint = sequence.admission.constraint
            is_cut = constraint is not None and constraint.is_cut
            self._end(sequence, at, StopReason.MAX_TOKENS if is_cut else StopReason.END_TURN)
            return
        sequence.token_ids.append(token)
        piece = sequence.assembler.feed(token, likelihood)
        if piece is not None:
            self._outbox.add(sequence, sequence.number(piece))
        if sequence.assembler.is_over:
            self._end(sequence, at, sequence.natural_stop_reason())
            if finish is None:
                self._remove(sequence)
        elif finish is Finish.LENGTH:
            self._end(sequence, at, sequence.limit_reached() or StopReason.MAX_TOKENS)

    def _add_last_items(self, sequence: Sequence, reason: StopReason) -> Failed | None:
        """Add the items held back until the end; return the failure if that is not possible."""
        try:
            items = sequence.last_items(reason)
        except Exception as error:  # noqa: BLE001 - concerns this generation alone
            return _text_failed(sequence, error)
        for item in items:
            self._outbox.add(sequence, item)
        return None

    def _end(
        self, sequence: Sequence, at: float, reason: StopReason, failure: Failed | None = None
    ) -> None:
        if sequence.ended:
            return
        sequence.ended = True
        if failure is None and sequence.unreleased is None:
            # The next attempt of a failed generation emits the items held back.
            failure = self._add_last_items(sequence, reason)
        self._outbox.end(sequence, sequence.outcome(at, reason, failure))

    def _give_up(self, sequence: Sequence, failure: Failed) -> None:
        if not sequence.ended:
            sequence.ended = True
            self._remove(sequence)
        now = self._clock.monotonic()
        self._resolve(sequence, sequence.outcome(now, StopReason.END_TURN, failure))

    def _resolve(self, sequence: Sequence, outcome: Outcome) -> None:
        sequence.handle.resolve(outcome)
        self._on_ended(sequence)


def _text_failed(sequence: Sequence, error: Exception) -> Failed:
    """Log the error that is being handled, and return the failure of its generation."""
    _log.exception("text_failed", **sequence.log_ids)
    message = f"the answer could not be decoded: {error}"
    return Failed(error=EngineFailure.code, message=message, retryable=False)
