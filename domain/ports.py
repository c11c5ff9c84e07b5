"""What the core needs from outside. Each port is small and its docstring is its contract.

Ports are synchronous and may be called from any thread unless they say otherwise; the HTTP side
calls them through a thread pool. Only ``ItemSource`` is asynchronous, because a stream that waits
must not hold a thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from domain.chat import ChatRequest
from domain.echo import SpokenAnswer
from domain.generation import GenerationTask, Outcome, PreparedPrompt
from domain.record import Draft, EventFilter, Head, RecordedEvent
from domain.stream import StreamItem
from domain.turns import TurnState
from domain.values import (
    CacheFigures,
    Digest,
    EventId,
    JobId,
    ModelCard,
    Priority,
    StreamName,
    WorkerId,
)


class EventLog(Protocol):
    """The append-only log."""

    def append(
        self,
        stream: StreamName,
        drafts: Sequence[Draft],
        *,
        expected_version: int,
        payloads: Mapping[Digest, bytes] | None = None,
    ) -> tuple[RecordedEvent, ...]:
        """Append all of ``drafts`` with their payloads and projections, or nothing.

        Returns only when the events survive a power cut. Drafts whose ``event_id`` already stands
        in this stream are a no-op: the stored events are returned, whatever the version.

        Args:
            stream: Where to append; it begins to exist with its first event.
            drafts: At least one.
            expected_version: Version of the stream that was decided on, 0 for a new one.
            payloads: Bytes by their digest; one that is already stored is left alone.

        Raises:
            ConcurrencyConflict: The stream is at another version.
            IdempotencyKeyTaken: A submitted job has the key of another job.
            LogUnavailable: Nothing was written (disk full, locked too long, closed).
        """
        ...

    def load(self, stream: StreamName, *, after_version: int = 0) -> tuple[RecordedEvent, ...]:
        """Return the events of ``stream`` after a version, in order; empty if there is none."""
        ...

    def read_all(
        self,
        *,
        after: int = 0,
        limit: int = 100,
        stream: StreamName | None = None,
        types: Sequence[str] = (),
    ) -> tuple[RecordedEvent, ...]:
        """Return at most ``limit`` events with a position above ``after``, in order.

        Args:
            after: Position before the first event wanted.
            limit: Most events to return.
            stream: Only this stream.
            types: Only events of these types; all if empty.
        """
        ...

    def select(
        self, wanted: EventFilter, *, after: int = 0, limit: int = 100
    ) -> tuple[RecordedEvent, ...]:
        """Return at most ``limit`` events that fit, with a position above ``after``, in order."""
        ...

    def latest(self, type_name: str) -> RecordedEvent | None:
        """Return the last event of a type, if there is one."""
        ...

    def head(self) -> Head:
        """Return the last position and its hash."""
        ...


class PayloadStore(Protocol):
    """Texts by their digest."""

    def get(self, digest: Digest) -> bytes:
        """Return the payload.

        Raises:
            PayloadMissing: It was erased or never stored.
        """
        ...


class SpokenAnswers(Protocol):
    """What jobs have said, token by token."""

    def find(self, job_id: JobId) -> SpokenAnswer | None:
        """Return the whole answer of a job.

        Returns:
            ``None`` if there is no such job, if it has no whole answer (it goes on, failed, or was
            ended by a stop text, by a caller or a deadline), or if the answer was erased.
        """
        ...

    def request(self, digest: Digest) -> ChatRequest | None:
        """Return a request by its digest; ``None`` if it was erased."""
        ...


class JobQueue(Protocol):
    """The hint that a job wants to run. Losing it loses nothing: the reconciler fills it again.

    Each agent has a line of its own, in order of acceptance (ids sort by it), and the lines take
    turns. An agent that comes new stands behind one job of each that waits. Jobs without an agent
    share one line.
    """

    def enqueue(self, job_id: JobId, priority: Priority, *, agent: str | None = None) -> bool:
        """Queue a job unless it is queued or in a worker's hands already; say whether it was added.

        Raises:
            QueueUnavailable: The broker cannot be reached.
        """
        ...

    def remove(self, job_id: JobId, priority: Priority, *, agent: str | None = None) -> bool:
        """Take a job out of the queue before any worker took it; atomic.

        Args:
            job_id: The job.
            priority: Its queue.
            agent: Who it was queued for.

        Returns:
            Whether it was still waiting; ``False`` means that a worker has or had it.

        Raises:
            QueueUnavailable: The broker cannot be reached.
        """
        ...


class ItemSink(Protocol):
    """Where stream items go out."""

    def publish(self, items: Sequence[tuple[JobId, StreamItem]]) -> None:
        """Store the numbered items and announce all of them, in one round trip.

        An item of an attempt older than one already stored, or a number stored already, is
        dropped in silence: the zombie's words and the repeated write. After a terminal item the
        stream is kept for a while and then forgotten. Never waits for a reader.

        Raises:
            QueueUnavailable: The broker cannot be reached; nothing may be assumed stored.
        """
        ...


class ItemBacklog(Protocol):
    """The stored items of a job, read in one go."""

    def read(self, job_id: JobId, *, after: int = -1) -> tuple[StreamItem, ...]:
        """Return stored items with a number above ``after``, in order.

        Raises:
            QueueUnavailable: The broker cannot be reached.
        """
        ...

    def forget(self, job_id: JobId, *, through: int) -> None:
        """Drop what is stored of a job that has ended, because it is to begin anew.

        Items of attempts up to ``through`` that come later are dropped in silence.

        Raises:
            QueueUnavailable: The broker cannot be reached.
        """
        ...


class ItemSource(Protocol):
    """The items of a job as they come. Belongs to one event loop."""

    def follow(self, job_id: JobId, *, after: int = -1) -> AsyncIterator[StreamItem]:
        """Yield every numbered item above ``after`` once and in order, up to the terminal one.

        Transient items are passed on if they arrive live. The subscription exists from the call
        of this method on, not from the first item asked for, so that a caller may follow first
        and submit after. A reader that is slow, even for minutes, loses nothing and holds up
        nobody. Closing the iterator ends the subscription.

        Raises:
            QueueUnavailable: On iteration, when the broker stays unreachable.
        """
        ...


class ControlSignals(Protocol):
    """Nudges to whoever runs a job. They may be lost; the log says what is true."""

    def nudge_cancel(self, job_id: JobId) -> None:
        """Say that a job's cancellation was recorded.

        Raises:
            QueueUnavailable: The broker cannot be reached.
        """
        ...


class Cancellable(Protocol):
    """What a nudge ends: a wait for a turn, or a generation."""

    def cancel(self) -> None:
        """Ask for the end; a second call does nothing."""
        ...


class GenerationHandle(Protocol):
    """A generation that was handed to the engine. It computes at once but says nothing yet."""

    def release(self) -> None:
        """Let its items out, from the first one on; called once its attempt stands in the log."""
        ...

    def cancel(self) -> None:
        """Ask for the end at the next step; a second call does nothing."""
        ...

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Block until the generation ended; ``None`` if the time ran out first."""
        ...


class RunningJobs(Protocol):
    """Which jobs this process runs: nudges find them here, repeats are left alone."""

    def claim(self, job_id: JobId) -> AbstractContextManager[bool]:
        """Hold a job for the length of a ``with`` block; gives ``False`` if it is held already."""
        ...

    def attach(self, job_id: JobId, handle: Cancellable, *, attempt: int) -> None:
        """Say what to cancel when a wish to end a claimed job is found in the log.

        Args:
            job_id: The job.
            handle: What there is to cancel.
            attempt: The number that it speaks under, or will: a wish of the life before a retry
                does not reach the attempts after it.
        """
        ...


class InferenceEngine(Protocol):
    """The loaded model. It writes stream items up to, not including, the terminal one."""

    def card(self) -> ModelCard:
        """Return what is loaded."""
        ...

    def prepare(self, request: ChatRequest) -> PreparedPrompt:
        """Render and tokenise a request; safe to call from many threads at once.

        Raises:
            PromptTooLong: The prompt leaves no room for one token.
            InvalidRequest: The chat template refuses the messages.
        """
        ...

    def submit(self, task: GenerationTask) -> GenerationHandle:
        """Hand a task over; it joins the running batch as soon as there is room.

        Its items are held until ``GenerationHandle.release``, so that the prompt can be read while
        the attempt is being recorded. An outcome other than a failure or a cancellation waits too.

        Raises:
            EngineFailure: The engine has stopped.
        """
        ...


class Clock(Protocol):
    """Time, so that tests can own it."""

    def now(self) -> datetime:
        """Return the present instant in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back."""
        ...


class IdSource(Protocol):
    """Fresh names and numbers."""

    def job_id(self) -> JobId:
        """Return a new job id, ``job-`` and a UUIDv7 in hex: sorts by creation."""
        ...

    def event_id(self) -> EventId:
        """Return a new UUIDv7."""
        ...

    def seed(self) -> int:
        """Return a random seed in ``[0, SEED_MAX]``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPulse:
    """The sign of life of a worker.

    Attributes:
        worker: Who.
        pid: Its process.
        state: ``loading``, ``ready`` or ``draining``.
        model: What it serves once it is ready.
        cache: What it keeps of contexts once it is ready.
        turns: How the turns stand, with the places of its batch as slots, once it is ready.
    """

    worker: WorkerId
    pid: int
    state: str
    model: ModelCard | None
    cache: CacheFigures | None = None
    turns: TurnState | None = None


class WorkerPulses(Protocol):
    """Signs of life; one that is not renewed within seconds is gone."""

    def beat(self, pulse: WorkerPulse) -> bool:
        """Renew a worker's sign of life.

        Returns:
            Whether the last one was still there. If it was not, the broker may have lost more.

        Raises:
            QueueUnavailable: The broker cannot be reached.
        """
        ...

    def alive(self) -> tuple[WorkerPulse, ...]:
        """Return the workers that are alive.

        Raises:
            QueueUnavailable: The broker cannot be reached.
        """
        ...
