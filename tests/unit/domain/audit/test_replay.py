from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.audit.replay import (
    Recording,
    Refusal,
    ReplayRefused,
    check_prompt,
    read_answer,
    read_recording,
)
from domain.chat.request import canonical_json
from domain.events.event import Event
from domain.events.job import AttemptFailed, AttemptStarted, JobCompleted, JobFailed, JobRetried
from domain.kv.hashing import hash_ids
from domain.log.record import RecordedEvent
from domain.values import JobId, Sampling, StreamName, digest_of
from ops.cli.replay import spread
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock

JOB = JobId("job-1")
FAILED = AttemptFailed(attempt=1, error="draining", message="", retryable=True)


def recorded(*events: Event) -> Sequence[RecordedEvent]:
    log = InMemoryEventLog(FakeClock())
    drafts = [draft(event) for event in events]
    return log.append(StreamName(JOB), drafts, expected_version=0)


def read(*events: Event) -> Recording:
    return read_recording(JOB, recorded(submitted(), *events))


def refused(*events: Event) -> Refusal:
    with pytest.raises(ReplayRefused) as caught:
        read(*events)
    return caught.value.reason


def test_a_recording_has_the_facts_of_the_last_attempt_and_the_end() -> None:
    sampling = Sampling(temperature=0.5, seed=3)
    second = replace(started(2), sampling=sampling, prompt_hash="ab")
    recording = read(started(), FAILED, second, completed(2))
    assert recording.request == submitted().request
    assert (
        recording.started.sampling,
        recording.started.prompt_hash,
        recording.started.attempt,
    ) == (sampling, "ab", 2)
    assert (recording.completed.output, recording.completed.usage.completion_tokens) == (
        digest_of(b"output"),
        3,
    )


@pytest.mark.parametrize(
    "events", [(), (started(),), (started(), JobFailed(error="e", message="m"))]
)
def test_without_a_whole_answer_there_is_nothing_to_replay(events: tuple[Event, ...]) -> None:
    assert refused(*events) is Refusal.NOT_COMPLETED


def test_a_stream_that_is_no_job_is_refused() -> None:
    with pytest.raises(ReplayRefused, match="not in the log"):
        read_recording(JOB, recorded(submitted(), started())[1:])
    with pytest.raises(ReplayRefused, match="not in the log"):
        read_recording(JOB, ())


def resumed(attempt: int, **fields: object) -> AttemptStarted:
    values: dict[str, object] = {"resumed_tokens": 2} | fields
    return replace(started(attempt), **values)  # type: ignore[arg-type]


def test_an_answer_of_two_models_is_refused() -> None:
    assert refused(started(), resumed(2, fingerprint="g"), completed(2)) is Refusal.SEVERAL_MODELS
    other = resumed(2, sampling=Sampling(temperature=0))
    assert refused(started(), other, completed(2)) is Refusal.SEVERAL_MODELS


def test_a_model_whose_words_are_not_in_the_answer_does_not_count() -> None:
    fresh = resumed(2, fingerprint="g", resumed_tokens=0)
    assert read(started(), fresh, completed(2)).started.fingerprint == "g"
    ends = (JobFailed(error="e", message="m"), JobRetried(reason="api"))
    assert read(started(), *ends, fresh, completed(2)).started.fingerprint == "g"


def test_an_event_of_a_newer_program_is_refused() -> None:
    events = [replace(one, schema_version=99) for one in recorded(submitted())]
    with pytest.raises(ReplayRefused) as caught:
        read_recording(JOB, events)
    assert caught.value.reason is Refusal.UNREADABLE


def _answer(ids: list[int] | None, token_hash: str) -> tuple[Recording, bytes]:
    payload = canonical_json({"text": "hi"} | ({} if ids is None else {"token_ids": ids}))
    end: JobCompleted = replace(completed(), output=digest_of(payload), token_hash=token_hash)
    return read(started(), end), payload


def test_a_stored_answer_must_have_the_tokens_of_the_log() -> None:
    recording, payload = _answer([1, 2], hash_ids([1, 2]))
    assert read_answer(recording, payload).token_ids == (1, 2)
    with pytest.raises(ReplayRefused, match="hash"):
        read_answer(*_answer([1, 2], hash_ids([1, 3])))
    assert read_answer(*_answer(None, "0")).token_ids is None


def test_the_prompt_must_render_to_the_same_tokens() -> None:
    tokens = tuple(range(10))
    known = read(replace(started(), prompt_hash=hash_ids(tokens)), completed())
    check_prompt(known, tokens)
    check_prompt(read(started(), completed()), tokens[::-1])
    for others in (tokens[::-1], tokens[1:]):
        with pytest.raises(ReplayRefused) as caught:
            check_prompt(known, others)
        assert caught.value.reason is Refusal.PROMPT_DIFFERS


@given(st.integers(0, 60), st.none() | st.integers(1, 70))
def test_a_sample_is_spread_over_all(jobs: int, count: int | None) -> None:
    names = [f"{number:03}" for number in range(jobs)]
    chosen = spread(names, count)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == (jobs if count is None else min(count, jobs))
    if chosen:
        assert chosen[-1] == names[-1]
