"""Hypothesis strategies for events, items and whole job histories."""

from __future__ import annotations

import typing
from functools import cache
from typing import Any

from hypothesis import strategies as st

from domain.chat.items import Body, Failed, StreamItem
from domain.errors import SemanticError
from domain.events.event import Event
from domain.events.job import (
    AttemptStarted,
    JobAttached,
    JobCancelled,
    JobCancelRequested,
    JobCompleted,
    JobEvent,
    JobReleased,
    JobRetried,
)
from domain.job.decisions import JobProposal, decide, failed_attempt
from domain.job.state import DEADLINE, Job, evolve
from domain.values import JobId, StopReason, Timings, Usage, WorkerId, digest_of
from tests.support.builders.job_events import submitted

#: JSON has no infinities, and -0.0 is a number like any other.
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
COUNTS = st.integers(0, 2**31 - 1)
st.register_type_strategy(float, FLOATS)


def events() -> st.SearchStrategy[Event]:
    """Any event of any type."""
    return _any_of(Event)


def items() -> st.SearchStrategy[StreamItem]:
    """Any stream item."""
    return st.builds(
        StreamItem, n=st.none() | COUNTS, attempt=st.integers(1, 9), body=_any_of(Body)
    )


def _any_of(union: Any) -> st.SearchStrategy[Any]:
    return st.one_of([st.from_type(option) for option in typing.get_args(union)])


def commands(job: Job) -> st.SearchStrategy[JobProposal]:
    """Any command, most often one that is valid for the job."""
    return _commands(job.attempt)


@cache  # Hypothesis checks each new strategy, which takes longer than a command from it
def _commands(attempt: int) -> st.SearchStrategy[JobProposal]:
    attempts = st.sampled_from([attempt, 0, attempt + 1])
    usage = st.builds(Usage, prompt_tokens=COUNTS, cached_tokens=COUNTS, completion_tokens=COUNTS)
    return st.one_of(
        st.builds(
            AttemptStarted,
            attempt=attempts,
            worker=st.just(WorkerId("worker-1")),
            model=st.just("m"),
            fingerprint=st.just("f"),
            prompt_tokens=COUNTS,
            cached_tokens=COUNTS,
            cache_source=st.sampled_from(["none", "ram", "disk"]),
            first_item=COUNTS,
            resumed_tokens=COUNTS,
        ),
        st.builds(
            JobCompleted,
            attempt=attempts,
            stop_reason=st.sampled_from(StopReason),
            stop_sequence=st.none() | st.text(),
            usage=usage,
            output=st.just(digest_of(b"output")),
            token_hash=st.just("0" * 64),
            timings=st.builds(Timings),
        ),
        st.builds(failed_attempt, attempt=attempts, failure=st.from_type(Failed)),
        st.builds(JobCancelRequested, reason=st.text() | st.just(DEADLINE)),
        st.builds(JobCancelled, attempt=attempts, usage=usage),
        st.builds(JobAttached, reason=st.just("again"), request_id=st.none() | st.text()),
        st.builds(JobReleased),
        st.builds(JobRetried, reason=st.just("operator")),
    )


@st.composite
def histories(draw: st.DrawFn, *, length_max: int = 12) -> tuple[JobEvent, ...]:
    """The events of a job with a valid history."""
    agent = draw(st.none() | st.sampled_from(["a", "b", ""]))
    accept = submitted(agent=agent, model=draw(st.text()), attempts_max=draw(st.integers(1, 3)))
    job = Job(id=JobId("job-any"), submitted=accept)
    history: list[JobEvent] = [accept]
    for _ in range(draw(st.integers(0, length_max - 1))):
        for event in draw(_next(job)):
            history.append(event)
            job = evolve(job, event)
    return tuple(history)


@st.composite
def _next(draw: st.DrawFn, job: Job) -> tuple[JobEvent, ...]:
    try:
        return decide(job, draw(commands(job)))
    except SemanticError:
        return ()
