"""Checks what follows an end: webhook messages, results of batches, and swaps of models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from bench.chaos.history import Event, History, Operation, Violation, WebhookMessage

SUBMITTED: Final = "JobSubmitted"
ENDS: Final = {
    "JobCompleted": "completed",
    "JobCancelled": "cancelled",
    "JobFailed": "failed",
    "JobExpired": "expired",
}
_BATCH_SUBMITTED: Final = "BatchSubmitted"
_BATCH_ENDED: Final = "BatchEnded"
_SWAPS: Final = "models"


def check_ends(history: History) -> Iterator[Violation]:
    """Yield the violations in messages, batches and swaps."""
    yield from _check_messages(history)
    yield from _check_sent(history)
    for operation in history.operations:
        if operation.lines:
            yield from _check_results(operation, history)
    yield from _check_batches(history)
    yield from _check_swaps(history)


def unsent(events: Iterable[Event], messages: Iterable[WebhookMessage]) -> dict[str, str]:
    """Return the jobs and batches that name a receiver, ended, and were not delivered.

    Returns:
        The type of the message that lacks, by its subject.
    """
    events = tuple(events)
    ends, sent = _ends(events), {message.subject for message in messages}
    return {
        event.stream: ends[event.stream]
        for event in events
        if event.type in {SUBMITTED, _BATCH_SUBMITTED}
        and event.data.get("webhook")
        and event.stream in ends
        and event.stream not in sent
    }


def _ends(events: Iterable[Event]) -> dict[str, str]:
    """Return the end of each job and batch, as the type of its message."""
    # No client cancels a batch or gives it a time limit.
    types = {type_: f"job.{end}" for type_, end in ENDS.items()} | {_BATCH_ENDED: "batch.completed"}
    return {event.stream: types[event.type] for event in events if event.type in types}


def _check_messages(history: History) -> Iterator[Violation]:
    """A message is signed, belongs to an end of the log, and is the same in each delivery."""
    ends = _ends(history.events)
    digests: dict[str, str] = {}
    ids: dict[str, str] = {}
    for message in history.messages:
        if not message.is_signed:
            yield Violation("messages are signed", message.id, "it is not")
        if digests.setdefault(message.id, message.digest) != message.digest:
            what = f"two bodies for {message.subject}"
            yield Violation("messages never change", message.id, what)
        if ids.setdefault(message.subject, message.id) != message.id:
            what = f"{ids[message.subject]} and {message.id}"
            yield Violation("one end, one message", message.subject, what)
        if ends.get(message.subject) != message.type:
            what = f"{message.type} was sent, and the log has {ends.get(message.subject)}"
            yield Violation("messages are of ends", message.subject, what)


def _check_sent(history: History) -> Iterator[Violation]:
    """The end of a job or batch that names a receiver was delivered."""
    for subject, end in unsent(history.events, history.messages).items():
        yield Violation("every end is sent", subject, f"{end} was not received")


def _check_results(operation: Operation, history: History) -> Iterator[Violation]:
    """Each line has one result, which is the undisturbed answer."""
    if not operation.answered:
        return
    subject = operation.batch or operation.client
    counts = Counter(result.line for result in operation.results)
    if counts != Counter(range(len(operation.lines))):
        what = f"{len(operation.lines)} lines have the results {sorted(counts.elements())}"
        yield Violation("one line, one result", subject, what)
        return
    for result in operation.results:
        expected = history.baseline.get(operation.lines[result.line])
        if result.status != "succeeded":
            yield Violation("answers are whole", subject, f"line {result.line} is {result.status}")
        elif expected is not None and result.text != expected:
            what = f"line {result.line} has {result.text[:40]!r} for {expected[:40]!r}"
            promise = "answers are the undisturbed ones"
            yield Violation(promise, subject, what)


def _check_batches(history: History) -> Iterator[Violation]:
    """An accepted batch is in the log and ends once."""
    batches: dict[str, list[Event]] = {}
    for event in history.events:
        if event.stream.startswith("batch-"):
            batches.setdefault(event.stream, []).append(event)
    for operation in history.operations:
        if operation.batch is not None and operation.batch not in batches:
            yield Violation("accepted is logged", operation.batch, f"{operation.client} has its id")
    for batch, events in batches.items():
        ended = sum(event.type == _BATCH_ENDED for event in events)
        if ended != 1:
            yield Violation("a batch ends once", batch, f"has {ended} ends")


def _check_swaps(history: History) -> Iterator[Violation]:
    """An accepted swap is in the log and is served, rolled back with a reason, or superseded."""
    events = [event for event in history.events if event.stream == _SWAPS]
    asked = [str(e.data["swap"]) for e in events if e.type == "ModelSwapRequested"]
    kinds: dict[str, Counter[str]] = {swap: Counter() for swap in asked}
    for event in events:
        swap = event.data.get("swap")
        if swap in kinds:
            kinds[str(swap)][event.type] += 1
    for swap in history.swaps:
        if swap not in kinds:
            yield Violation("accepted is logged", swap, "no such swap")
    for swap, counts in kinds.items():
        if counts["ModelSwapRolledBack"] and not counts["ModelLoadLost"]:
            yield Violation("every swap ends", swap, "rolled back although no load was lost")
        is_over = counts["ModelServed"] or counts["ModelSwapRolledBack"]
        if not is_over and swap == asked[-1]:
            yield Violation("every swap ends", swap, f"its events are {dict(counts)}")
