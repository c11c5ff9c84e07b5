"""All facts of a recording, and what people read where an answer cannot be replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace

import pytest

from domain.audit.replay import (
    Recording,
    Refusal,
    ReplayRefused,
    check_prompt,
    parting_of,
    read_answer,
    read_recording,
)
from domain.events.event import Event
from domain.events.job import AttemptStarted, EmbeddingRequested, JobFailed, JobRetried
from domain.kv.hashing import hash_ids
from domain.values import JobId, PromptEncoding, Sampling, StopReason, Usage, WorkerId, digest_of
from tests.support.builders.job_events import completed, started, submitted
from tests.unit.domain.audit.test_replay import JOB, read, recorded, resumed

TOKENS = tuple(range(1000, 2200))
_FORK = replace(submitted(), parent=JobId("job-0"), parent_tokens=3)


def test_recording_has_every_fact_of_its_answer() -> None:
    sampling = Sampling(temperature=0.5, seed=3)
    last = AttemptStarted(
        attempt=4,
        worker=WorkerId("worker-2"),
        model="large",
        fingerprint="g",
        prompt_tokens=20,
        cached_tokens=8,
        cache_source="disk",
        first_item=5,
        sampling=sampling,
        resumed_tokens=2,
        prompt_hash="ab",
        thinking_limit=64,
        known_tokens=9,
        encoding=PromptEncoding.MARKS_READ,
    )
    end = replace(
        completed(4),
        stop_reason=StopReason.STOP_SEQUENCE,
        stop_sequence="END",
        usage=Usage(prompt_tokens=20, cached_tokens=7, completion_tokens=5),
    )
    assert read(replace(last, attempt=3), last, end) == Recording(
        job=JOB, request=digest_of(b"request"), started=last, completed=end
    )


@pytest.mark.parametrize(
    ("stored", "replayed", "found"),
    [
        ("same", "same", None),
        ("a b", "a c", (2, "a ", "b", "c")),
        ("a", "ab", (1, "a", "", "b")),
        ("", "x", (0, "", "", "x")),
    ],
)
def test_texts_part_at_their_first_other_character(
    stored: str, replayed: str, found: tuple[int, str, str, str] | None
) -> None:
    parting = parting_of(stored, replayed)
    assert found == (None if parting is None else astuple(parting))


def test_attempt_that_goes_on_from_none_that_is_known_counts_alone() -> None:
    failed = (JobFailed(error="e", message="m"), JobRetried(reason="api"))
    assert read(resumed(1), completed()).started.attempt == 1
    assert (
        read(started(), *failed, resumed(2, fingerprint="g"), completed(2)).started.fingerprint
        == "g"
    )


def _known() -> Recording:
    begun = replace(started(), prompt_tokens=len(TOKENS), prompt_hash=hash_ids(TOKENS))
    return read(begun, replace(completed(), token_hash=hash_ids([1])))


def _read(*events: Event) -> Callable[[], object]:
    return lambda: read_recording(JOB, recorded(submitted(), *events))


@pytest.mark.parametrize(
    ("act", "reason", "message"),
    [
        (
            _read(started()),
            Refusal.NOT_COMPLETED,
            "job job-1 has no whole answer: it has not completed",
        ),
        (
            lambda: read_recording(JOB, recorded(_FORK, started(), completed())),
            Refusal.FORKED,
            "job job-1 took over 3 tokens of job-0; replay that one",
        ),
        (
            _read(EmbeddingRequested(texts=1)),
            Refusal.NO_TEXT,
            "job job-1 computed vectors and generated no text",
        ),
        (
            _read(started(), resumed(2, fingerprint="g"), completed(2)),
            Refusal.SEVERAL_MODELS,
            "the answer was begun by one model and continued by another",
        ),
        (
            _read(started(), resumed(2, sampling=Sampling(seed=9)), completed(2)),
            Refusal.SEVERAL_MODELS,
            "the answer was begun and continued with different rules for drawing tokens",
        ),
        (
            lambda: read_answer(_known(), b'{"text":"hi","token_ids":[2]}'),
            Refusal.PAYLOAD_CHANGED,
            "the stored tokens are not those whose hash stands in the log",
        ),
        (
            lambda: check_prompt(_known(), TOKENS[1:]),
            Refusal.PROMPT_DIFFERS,
            "the request renders to 1,199 tokens now and did to 1,200 then",
        ),
        (
            lambda: check_prompt(_known(), TOKENS[::-1]),
            Refusal.PROMPT_DIFFERS,
            "the request renders to other tokens now than then",
        ),
    ],
)
def test_operator_reads_why_an_answer_cannot_be_replayed(
    act: Callable[[], object], reason: Refusal, message: str
) -> None:
    with pytest.raises(ReplayRefused) as caught:
        act()
    assert (caught.value.reason, caught.value.message) == (reason, message)
    assert str(caught.value) == message
