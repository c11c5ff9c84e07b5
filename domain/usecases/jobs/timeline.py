"""Reads the timeline of a job from the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from domain.errors import TEXT_LOST
from domain.job.timeline import Timeline, build_timeline
from domain.log.ports import PayloadStore
from domain.log.record import RecordedEvent
from domain.values import Digest, JobId, StreamName, WorkerId


class TimelineLog(Protocol):
    """The part of the log that a timeline needs."""

    def load(self, stream: StreamName, *, after_version: int = 0) -> tuple[RecordedEvent, ...]:
        """Return the events of a stream; see ``EventLog.load``."""
        ...

    def read_all(
        self,
        *,
        after: int = 0,
        limit: int = 100,
        stream: StreamName | None = None,
        types: Sequence[str] = (),
    ) -> tuple[RecordedEvent, ...]:
        """Return the first events that fit; see ``EventLog.read_all``."""
        ...


def read_timeline(
    log: TimelineLog,
    job: JobId,
    *,
    payloads: PayloadStore,
    archived: Sequence[RecordedEvent] = (),
) -> Timeline | None:
    """Return the timeline of a job, ``None`` if there is no such job.

    Args:
        log: The events of the job and of its workers.
        payloads: Has the text that names its client.
        archived: Its events, if the log has them no longer.
    """
    events = log.load(StreamName(job)) or archived
    if not events or events[0].type != "JobSubmitted":
        return None
    workers = {str(event.data["worker"]) for event in events if event.type == "AttemptStarted"}
    losses = {
        WorkerId(worker): lost.recorded_at
        for worker in workers
        for lost in log.read_all(stream=StreamName(worker), types=("WorkerLost",), limit=1)
    }
    return build_timeline(events, losses, client=_client(events[0], payloads))


def _client(submitted: RecordedEvent, payloads: PayloadStore) -> str | None:
    """Return the text that names the client; ``None`` if there is none, or it was erased."""
    digest = submitted.data.get("client_name")
    try:
        return None if digest is None else payloads.get(Digest(digest)).decode("utf-8", "replace")
    except TEXT_LOST:
        return None
