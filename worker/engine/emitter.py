"""The thread that turns raw tokens into text and items, so that the engine waits for nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue

import structlog

from domain.chat.generation import Outcome
from domain.chat.items import Failed, Progress, StreamItem
from domain.errors import EngineFailure, QueueUnavailable
from domain.job.ports import ItemSink
from domain.ports import Clock
from domain.values import StopReason
from worker.engine.outbox import Outbox
from worker.engine.ports import Finish, TokenLikelihood
from worker.engine.sequence import Sequence

_log = structlog.get_logger(__name__)

#: Messages put together in one publish when the emitter has fallen behind.
MESSAGES_PER_PUBLISH_MAX = 64
#: Messages that may wait here before the engine pauses.
MESSAGES_WAITING_MAX = 2048
#: How long the engine pauses before it looks again.
PAUSE_S = 0.005


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one engine step."""

    at: float
    tokens: Many[tuple[Sequence, int, Finish | None]]
    likelihoods: Mapping[Sequence, TokenLikelihood] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Advanced:
    """A generation waits, or its prompt is being read."""

    sequence: Sequence
    progress: Progress


@dataclass(frozen=True, slots=True)
class Ended:
    """The engine gave a generation up."""

    sequence: Sequence
    at: float
    reason: StopReason = StopReason.CANCELLED
    failure: Failed | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """The attempt stands in the log: its generation may speak."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Close:
    """Nothing follows."""


Message = Tokens | Advanced | Ended | Released | Close


class Emitter:
    """Owns text assembly, stop detection and the outbox. One thread, started by ``start``.

    ``put`` may be called from any thread and never waits.

    Args:
        sink: Where items go.
        clock: For the retries of the outbox.
        remove: Tells the engine to drop a generation whose text has ended.
        on_ended: Called once per generation, after its outcome was told.
        on_death: Called if the thread ends by a defect.
        interval_s: Between two publishes; the first item and the end of a generation never wait.
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
        self._outbox = Outbox(sink, self._tell, interval_s=interval_s)
        self._clock = clock
        self._remove = remove
        self._on_ended = on_ended
        self._on_death = on_death
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine-emitter", daemon=True)
        self._closing = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def put(self, message: Message) -> None:
        """Hand over what happened."""
        self._inbox.put(message)

    def wait_for_room(self) -> None:
        """Hold the engine back while too much waits here; bounded memory beats a running start."""
        while self._inbox.qsize() > MESSAGES_WAITING_MAX and self.is_alive():
            time.sleep(PAUSE_S)

    def close(self, timeout_s: float) -> bool:
        """Publish what is left and end the thread.

        Returns:
            Whether it ended in time.
        """
        self._inbox.put(Close())
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._closing or not self._outbox.is_empty():
                for message in self._receive():
                    self._handle(message)
                self._publish()
        except BaseException as error:  # noqa: BLE001 - the last words of a thread nobody joins
            _log.critical("emitter_died", exc_info=error)
            self._on_death(error)

    def _receive(self) -> list[Message]:
        """Wait for a message, or until held items may be tried again, and take what is there."""
        messages: list[Message] = []
        try:
            messages.append(self._inbox.get(timeout=self._outbox.wait_s(self._clock.monotonic())))
            while len(messages) < MESSAGES_PER_PUBLISH_MAX:
                messages.append(self._inbox.get_nowait())
        except Empty:
            pass
        return messages

    def _publish(self) -> None:
        for sequence in self._outbox.flush(self._clock.monotonic()):
            self._give_up(sequence)

    def _handle(self, message: Message) -> None:
        match message:
            case Tokens():
                self._tokens(message)
            case Advanced(sequence, progress):
                if sequence.unreleased is None:
                    item = StreamItem(n=None, attempt=sequence.task.attempt, body=progress)
                    self._outbox.add(sequence, item)
            case Ended():
                self._ended(message)
            case Released(sequence):
                self._released(sequence)
            case Close():
                self._closing = True

    def _tokens(self, message: Tokens) -> None:
        for sequence, token, finish in message.tokens:
            likely = message.likelihoods.get(sequence)
            if sequence.unreleased is None:
                self._guarded(sequence, token, finish, message.at, likely)
            else:
                sequence.unreleased.append(
                    partial(self._guarded, sequence, token, finish, message.at, likely)
                )

    def _released(self, sequence: Sequence) -> None:
        unreleased, sequence.unreleased = sequence.unreleased or [], None
        for happen in unreleased:
            happen()

    def _ended(self, message: Ended) -> None:
        sequence, at, reason, failure = (
            message.sequence,
            message.at,
            message.reason,
            message.failure,
        )
        if (
            sequence.unreleased is not None
            and failure is None
            and reason is not StopReason.CANCELLED
        ):
            sequence.unreleased.append(partial(self._end, sequence, at, reason))
        else:
            self._end(sequence, at, reason, failure)

    def _guarded(
        self,
        sequence: Sequence,
        token: int,
        finish: Finish | None,
        at: float,
        likely: TokenLikelihood | None,
    ) -> None:
        try:
            self._token(sequence, token, finish, at, likely)
        except Exception as error:  # noqa: BLE001 - one text must not take the others with it
            _log.exception("text_failed", job=sequence.task.job_id)
            failure = Failed(
                error=EngineFailure.code,
                message=f"the answer could not be decoded: {error}",
                retryable=False,
            )
            self._end(sequence, at, StopReason.END_TURN, failure)
            self._remove(sequence)

    def _token(
        self,
        sequence: Sequence,
        token: int,
        finish: Finish | None,
        at: float,
        likely: TokenLikelihood | None,
    ) -> None:
        if sequence.ended:
            return
        if sequence.times.first_token is None:
            sequence.times.first_token = at
        if finish is Finish.END:
            self._end(sequence, at, StopReason.END_TURN)
            return
        sequence.token_ids.append(token)
        piece = sequence.assembler.feed(token, likely)
        if piece is not None:
            self._outbox.add(sequence, sequence.number(piece))
        if sequence.assembler.is_over:
            self._end(sequence, at, sequence.natural_stop_reason())
            if finish is None:
                self._remove(sequence)
        elif finish is Finish.LENGTH:
            self._end(sequence, at, sequence.limit_reached() or StopReason.MAX_TOKENS)

    def _end(
        self, sequence: Sequence, at: float, reason: StopReason, failure: Failed | None = None
    ) -> None:
        if sequence.ended:
            return
        sequence.ended = True
        if failure is None and sequence.unreleased is None:
            # A failed attempt is continued by another, which says what was held back.
            for item in sequence.last_items(reason):
                self._outbox.add(sequence, item)
        self._outbox.end(sequence, sequence.outcome(at, reason, failure))

    def _give_up(self, sequence: Sequence) -> None:
        failure = Failed(
            error=QueueUnavailable.code,
            message="the stream could not be written for too long",
            retryable=True,
        )
        if not sequence.ended:
            sequence.ended = True
            self._remove(sequence)
        now = self._clock.monotonic()
        self._tell(sequence, sequence.outcome(now, StopReason.END_TURN, failure))

    def _tell(self, sequence: Sequence, outcome: Outcome) -> None:
        sequence.handle.resolve(outcome)
        self._on_ended(sequence)
