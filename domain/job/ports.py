"""Ports of queued and running jobs; each docstring is the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from domain.chat.items import StreamItem
from domain.chat.ports import Cancellable
from domain.job.fair_scheduler import TurnState
from domain.values import (
    CacheFigures,
    JobId,
    ModelCard,
    Priority,
    WorkerId,
)


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
