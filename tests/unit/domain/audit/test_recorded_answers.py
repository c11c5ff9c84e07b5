"""Which answers of the log are complete, and with what they are returned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from domain.audit.recorded_answers import LoggedAnswers
from domain.chat.divergence import RecordedAnswer
from domain.chat.generation import EmittedCall
from domain.chat.stored_answer import StoredAnswer
from domain.errors import PayloadDamaged
from domain.events.event import Event
from domain.events.job import (
    AttemptFailed,
    JobAttached,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobHidden,
)
from domain.log.record import RecordedEvent
from domain.values import Digest, JobId, PromptEncoding, StopReason, StreamName, Usage, digest_of
from tests.support.builders.answered_jobs import asked, completion, store, submission
from tests.support.builders.job_events import started
from tests.support.fakes.event_log import InMemoryEventLog

REQUEST = asked("hi")
ANSWER = StoredAnswer(
    text="Hello",
    thinking="Who is it?",
    calls=(EmittedCall(id="call-1", name="look", arguments="{}"),),
    token_ids=(5, 6, 7),
)
JOB = JobId("job-1")


def answers_after(
    *events: Event, log: InMemoryEventLog | None = None
) -> tuple[InMemoryEventLog, LoggedAnswers]:
    """Return a log with one job that has these events, and its answers."""
    log = log or InMemoryEventLog()
    store(log, JOB, [submission(REQUEST), *events], REQUEST, ANSWER)
    return log, LoggedAnswers(log=log, payloads=log)


def test_a_complete_answer_has_its_request_its_tokens_and_the_model() -> None:
    _, answers = answers_after(started(), completion(ANSWER))
    found = answers.find(JOB)
    assert found == RecordedAnswer(
        job_id=JOB,
        request=digest_of(REQUEST.to_bytes()),
        fingerprint="f",
        answer=ANSWER,
        encoding=PromptEncoding.MARKS_AS_TEXT,
    )
    assert found is not None
    assert found.token_ids == (5, 6, 7)


def test_the_encoding_and_the_model_are_those_of_the_last_attempt() -> None:
    first = replace(started(), fingerprint="before")
    last = replace(started(2), encoding=PromptEncoding.MARKS_READ)
    _, answers = answers_after(first, last, completion(ANSWER))
    found = answers.find(JOB)
    assert found is not None
    assert (found.fingerprint, found.encoding) == ("f", PromptEncoding.MARKS_READ)


def test_events_after_the_end_change_no_answer() -> None:
    ended = (started(), completion(ANSWER))
    _, plain = answers_after(*ended)
    _, answers = answers_after(*ended, JobAttached(reason="retry"), JobHidden())
    assert answers.find(JOB) == plain.find(JOB)


@pytest.mark.parametrize(
    ("reason", "is_whole"),
    [
        (StopReason.END_TURN, True),
        (StopReason.MAX_TOKENS, True),
        (StopReason.STOP_SEQUENCE, False),
        (StopReason.CONTEXT_WINDOW, False),
        (StopReason.CANCELLED, False),
    ],
)
def test_only_answers_whose_tokens_are_the_whole_turn_are_returned(
    reason: StopReason, is_whole: object
) -> None:
    _, answers = answers_after(started(), completion(ANSWER, reason))
    assert (answers.find(JOB) is not None) is is_whole


@pytest.mark.parametrize(
    "events",
    [
        [],
        [started()],
        [started(), AttemptFailed(attempt=1, error="e", message="m", retryable=True)],
        [started(), JobFailed(error="e", message="m")],
        [
            started(),
            JobCancelled(attempt=1, usage=Usage(), output=digest_of(ANSWER.to_bytes())),
        ],
        [started(), JobExpired(deadline="d", attempt=1, output=digest_of(ANSWER.to_bytes()))],
        [completion(ANSWER)],
    ],
)
def test_a_job_that_did_not_complete_an_attempt_has_no_answer(events: Sequence[Event]) -> None:
    _, answers = answers_after(*events)
    assert answers.find(JOB) is None


def test_there_is_no_answer_of_an_unknown_job() -> None:
    _, answers = answers_after(started(), completion(ANSWER))
    assert answers.find(JobId("job-2")) is None


class _ArchivedLog(InMemoryEventLog):
    """A log whose streams have their first event in an archive."""

    def load(self, stream: StreamName, *, after_version: int = 0) -> tuple[RecordedEvent, ...]:
        return super().load(stream, after_version=max(after_version, 1))


def test_a_job_whose_beginning_is_in_an_archive_has_no_answer() -> None:
    log, answers = answers_after(started(), completion(ANSWER), log=_ArchivedLog())
    assert [event.version for event in log.load(StreamName(JOB))] == [2, 3]
    assert answers.find(JOB) is None


def test_answers_of_older_programs_without_tokens_are_not_returned() -> None:
    log = InMemoryEventLog()
    for job, ids in (("job-1", None), ("job-2", ())):
        answer = StoredAnswer(text="Hello", token_ids=ids)
        store(log, job, [submission(REQUEST), started(), completion(answer)], REQUEST, answer)
    answers = LoggedAnswers(log=log, payloads=log)
    assert answers.find(JobId("job-1")) is None
    found = answers.find(JobId("job-2"))
    assert found is not None
    assert found.token_ids == ()


def test_an_erased_answer_is_lost_and_its_request_is_not() -> None:
    log, answers = answers_after(started(), completion(ANSWER))
    log.lose_payload(digest_of(ANSWER.to_bytes()))
    assert answers.find(JOB) is None
    assert answers.request(digest_of(REQUEST.to_bytes())) == REQUEST


def test_an_erased_request_is_lost_and_its_answer_is_not() -> None:
    log, answers = answers_after(started(), completion(ANSWER))
    log.lose_payload(digest_of(REQUEST.to_bytes()))
    assert answers.request(digest_of(REQUEST.to_bytes())) is None
    assert answers.find(JOB) is not None


class _DamagedPayloads:
    """Payloads that all have another content than their digest says."""

    def get(self, digest: Digest) -> bytes:
        raise PayloadDamaged(digest)


def test_a_damaged_text_is_lost() -> None:
    log, _ = answers_after(started(), completion(ANSWER))
    answers = LoggedAnswers(log=log, payloads=_DamagedPayloads())
    assert answers.find(JOB) is None
    assert answers.request(digest_of(REQUEST.to_bytes())) is None
