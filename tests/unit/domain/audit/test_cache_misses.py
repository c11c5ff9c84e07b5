"""Missed tokens to the token, and the earlier context that explains them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from domain.audit.recent_ends import (
    COMPARED_JOBS_MAX,
    MISSED_TOKENS_MIN,
    CacheDiagnosis,
    diagnose_cache,
)
from domain.chat.divergence import Cause, PromptDivergence
from domain.chat.request import ChatRequest, Message
from domain.values import AgentId, Digest, JobId, Owner, SamplingWish, StreamName, Usage, digest_of
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.fakes.event_log import InMemoryEventLog

SYSTEM = Message(role="system", content="You help.")
USER = Message(role="user", content="Read the file.")
NEXT = Message(role="user", content="And now?")
OTHER = Message(role="user", content="Tell a joke.")


class Answers:
    """A log of answered jobs, with the numbers of tokens that a test sets."""

    def __init__(self) -> None:
        self.log = InMemoryEventLog()

    def add(
        self,
        *messages: Message,
        prompt: int = 100,
        completion: int = 0,
        cached: int = 0,
        attempt: Mapping[str, Any] | None = None,
        **facts: Any,
    ) -> JobId:
        """Record a job: ``attempt`` and ``facts`` are fields of its events."""
        job_id = JobId(f"job-{len(self.log.views.rows)}")
        request = ChatRequest(
            model="m", messages=messages, max_tokens=9, sampling=SamplingWish(seed=1)
        ).to_bytes()
        usage = Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion)
        begun = replace(started(), prompt_tokens=prompt, cached_tokens=cached, cache_source="none")
        events = (
            replace(submitted(), request=digest_of(request), **facts),
            replace(begun, **attempt or {}),
            replace(completed(), usage=usage),
        )
        drafts = [draft(event) for event in events]
        payloads = {digest_of(request): request}
        self.log.append(StreamName(job_id), drafts, expected_version=0, payloads=payloads)
        return job_id

    def diagnosis(self, job_id: JobId) -> CacheDiagnosis:
        views, log = self.log.views, self.log
        found = diagnose_cache(job_id, views=views, log=log, payloads=log)
        assert found is not None
        return found


def cause_of(found: CacheDiagnosis) -> Cause | None:
    return None if found.divergence is None else found.divergence.cause


def test_diagnosis_names_everything_that_was_missed() -> None:
    answers = Answers()
    before = answers.add(SYSTEM, USER, prompt=300, completion=50)
    now = answers.add(SYSTEM, USER, prompt=400, cached=100, attempt={"cache_source": "disk"})
    assert answers.diagnosis(now) == CacheDiagnosis(
        prompt_tokens=400,
        cached_tokens=100,
        source="disk",
        known_tokens=100,
        missed_tokens=250,
        compared_with=before,
        divergence=PromptDivergence(cause=Cause.BLOCKS_GONE, place="cache"),
    )


def test_no_more_is_missed_than_the_prompt_has() -> None:
    answers = Answers()
    answers.add(SYSTEM, USER, prompt=900)
    now = answers.add(SYSTEM, USER, prompt=400, cached=100)
    assert answers.diagnosis(now).missed_tokens == 300


def test_first_job_of_all_misses_nothing() -> None:
    answers = Answers()
    assert answers.diagnosis(answers.add(USER, prompt=400)) == CacheDiagnosis(
        prompt_tokens=400, cached_tokens=0, source="none"
    )


@pytest.mark.parametrize("missed", [MISSED_TOKENS_MIN - 1, MISSED_TOKENS_MIN])
@pytest.mark.parametrize(("before", "now"), [(500, 100), (100, 500)])
def test_last_tokens_of_a_prompt_are_no_miss(before: int, now: int, missed: int) -> None:
    answers = Answers()
    answers.add(USER, prompt=before)
    found = answers.diagnosis(answers.add(USER, prompt=now, cached=100 - missed))
    assert found.missed_tokens == (missed if missed == MISSED_TOKENS_MIN else 0)
    assert (found.divergence is None) == (missed < MISSED_TOKENS_MIN)


@pytest.mark.parametrize(
    ("reused", "held", "known", "shown"),
    [
        (0, 40, 40, (40, 40)),
        (30, 40, 40, (30, 30)),
        (30, 40, 90, (30, 90)),
        (30, 20, 0, (30, 30)),
    ],
)
def test_reused_tokens_go_before_those_that_the_cache_held(
    reused: int, held: int, known: int, shown: tuple[int, int]
) -> None:
    answers = Answers()
    attempt = {"cached_tokens": held, "known_tokens": known}
    found = answers.diagnosis(answers.add(USER, cached=reused, attempt=attempt))
    assert (found.cached_tokens, found.known_tokens) == shown


@pytest.mark.parametrize(
    ("own", "others"),
    [
        ({"agent": AgentId("ann")}, {"agent": AgentId("bob")}),
        ({"agent": AgentId("ann")}, {}),
        ({"owner": Owner("ann")}, {"owner": Owner("bob")}),
    ],
)
def test_jobs_of_others_in_between_are_no_reason_to_compare_with_nothing(
    own: Mapping[str, Any], others: Mapping[str, Any]
) -> None:
    answers = Answers()
    before = answers.add(USER, prompt=300, **own)
    for _ in range(COMPARED_JOBS_MAX):
        answers.add(USER, prompt=300, **others)
    found = answers.diagnosis(answers.add(USER, prompt=300, **own))
    assert found.compared_with == before


def test_jobs_without_an_agent_are_not_compared_with_those_of_an_agent() -> None:
    answers = Answers()
    answers.add(USER, prompt=300, agent=AgentId("ann"))
    assert answers.diagnosis(answers.add(USER, prompt=300)).compared_with is None


def test_context_that_shares_most_is_compared_and_of_equals_the_newest() -> None:
    answers = Answers()
    answers.add(SYSTEM, USER, prompt=300)
    nearest = answers.add(SYSTEM, USER, prompt=300)
    answers.add(SYSTEM, OTHER, prompt=300)
    found = answers.diagnosis(answers.add(SYSTEM, USER, NEXT, prompt=300))
    assert found.compared_with == nearest


def test_other_weights_are_the_cause_where_the_model_changed() -> None:
    answers = Answers()
    answers.add(USER, prompt=300, attempt={"fingerprint": "old"})
    found = answers.diagnosis(answers.add(USER, prompt=300))
    assert found.divergence == PromptDivergence(cause=Cause.MODEL_CHANGED, place="model")


@pytest.mark.parametrize(
    ("origin", "cause"), [("job-0", Cause.BLOCKS_GONE), ("", Cause.ANSWER_REWRITTEN)]
)
def test_turn_that_echoes_the_answer_of_the_compared_job_is_no_difference(
    origin: str, cause: Cause
) -> None:
    answers = Answers()
    assert answers.add(USER, prompt=300) == "job-0"
    echo = Message(role="assistant", content="Done.", origin=origin)
    assert cause_of(answers.diagnosis(answers.add(USER, echo, NEXT, prompt=400))) is cause


@pytest.mark.parametrize(
    ("facts", "cause"),
    [({"agent": AgentId("ann")}, Cause.HISTORY_CUT), ({}, Cause.OTHER_CONVERSATION)],
)
def test_shorter_conversation_of_an_agent_is_one_that_was_cut(
    facts: Mapping[str, Any], cause: Cause
) -> None:
    answers = Answers()
    answers.add(SYSTEM, USER, NEXT, prompt=300, **facts)
    found = answers.diagnosis(answers.add(SYSTEM, OTHER, prompt=300, **facts))
    assert cause_of(found) is cause


def test_erased_texts_are_not_compared() -> None:
    answers = Answers()
    before = answers.add(USER, prompt=300)
    now = answers.add(USER, NEXT, prompt=300)
    for job_id in (before, now):
        answers.log.lose_payload(Digest(answers.log.views.rows[job_id].submitted.request))
        assert answers.diagnosis(now) == CacheDiagnosis(
            prompt_tokens=300, cached_tokens=0, source="none"
        )
