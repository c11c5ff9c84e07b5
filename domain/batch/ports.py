"""Ports of batches and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NewType, Protocol

from domain.batch.state import Batch, BatchId
from domain.chat.request import ChatRequest
from domain.errors import InvalidRequest, ModelNotFound
from domain.events.batch import FileCreated, FileDeleted
from domain.job.state import Job
from domain.log.codec import decode_recorded
from domain.log.record import RecordedEvent
from domain.values import JobId, JobStatus, Owner, StreamName, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTally:
    """The jobs of a batch, counted.

    Attributes:
        by_status: Number of jobs by status; a status without jobs may be missing.
        last_line: Highest number of a line that is a job, -1 if there is none.
    """

    by_status: Mapping[JobStatus, int] = field(default_factory=dict)
    last_line: int = -1

    @property
    def jobs(self) -> int:
        """Lines that are jobs."""
        return sum(self.by_status.values())

    @property
    def open(self) -> int:
        """Jobs that have not ended."""
        return sum(n for status, n in self.by_status.items() if not status.is_terminal)


class BatchViews(Protocol):
    """Batches and files as the log has them, and their jobs as the jobs projection has them."""

    def tally(self, batch_id: BatchId) -> BatchTally:
        """Count the jobs of a batch."""

    def waiting(self, batch_id: BatchId) -> Mapping[str | None, int]:
        """Return how many jobs of a batch wait, by the model that they are bound to."""

    def usage(self, batch_id: BatchId) -> Usage:
        """Sum the tokens of the jobs of a batch."""

    def open_jobs(self, batch_id: BatchId) -> tuple[JobId, ...]:
        """Return the open jobs of a batch without a recorded cancellation."""

    def line_jobs(self, batch_id: BatchId, *, first: int, limit: int) -> Mapping[int, Job]:
        """Return the jobs of lines by their numbers; lines without a job are left out.

        Args:
            limit: How many lines to look at.
        """

    def streams(
        self,
        type_name: str,
        *,
        limit: int,
        after: str | None = None,
        oldest_first: bool = False,
        owner: Owner | None = None,
    ) -> tuple[StreamName, ...]:
        """Return the streams that have an event of a type, by the place of that event in the log.

        Args:
            type_name: Of an event that stands in a stream once, as its first.
            after: The stream before the first one wanted, in the order asked for; with one that is
                unknown nothing is found.
            oldest_first: The order; else newest first.
        """

    def unfinished(self, *, owner: Owner | None = None) -> tuple[BatchId, ...]:
        """Return the batches, of one API key or of all, that are not over, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """A line of a batch in the domain's terms.

    Attributes:
        model: The name the caller used; empty if the line has none.
        request: What to generate, or why the line cannot be read.
        wire: The request in the form of its dialect, for protocols that return it.
        warning: What of the request has no effect.
        bound_model: Registered model that must answer it.
        labels: Of its job.
        urgency: Of its job.
    """

    model: str
    request: ChatRequest | InvalidRequest | ModelNotFound
    wire: bytes | None = None
    warning: str | None = None
    bound_model: str | None = None
    labels: tuple[str, ...] = ()
    urgency: int = 0


class LineProtocol(Protocol):
    """Parses the lines of a batch, and measures their results."""

    def read(self, batch: Batch, raw: bytes) -> BatchLine:
        """Return the request of a line."""

    def faults(
        self, batch: Batch, lines: Iterable[tuple[int, bytes]]
    ) -> Sequence[Mapping[str, object]]:
        """Return the faults of the lines as a whole, in the form of the protocol."""

    def measure(self, batch: Batch) -> Mapping[str, int]:
        """Return the length in bytes of each result file, by its part.

        Empty for a protocol without result files. A part without lines is left out.
        """


#: Runs an action for every element, perhaps several at once; returns when all are done.
Spread = Callable[[Callable[[tuple[int, bytes]], None], Sequence[tuple[int, bytes]]], None]


def one_by_one(
    action: Callable[[tuple[int, bytes]], None], elements: Sequence[tuple[int, bytes]]
) -> None:
    """Run the action in order; the simplest ``Spread``."""
    for element in elements:
        action(element)


#: ``file-`` and 32 hex digits.
FileId = NewType("FileId", str)

FILE_PREFIX: Final = "file-"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """The state of one file.

    Attributes:
        version: Number of events folded.
        created: The facts; ``None`` only before the first event.
        created_at: RFC 3339 instant of its first event.
    """

    id: FileId
    version: int = 0
    created: FileCreated | None = None
    created_at: str = ""
    deleted: bool = False

    @property
    def facts(self) -> FileCreated:
        """The facts of a file that exists."""
        assert self.created is not None
        return self.created

    def is_shown(self, now: str) -> bool:
        """Whether its owner can see it at the instant ``now``."""
        if self.created is None or self.deleted:
            return False
        return self.created.expires_at is None or now < self.created.expires_at


def evolve_file(file: StoredFile, recorded: RecordedEvent) -> StoredFile:
    """Return the file after the next event of its stream."""
    event, version = decode_recorded(recorded), recorded.version
    if isinstance(event, FileCreated):
        return replace(file, created=event, created_at=recorded.recorded_at, version=version)
    assert isinstance(event, FileDeleted)
    return replace(file, deleted=True, version=version)
