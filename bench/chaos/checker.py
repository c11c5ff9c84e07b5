"""The checker: which promises a recorded history breaks. Pure, so tests can give it broken ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from bench.chaos.ends import ENDS, SUBMITTED, check_ends
from bench.chaos.history import (
    Event,
    History,
    Item,
    Operation,
    Reading,
    Violation,
)

#: Events allowed after the end: a repeated request that got the stored answer, and a deletion.
_AFTER_THE_END: Final = {"JobAttached", "JobHidden"}
#: Errors of ``JobFailed`` where the limit of worker deaths or of attempts ended a job.
_GIVEN_UP: Final = "given up: "
#: Errors of ``AttemptFailed`` that no injected fault explains: the code itself is at fault.
_OWN_FAULTS: Final = {"internal_error", "engine_failure"}
#: Kinds of an item that ends a stream.
_TERMINAL: Final = {"finished", "failed"}


def check(history: History, *, others: tuple[str, ...] = ()) -> tuple[Violation, ...]:
    """Return every broken promise; empty if all were kept.

    Args:
        history: The recorded history.
        others: Prefixes of the names of clients whose operations are not recorded.
    """
    return tuple(_all(history, others))


def _all(history: History, others: tuple[str, ...]) -> Iterator[Violation]:
    yield from _check_log(history)
    yield from _check_jobs(history.events)
    submitted = _submitted(history.events)
    for operation in history.operations:
        yield from _check_acceptance(operation, submitted)
        yield from _check_states(operation, history)
        yield from _check_answers(operation, history)
    yield from check_ends(history)
    yield from _check_strangers(history, submitted, others)


def _check_log(history: History) -> Iterator[Violation]:
    if history.chain:
        yield Violation("chain verifies", "log", history.chain)
    versions: Counter[str] = Counter()
    for due, event in enumerate(history.events, start=1):
        if event.position != due:
            what = f"position {event.position} stands where {due} was due"
            yield Violation("log is gapless", "log", what)
            return
        versions[event.stream] += 1
        if event.version != versions[event.stream]:
            what = f"version {event.version} at position {due}, {versions[event.stream]} was due"
            yield Violation("log is gapless", event.stream, what)


def _submitted(events: tuple[Event, ...]) -> dict[str, str]:
    """Return the client of every job in the log."""
    return {e.stream: str(e.data.get("client")) for e in events if e.type == SUBMITTED}


def _check_acceptance(operation: Operation, submitted: dict[str, str]) -> Iterator[Violation]:
    """An accepted request is in the log once."""
    who = operation.client
    if operation.bad_reply is not None:
        yield Violation("errors are honest", who, operation.bad_reply)
    if not operation.answered:
        what = f"no end after {operation.sendings} sendings; jobs {list(operation.accepted)}"
        yield Violation("every request ends", who, what)
    for job in dict.fromkeys(operation.accepted):
        if job not in submitted:
            yield Violation("accepted is logged", job, f"{who} has its id")
        elif submitted[job] != who and not _may_join(operation):
            what = f"{who} was given the job of {submitted[job]}"
            yield Violation("one request, one job", job, what)
    jobs = [job for job, client in submitted.items() if client == who]
    most = (1 if operation.keyed else operation.sendings) * max(1, len(operation.lines))
    if len(jobs) > most:
        what = f"{len(jobs)} jobs for {most} that were asked for: {jobs}"
        yield Violation("one request, one job", who, what)
    if operation.keyed and len(set(operation.accepted)) > 1:
        what = f"one key led to {sorted(set(operation.accepted))}"
        yield Violation("one request, one job", who, what)


def _may_join(operation: Operation) -> bool:
    """Whether it may receive another client's equal answer: a repeat without a key (ADR 0006)."""
    return not operation.keyed and operation.sendings > 1


def _check_states(operation: Operation, history: History) -> Iterator[Violation]:
    """A job's final state never changes; a cancelled job ends."""
    ended: str | None = None
    for status in operation.statuses:
        if ended is not None and status != ended:
            what = f"was seen {ended} and then {status}"
            yield Violation("an end is final", operation.client, what)
        if status in ENDS.values():
            ended = status
    for job in dict.fromkeys(operation.accepted):
        outcome = history.outcomes.get(job)
        if outcome is None:
            yield Violation("every job can be found", job, "it is not listed")
        elif operation.cancel_confirmed and outcome.status not in {"cancelled", "completed"}:
            what = f"is {outcome.status} although its cancellation was confirmed"
            yield Violation("cancelled jobs end", job, what)
        elif ended is not None and outcome.status != ended:
            what = f"was seen {ended} and is {outcome.status} in the end"
            yield Violation("an end is final", job, what)


def _check_strangers(
    history: History, submitted: dict[str, str], others: tuple[str, ...]
) -> Iterator[Violation]:
    """Every answered job was submitted, and the list of jobs agrees with the log."""
    known = {operation.client for operation in history.operations}
    for job, client in submitted.items():
        if client not in known and not client.startswith(others):
            yield Violation("one request, one job", job, f"of {client}?")
    ends = {e.stream: ENDS[e.type] for e in history.events if e.type in ENDS}
    for job, outcome in history.outcomes.items():
        if job not in submitted:
            yield Violation("accepted is logged", job, "is only in the list")
        elif job in ends and ends[job] != outcome.status:
            what = f"is {outcome.status} in the list and {ends[job]} in the log"
            yield Violation("an end is final", job, what)


# --- events of jobs ---------------------------------------------------------------------------


def _check_jobs(events: Sequence[Event]) -> Iterator[Violation]:
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


# --- answers ----------------------------------------------------------------------------------


def _check_answers(operation: Operation, history: History) -> Iterator[Violation]:
    """Yield the violations in what one client received."""
    for reading in operation.readings:
        yield from _check_order(reading)
    yield from _check_same(operation)
    expected = history.baseline.get(operation.request)
    if expected is None:
        return
    if operation.request.calls_tool:
        yield from _check_calls(operation)
    for reading in operation.readings:
        if reading.after < 0:
            yield from _check_text(reading.job, reading.text, expected, whole=reading.is_whole)
    yield from _check_joined(operation, expected)
    for job in dict.fromkeys(operation.accepted):
        outcome = history.outcomes.get(job)
        if outcome is not None and (outcome.text is not None or outcome.status == "completed"):
            whole = outcome.status == "completed"
            yield from _check_text(job, outcome.text or "", expected, whole=whole)


def _check_order(reading: Reading) -> Iterator[Violation]:
    """Item numbers are consecutive from the cursor, attempts never decrease, the end is last."""
    due, attempt, ended = reading.after + 1, 0, False
    for item in reading.items:
        if ended:
            yield Violation("items in order", reading.job, f"{item.kind} after the end")
            return
        ended = item.kind in _TERMINAL
        if item.n is None:
            continue
        if item.n != due:
            what = f"item {item.n} came where {due} was due (cursor {reading.after})"
            yield Violation("items in order", reading.job, what)
            return
        if item.attempt < attempt:
            what = f"attempt {item.attempt} emitted item {item.n} after attempt {attempt} had"
            yield Violation("one attempt speaks", reading.job, what)
            return
        due, attempt = item.n + 1, item.attempt


def _check_same(operation: Operation) -> Iterator[Violation]:
    """An item number always carries the same item, on every connection and from every attempt."""
    seen: dict[tuple[str, int], Item] = {}
    for reading in operation.readings:
        for item in reading.items:
            if item.n is None:
                continue
            first = seen.setdefault((reading.job, item.n), item)
            if (first.kind, first.text) != (item.kind, item.text):
                what = (
                    f"item {item.n} was {first.kind} {first.text!r}, then {item.kind} {item.text!r}"
                )
                yield Violation("items never change", reading.job, what)
                return


def _check_joined(operation: Operation, expected: str) -> Iterator[Violation]:
    """The items of all connections of a client join to one answer."""
    parts: dict[str, dict[int, Item]] = {}
    for reading in operation.readings:
        own = parts.setdefault(reading.job, {})
        own.update({item.n: item for item in reading.items if item.n is not None})
    for job, items in parts.items():
        if not items or sorted(items) != list(range(len(items))):
            continue  # _check_order reports gaps; the items after a gap cannot be joined
        text = "".join(items[n].text for n in range(len(items)) if items[n].kind == "text")
        last = items[len(items) - 1]
        cancelled = "cancelled" in last.text
        whole = last.kind == "finished" and not cancelled
        yield from _check_text(job, text, expected, whole=whole)


def _check_calls(operation: Operation) -> Iterator[Violation]:
    """The arguments of a whole tool call are an object that has the required property."""
    for reading in operation.readings:
        if not reading.is_whole:
            continue
        try:
            called = json.loads(reading.text)
        except ValueError:
            called = None
        if not isinstance(called, dict) or not isinstance(called.get("location"), str):
            what = f"its arguments are {reading.text[:80]!r}"
            yield Violation("tool calls are whole", reading.job, what)


def _check_text(job: str, text: str, expected: str, *, whole: bool) -> Iterator[Violation]:
    """A whole answer equals the baseline; a partial answer is its beginning."""
    if text == expected or (not whole and expected.startswith(text)):
        return
    at = next((i for i, (a, b) in enumerate(zip(text, expected, strict=False)) if a != b), None)
    at = min(len(text), len(expected)) if at is None else at
    what = (
        f"{'the whole answer' if whole else 'a part'} has {len(text)} characters of"
        f" {len(expected)} and differs at {at}: {text[at : at + 20]!r} for"
        f" {expected[at : at + 20]!r}"
    )
    yield Violation("answers are the undisturbed ones", job, what)
