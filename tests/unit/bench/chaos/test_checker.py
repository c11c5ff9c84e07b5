"""The judge of chaos finds nothing in a history that is well, and each lie planted in one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bench.chaos.checker import check
from bench.chaos.history import Event, History, Item, Kind, Operation, Outcome, Reading, RequestSpec

FOX = RequestSpec(prompt="Tell me of a fox.", max_tokens=8, temperature=0, seed=1)
TEXT = "A fox ran."
STREAMED, TALK, STOPPED = "job-1", "job-2", "job-3"

Change = Callable[[History], History]


def item(n: int | None, kind: str, text: str = "", attempt: int = 1) -> Item:
    return Item(n=n, attempt=attempt, kind=kind, text=text)


def operation(client: str, kind: Kind, job: str, **more: Any) -> Operation:
    fields: dict[str, Any] = {"keyed": True, "sendings": 1, "statuses": ("queued", "completed")}
    return Operation(client=client, kind=kind, request=FOX, accepted=(job,), **(fields | more))


def numbered(events: list[tuple[str, str, dict[str, Any]]]) -> tuple[Event, ...]:
    versions: dict[str, int] = {}
    made = []
    for position, (stream, kind, data) in enumerate(events, start=1):
        versions[stream] = versions.get(stream, 0) + 1
        made.append(
            Event(position=position, stream=stream, version=versions[stream], type=kind, data=data)
        )
    return tuple(made)


#: A streamed job whose worker died, a message that was asked for twice, and a cancelled job.
OPERATIONS = (
    operation(
        "one",
        Kind.STREAMED,
        STREAMED,
        sendings=2,
        readings=(
            Reading(job=STREAMED, items=(item(0, "started"), item(1, "text", "A fox"))),
            Reading(
                job=STREAMED,
                after=1,
                items=(
                    item(2, "text", " ran.", attempt=2),
                    item(3, "finished", "end_turn", attempt=2),
                ),
                is_whole=True,
            ),
        ),
    ),
    operation(
        "two",
        Kind.MESSAGES,
        TALK,
        statuses=(),
        sendings=2,
        readings=(
            Reading(job=TALK, items=(item(None, "text", "A f"),)),
            Reading(job=TALK, items=(item(None, "text", TEXT),), is_whole=True),
        ),
    ),
    operation(
        "three",
        Kind.CANCELLED,
        STOPPED,
        statuses=("running", "cancelled"),
        cancel_confirmed=True,
        readings=(
            Reading(
                job=STOPPED,
                items=(item(0, "started"), item(1, "text", "A"), item(2, "finished", "cancelled")),
            ),
        ),
    ),
)
EVENTS = numbered(
    [
        (STREAMED, "JobSubmitted", {"client": "one", "worker_deaths_max": 2}),
        (STREAMED, "AttemptStarted", {"attempt": 1}),
        (TALK, "JobSubmitted", {"client": "two", "worker_deaths_max": 2}),
        (STREAMED, "AttemptStarted", {"attempt": 2}),
        (TALK, "AttemptStarted", {"attempt": 1}),
        (STOPPED, "JobSubmitted", {"client": "three", "worker_deaths_max": 2}),
        (STREAMED, "JobCompleted", {"attempt": 2}),
        (TALK, "AttemptFailed", {"attempt": 1, "error": "draining"}),
        (STOPPED, "AttemptStarted", {"attempt": 1}),
        (TALK, "AttemptStarted", {"attempt": 2}),
        (STOPPED, "JobCancelRequested", {"reason": "api"}),
        (STOPPED, "JobCancelled", {"attempt": 1}),
        (TALK, "JobCompleted", {"attempt": 2}),
        (TALK, "JobAttached", {"reason": "idempotency_key"}),
    ]
)
GOOD = History(
    operations=OPERATIONS,
    outcomes={
        STREAMED: Outcome(job=STREAMED, status="completed", text=TEXT),
        TALK: Outcome(job=TALK, status="completed", text=TEXT),
        STOPPED: Outcome(job=STOPPED, status="cancelled", text="A"),
    },
    events=EVENTS,
    baseline={FOX: TEXT},
)


def told(index: int, **changes: Any) -> Change:
    """Change an operation."""

    def change(history: History) -> History:
        operations = list(history.operations)
        operations[index] = replace(operations[index], **changes)
        return replace(history, operations=tuple(operations))

    return change


def read(index: int, reading: int, **changes: Any) -> Change:
    """Change one reading of an operation."""

    def change(history: History) -> History:
        readings = list(history.operations[index].readings)
        readings[reading] = replace(readings[reading], **changes)
        return told(index, readings=tuple(readings))(history)

    return change


def shown(job: str, **changes: Any) -> Change:
    """Change an outcome."""
    return lambda history: replace(
        history, outcomes={**history.outcomes, job: replace(history.outcomes[job], **changes)}
    )


def logged(*more: tuple[str, str, dict[str, Any]], without: tuple[int, ...] = ()) -> Change:
    """Add events at the end of the log and leave out those at some positions; numbers fit."""

    def change(history: History) -> History:
        kept = [
            (e.stream, e.type, dict(e.data)) for e in history.events if e.position not in without
        ]
        return replace(history, events=numbered([*kept, *more]))

    return change


def said(position: int, **data: Any) -> Change:
    """Change the data of an event."""
    return lambda history: replace(
        history,
        events=tuple(
            replace(e, data={**e.data, **data}) if e.position == position else e
            for e in history.events
        ),
    )


def also(*changes: Change) -> Change:
    def change(history: History) -> History:
        for one in changes:
            history = one(history)
        return history

    return change


STREAM_1, STREAM_2 = OPERATIONS[0].readings[0].items, OPERATIONS[0].readings[1].items
UNKEYED = told(1, keyed=False)
SECOND = ("job-4", "JobSubmitted", {"client": "two"})
LEFT = ("job-4", "JobCancelRequested", {"reason": "client_gone"})
SECOND_DONE = ("job-4", "JobCancelled", {"attempt": 0})
POISONED = (TALK, "JobFailed", {"error": "engine_failure", "message": "given up: 2 workers died"})

PLANTED: dict[str, tuple[str, Change]] = {
    "chain broken": ("chain verifies", lambda h: replace(h, chain="position 3 does not fit")),
    "event lost": (
        "log is gapless",
        lambda h: replace(h, events=(*h.events[:4], *h.events[5:])),
    ),
    "version skipped": (
        "log is gapless",
        lambda h: replace(h, events=(*h.events[:-1], replace(h.events[-1], version=9))),
    ),
    "accepted job missing in the log": (
        "accepted is logged",
        logged(without=(1, 2, 4, 7)),
    ),
    "one key, two jobs in the log": ("one request, one job", logged(SECOND, LEFT, SECOND_DONE)),
    "one key, two jobs told": ("one request, one job", told(0, accepted=(STREAMED, TALK))),
    "more jobs than sendings": (
        "one request, one job",
        also(UNKEYED, told(1, keyed=False, sendings=1), logged(SECOND, LEFT, SECOND_DONE)),
    ),
    "another client's job": ("one request, one job", told(0, accepted=(TALK,))),
    "another client's job for a first sending": (
        "one request, one job",
        told(0, accepted=(TALK,), keyed=False, sendings=1),
    ),
    "job of nobody": (
        "one request, one job",
        logged(("job-9", "JobSubmitted", {"client": "who"}), ("job-9", "JobCompleted", {})),
    ),
    "submitted twice on one stream": (
        "one request, one job",
        logged((STREAMED, "JobSubmitted", {"client": "one"})),
    ),
    "client without an end": ("every request ends", told(1, answered=False)),
    "dishonest answer": ("errors are honest", told(1, bad_reply="POST was answered 500")),
    "job never ends": ("every accepted job ends", logged(without=(7,))),
    "job ends twice": ("a job ends once", logged((STREAMED, "JobCompleted", {"attempt": 2}))),
    "attempt after the end": (
        "an end is final",
        logged((STREAMED, "AttemptStarted", {"attempt": 3})),
    ),
    "end taken back while polled": (
        "an end is final",
        told(0, statuses=("completed", "running", "completed")),
    ),
    "end is another one than was seen": ("an end is final", shown(STREAMED, status="cancelled")),
    "list and log differ": ("an end is final", shown(TALK, status="failed")),
    "job not listed": (
        "every job can be found",
        lambda h: replace(h, outcomes={k: v for k, v in h.outcomes.items() if k != TALK}),
    ),
    "cancelled job goes on": (
        "cancelled jobs end",
        also(shown(STOPPED, status="running"), told(2, statuses=("running",))),
    ),
    "cancelled by nobody": ("answers are whole", logged(without=(11,))),
    "expired without a deadline": (
        "answers are whole",
        also(logged((TALK, "JobExpired", {}), without=(13, 14)), shown(TALK, status="expired")),
    ),
    "failed by a kill": (
        "answers are whole",
        also(
            logged((TALK, "JobFailed", {"message": "the engine died"}), without=(13, 14)),
            shown(TALK, status="failed"),
        ),
    ),
    "given up before the cap": (
        "answers are whole",
        also(
            logged(POISONED, without=(13, 14)),
            said(3, worker_deaths_max=3),
            shown(TALK, status="failed"),
        ),
    ),
    "attempt that failed by an error of the engine": (
        "no attempt fails by itself",
        said(8, error="engine_failure", message="AssertionError"),
    ),
    "attempt left out": ("one attempt speaks", said(4, attempt=3)),
    "word of an attempt that was followed": ("one attempt speaks", said(7, attempt=1)),
    "word of an attempt that failed": ("one attempt speaks", logged(without=(10,))),
    "item of an attempt that was followed": (
        "one attempt speaks",
        read(0, 1, items=(STREAM_2[0], replace(STREAM_2[1], attempt=1))),
    ),
    "item lost": ("items in order", read(0, 1, items=(STREAM_2[1],))),
    "item said twice": ("items in order", read(0, 0, items=(*STREAM_1, STREAM_1[1]))),
    "items swapped": ("items in order", read(0, 0, items=(STREAM_1[1], STREAM_1[0]))),
    "item before the cursor": ("items in order", read(0, 1, items=(STREAM_1[1], *STREAM_2))),
    "item after the end": ("items in order", read(0, 1, items=(*STREAM_2, item(4, "text", "!")))),
    "item changed": (
        "items never change",
        read(0, 1, after=0, items=(item(1, "text", "A cat"), *STREAM_2)),
    ),
    "other text in the log": (
        "answers are the undisturbed ones",
        shown(STREAMED, text="A fox sat."),
    ),
    "other text in a message": (
        "answers are the undisturbed ones",
        read(1, 1, items=(item(None, "text", "A fox ran. It ran."),)),
    ),
    "whole message that is cut": (
        "answers are the undisturbed ones",
        read(1, 1, items=(item(None, "text", "A fox"),)),
    ),
    "other text over two connections": (
        "answers are the undisturbed ones",
        read(0, 1, items=(replace(STREAM_2[0], text=" sat."), STREAM_2[1])),
    ),
    "another part of a cancelled answer": (
        "answers are the undisturbed ones",
        shown(STOPPED, text="B"),
    ),
}


def test_nothing_is_wrong_with_a_history_that_is_well() -> None:
    assert check(GOOD) == ()


@pytest.mark.parametrize(("promise", "plant"), PLANTED.values(), ids=PLANTED)
def test_planted_violation_is_found(promise: str, plant: Change) -> None:
    assert promise in {violation.promise for violation in check(plant(GOOD))}


@pytest.mark.parametrize(
    "excuse",
    [
        also(UNKEYED, logged(SECOND, LEFT, SECOND_DONE)),
        also(UNKEYED, told(1, keyed=False, accepted=(STREAMED, TALK))),
        also(
            logged(POISONED, without=(13, 14)),
            shown(TALK, status="failed", text=None),
            read(1, 1, items=(), is_whole=False),
        ),
        also(read(0, 1, items=(item(None, "failed", "queue_unavailable"),), is_whole=False)),
        also(
            told(2, statuses=("running", "completed")),
            shown(STOPPED, status="completed", text=TEXT),
            logged((STOPPED, "JobCompleted", {"attempt": 1}), without=(12,)),
            read(2, 0, items=(item(0, "started"),)),
        ),
    ],
    ids=[
        "a second job for a second sending without a key",
        "another client's equal answer for a repeat without a key",
        "given up at the cap",
        "a connection that ends in an error of its own",
        "an answer that was done before its cancellation",
    ],
)
def test_what_is_allowed_is_not_held_against_the_service(excuse: Change) -> None:
    assert check(excuse(GOOD)) == ()
