"""Ports of queued and running jobs; each docstring is the contract."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from domain.chat.items import StreamItem
from domain.chat.ports import Cancellable
from domain.values import (
    JobId,
    Priority,
)


class JobQueue(Protocol):
    """The hint that a job wants to run. Losing it loses nothing: the reconciler fills it again.

    Each agent has a queue of its own, by urgency and then in order of acceptance (ids sort by it),
    and the agents take turns. A new agent waits for one job of each waiting agent. Jobs of one API
    key without an agent share one queue.

    Jobs that are bound to a model wait in a line of that model, apart from all others: only
    workers that have the model take them.

    Its methods raise ``QueueUnavailable`` where the broker cannot be reached.
    """

    def enqueue(
        self,
        job_id: JobId,
        priority: Priority,
        *,
        line: str | None = None,
        model: str | None = None,
        urgency: int = 0,
    ) -> bool:
        """Enqueue a job unless it is queued or a worker has it; return whether it was added.

        Args:
            urgency: The highest is first in its line.
        """

    def remove(
        self,
        job_id: JobId,
        priority: Priority,
        *,
        line: str | None = None,
        model: str | None = None,
    ) -> bool:
        """Take a job out of the queue before any worker took it; atomic.

        Returns:
            Whether it was waiting, or in the hands of a worker that is gone; ``False`` if a worker
            has or had it.
        """


class ItemSink(Protocol):
    """Publishes stream items."""

    def publish(self, items: Sequence[tuple[JobId, StreamItem]]) -> None:
        """Store the numbered items and announce all of them, in one round trip.

        An item of an attempt older than one already stored (of a superseded worker), or with a
        number stored already (a repeated write), is dropped without an error. After a terminal
        item the stream is kept for a while and then deleted. Never waits for a reader.

        Raises:
            QueueUnavailable: The broker cannot be reached, or refuses writes; the items may or may
                not be stored.
        """


class ItemBacklog(Protocol):
    """The stored items of a job, read in one go.

    Its methods raise ``QueueUnavailable`` where the broker cannot be reached.
    """

    def require_writable(self) -> None:
        """Return if items can be stored: a broker may answer reads and refuse writes.

        Raises:
            QueueUnavailable: The broker cannot be reached, or refuses writes.
        """

    def read(self, job_id: JobId, *, after: int = -1) -> tuple[StreamItem, ...]:
        """Return stored items of the newest epoch with a number above ``after``, in order."""

    def forget(self, job_id: JobId, *, through: int) -> None:
        """Delete the stored items of a job whose answer begins anew.

        Later items of attempts up to ``through`` are dropped without an error.
        """


@dataclass(frozen=True, slots=True)
class ItemPage:
    """Stored items of a job in the order of the store, each with its size in bytes.

    Attributes:
        is_last: Whether the store had no more when it was read.
    """

    items: Sequence[tuple[int, StreamItem]]
    is_last: bool


class ItemReader(Protocol):
    """Gets the items of one job as they are published; its methods return at once."""

    def announced(self, item: StreamItem, size: int) -> None:
        """Receive an item of ``size`` bytes."""

    def lag(self) -> None:
        """Note that announcements may have been missed: the store has what they carried."""


class ItemSource(Protocol):
    """The items of jobs, as they are published and as they are stored. Belongs to one event loop.

    A numbered item is stored before it is announced. An announcement may be lost, repeated or late;
    a slow reader delays no other one.
    """

    def register(self, job_id: JobId, reader: ItemReader) -> None:
        """Announce the items of a job to a reader from now on; it may be submitted afterwards."""

    def unregister(self, job_id: JobId, reader: ItemReader) -> None:
        """Announce nothing more to a reader; a second call does nothing."""

    async def read_page(self, job_id: JobId, cursor: tuple[int, int] | None) -> ItemPage:
        """Return stored items of all attempts behind an attempt and a number of it.

        Args:
            cursor: ``None`` to read from the beginning.

        Raises:
            QueueUnavailable: The broker cannot be reached.
        """


class RunningJobs(Protocol):
    """The jobs that this process runs: cancels reach them here, repeated deliveries are ignored."""

    def claim(self, job_id: JobId) -> AbstractContextManager[bool]:
        """Claim a job for a ``with`` block; yields ``False`` if it is claimed already."""

    def attach(self, job_id: JobId, handle: Cancellable, *, attempt: int) -> None:
        """Set the handle to cancel when the log has a cancellation of a claimed job.

        Args:
            handle: The wait or the generation to cancel.
            attempt: Number of its attempt: a cancellation from before a retry does not reach the
                attempts after it.
        """
