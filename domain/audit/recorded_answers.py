"""The recorded jobs and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from domain.audit.recent_ends import CacheDiagnosis, diagnose_cache
from domain.chat.divergence import WHOLE, RecordedAnswer
from domain.chat.items import Failed, StreamItem
from domain.chat.request import ChatRequest
from domain.chat.stored_answer import ReaderPosition, StoredAnswer
from domain.errors import TEXT_LOST, ItemsLost, JobNotFound, PayloadMissing, QueueUnavailable
from domain.events.job import AttemptStarted, JobCompleted, JobSubmitted
from domain.job.listing import JobViews
from domain.job.ports import ItemBacklog
from domain.job.state import Job, request_of
from domain.log.codec import decode_recorded
from domain.log.ports import EventLog, EventReader, PayloadStore
from domain.log.record import RecordedEvent
from domain.values import Digest, JobId, StreamName

_E = TypeVar("_E")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedAnswers:
    """``domain.chat.ports.RecordedAnswers`` over the log and its payloads."""

    log: EventReader
    payloads: PayloadStore

    def find(self, job_id: JobId) -> RecordedAnswer | None:
        """See ``RecordedAnswers.find``."""
        return self._answer(job_id, self.log.load(StreamName(job_id)))

    def request(self, digest: Digest) -> ChatRequest | None:
        """See ``RecordedAnswers.request``."""
        try:
            return ChatRequest.from_bytes(self.payloads.get(digest))
        except TEXT_LOST:
            return None

    def _answer(self, job_id: JobId, history: Sequence[RecordedEvent]) -> RecordedAnswer | None:
        events = [decode_recorded(recorded) for recorded in history]
        submitted = _last(JobSubmitted, events)
        started = _last(AttemptStarted, events)
        completed = _last(JobCompleted, events)
        if submitted is None or started is None or completed is None:
            return None
        if completed.stop_reason not in WHOLE:
            return None
        try:
            answer = StoredAnswer.from_bytes(self.payloads.get(completed.output))
        except TEXT_LOST:
            return None
        if answer.token_ids is None:
            return None
        return RecordedAnswer(
            job_id=job_id,
            request=request_of(events),
            fingerprint=started.fingerprint,
            answer=answer,
            encoding=started.encoding,
        )


def _last(kind: type[_E], events: Sequence[object]) -> _E | None:
    return next((event for event in reversed(events) if isinstance(event, kind)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecords:
    """The recorded jobs and their answers; everything here blocks."""

    log: EventLog
    payloads: PayloadStore
    views: JobViews

    def diagnose(self, job_id: JobId) -> CacheDiagnosis | None:
        """Return what a job found in the cache; ``None`` before its first attempt."""
        return diagnose_cache(job_id, views=self.views, log=self.log, payloads=self.payloads)

    def read_stored(self, view: Job) -> StoredAnswer | None:
        """Return the answer of a job; ``None`` if there is none or it was erased."""
        if view.output is None:
            return None
        try:
            return StoredAnswer.from_bytes(self.payloads.get(Digest(view.output)))
        except PayloadMissing:
            return None

    def read_warning(self, view: Job) -> str | None:
        """Return what of the request of a job has no effect; ``None`` if all has, or if erased."""
        try:
            digest = view.submitted.warning
            return None if digest is None else self.payloads.get(digest).decode()
        except TEXT_LOST:
            return None

    def rest_of(
        self, job_id: JobId, position: ReaderPosition, backlog: ItemBacklog
    ) -> list[StreamItem] | None:
        """Return the items that a reader lacks of a job that has ended, ``None`` if it goes on.

        Items that the broker stores are returned as they are. Items that only the log provides
        follow without numbers, since their boundaries differ from those that were lost. Every part
        of the answer is returned exactly once. A reader of an earlier epoch gets the present one
        from its beginning.

        Raises:
            LogUnavailable: The log cannot be read.
        """
        view = self.views.get(job_id)
        if view is None or view.ending is None:
            return None
        stored = _stored(job_id, backlog)
        if stored and stored[0].epoch != view.epoch:
            stored = ()  # restored by a broker that lost later ones
        known = replace(position)
        if known.epoch < view.epoch:
            known.restart(view.epoch)
        fresh = list(stored[known.n + 1 :])
        has_end = bool(stored) and stored[-1].is_terminal
        if has_end and (fresh or known.is_over or not known.is_counted):
            return fresh
        # The terminal item of a job that lost its items may have a number that this reader has.
        for item in fresh:
            known.add(item)
        return [*fresh, *self._missing(known, view)]

    def answer_so_far(
        self, job_id: JobId, backlog: ItemBacklog
    ) -> tuple[int, Sequence[StreamItem]]:
        """Return the epoch of a job and its items from the beginning, as far as they are known.

        The log has the answer of a job that has ended and lost its items; then they lack numbers.

        Raises:
            JobNotFound: There is no such job.
            LogUnavailable: The log cannot be read.
        """
        view = self.views.get(job_id)
        if view is None:
            raise JobNotFound(job_id)
        items: Sequence[StreamItem] | None = self.rest_of(
            job_id, ReaderPosition(epoch=view.epoch), backlog
        )
        if items is None:
            items = [item for item in _stored(job_id, backlog) if item.epoch == view.epoch]
        return max((item.epoch for item in items), default=view.epoch), items

    def position_of(
        self, job_id: JobId, after: int, attempt: int, backlog: ItemBacklog
    ) -> ReaderPosition:
        """Return the position of a reader whose last item is ``after``, -1 for none, of an attempt.

        Raises:
            JobNotFound: There is no such job.
            LogUnavailable: The log cannot be read.
        """
        view = self.views.get(job_id)
        if view is None:
            raise JobNotFound(job_id)
        if after < 0:
            return ReaderPosition()
        # The epoch of an attempt of an earlier epoch is not known, and does not matter.
        epoch = min(attempt, view.epoch)
        stored = _stored(job_id, backlog)
        if after >= len(stored) or stored[0].epoch != epoch:
            return ReaderPosition(n=after, epoch=epoch, is_counted=False)
        return ReaderPosition.after(stored[: after + 1], epoch=epoch)

    def _missing(self, position: ReaderPosition, view: Job) -> list[StreamItem]:
        assert view.ending is not None
        output = self.read_stored(view)
        attempt = max(view.attempt, 1)
        if output is not None and not position.is_counted:
            lost = ItemsLost(view.id, after=position.n)
            body = Failed(error=lost.code, message=lost.message, retryable=lost.retryable)
            return [StreamItem(n=None, attempt=attempt, body=body, epoch=view.epoch)]
        bodies = [] if output is None else list(output.lacking(position))
        # Where only the terminal item is missing, its number is known.
        n = position.n + 1 if not bodies and position.n >= 0 else None
        return [
            StreamItem(n=n, attempt=attempt, body=body, epoch=view.epoch)
            for body in (*bodies, view.ending)
        ]


def _stored(job_id: JobId, backlog: ItemBacklog) -> Sequence[StreamItem]:
    """Return the items that the broker has of a job; none while it is unreachable."""
    try:
        return backlog.read(job_id)
    except QueueUnavailable:
        return ()
