"""The answers of jobs, read from the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from domain.chat.divergence import WHOLE, RecordedAnswer
from domain.chat.request import ChatRequest
from domain.chat.stored_answer import StoredAnswer
from domain.errors import TEXT_LOST
from domain.events.job import AttemptStarted, JobCompleted, JobSubmitted
from domain.log.codec import decode_recorded
from domain.log.ports import PayloadStore
from domain.log.record import RecordedEvent
from domain.values import Digest, JobId, StreamName


class History(Protocol):
    """The reading method of ``domain.log.ports.EventLog`` that is used here."""

    def load(self, stream: StreamName, *, after_version: int = 0) -> tuple[RecordedEvent, ...]:
        """See ``EventLog.load``."""
        ...


_E = TypeVar("_E")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedAnswers:
    """``domain.chat.ports.RecordedAnswers`` over the log and its payloads."""

    log: History
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
            request=submitted.request,
            fingerprint=started.fingerprint,
            answer=answer,
            encoding=started.encoding,
        )


def _last(kind: type[_E], events: Sequence[object]) -> _E | None:
    return next((event for event in reversed(events) if isinstance(event, kind)), None)
