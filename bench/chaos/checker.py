"""The checker: which promises a recorded history breaks. Pure, so tests can give it broken ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from bench.chaos.answers import check_answers
from bench.chaos.ends import check_ends
from bench.chaos.history import Event, History, Operation, Violation
from bench.chaos.jobs_in_log import ENDS, SUBMITTED, check_jobs


def check(history: History, *, others: tuple[str, ...] = ()) -> tuple[Violation, ...]:
    """Return every broken promise; empty if all were kept.

    Args:
        history: The recorded history.
        others: Prefixes of the names of clients whose operations are not recorded.
    """
    return tuple(_all(history, others))


def _all(history: History, others: tuple[str, ...]) -> Iterator[Violation]:
    yield from _check_log(history)
    yield from check_jobs(history.events)
    submitted = _submitted(history.events)
    for operation in history.operations:
        yield from _check_acceptance(operation, submitted)
        yield from _check_states(operation, history)
        yield from check_answers(operation, history)
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
