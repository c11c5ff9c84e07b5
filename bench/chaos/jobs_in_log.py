"""Checks each job's events: in order, ended once, one attempt at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from bench.chaos.history import Event, Violation

SUBMITTED: Final = "JobSubmitted"
ENDS: Final = {
    "JobCompleted": "completed",
    "JobCancelled": "cancelled",
    "JobFailed": "failed",
    "JobExpired": "expired",
}
#: Events allowed after the end: a repeated request that got the stored answer, and a deletion.
_AFTER_THE_END: Final = {"JobAttached", "JobHidden"}
#: Errors of ``JobFailed`` where the limit of worker deaths or of attempts ended a job.
_GIVEN_UP: Final = "given up: "
#: Errors of ``AttemptFailed`` that no injected fault explains: the code itself is at fault.
_OWN_FAULTS: Final = {"internal_error", "engine_failure"}


def check_jobs(events: Sequence[Event]) -> Iterator[Violation]:
    """Yield the violations in the events of all jobs."""
    jobs: dict[str, list[Event]] = {}
    for event in events:
        if event.stream.startswith("job-"):
            jobs.setdefault(event.stream, []).append(event)
    for job, own in jobs.items():
        yield from _check_life(job, own)
        yield from _check_attempts(job, own)


def _check_life(job: str, events: Sequence[Event]) -> Iterator[Violation]:
    if events[0].type != SUBMITTED or sum(e.type == SUBMITTED for e in events) != 1:
        yield Violation("one request, one job", job, f"begins with {events[0].type}")
    ends = [index for index, event in enumerate(events) if event.type in ENDS]
    if not ends:
        what = f"its last event is {events[-1].type} at {events[-1].position}"
        yield Violation("every accepted job ends", job, what)
        return
    if len(ends) > 1:
        what = "ended by " + " and ".join(events[index].type for index in ends)
        yield Violation("a job ends once", job, what)
    for event in events[ends[0] + 1 :]:
        if event.type not in _AFTER_THE_END and event.type not in ENDS:
            what = f"{event.type} at {event.position} after its end"
            yield Violation("an end is final", job, what)
    yield from _check_end(job, events[ends[0]], events)


def _check_end(job: str, end: Event, events: Sequence[Event]) -> Iterator[Violation]:
    """A kill must not fail a job, and no client sets a deadline."""
    types = {event.type for event in events}
    if end.type == "JobExpired":
        yield Violation("answers are whole", job, "expired, with no deadline")
    if end.type == "JobCancelled" and "JobCancelRequested" not in types:
        yield Violation("answers are whole", job, "cancelled without a cancellation request")
    if end.type != "JobFailed":
        return
    message = str(end.data.get("message", ""))
    deaths = sum(event.type == "AttemptStarted" for event in events)
    cap = int(events[0].data.get("worker_deaths_max", 1))
    if not message.startswith(_GIVEN_UP) or deaths < cap:
        what = f"failed after {deaths} attempts: {message or 'no word why'}"
        yield Violation("answers are whole", job, what)


def _check_attempts(job: str, events: Sequence[Event]) -> Iterator[Violation]:
    """An attempt emits from its start to the start of the next, or to its failure."""
    current, active_attempt = 0, False
    for event in events:
        number = event.data.get("attempt")
        if event.type == "AttemptFailed" and event.data.get("error") in _OWN_FAULTS:
            what = f"attempt {number}: {event.data.get('message', 'no word why')}"
            yield Violation("no attempt fails by itself", job, what)
        if event.type == "AttemptStarted":
            if number != current + 1:
                what = f"attempt {number} started after attempt {current}"
                yield Violation("one attempt speaks", job, what)
            current, active_attempt = int(number or 0), True
        elif number is not None and (number or event.type == "JobCompleted"):
            if number != current or not active_attempt:
                what = f"{event.type} of attempt {number} at {event.position}, {current} is current"
                yield Violation("one attempt speaks", job, what)
            active_attempt = active_attempt and event.type != "AttemptFailed"
