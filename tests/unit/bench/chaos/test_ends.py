"""The checker finds each violation planted in messages, batches, swaps and tool calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bench.chaos.checker import check
from bench.chaos.history import (
    Event,
    History,
    Item,
    Kind,
    LineResult,
    Operation,
    Outcome,
    Reading,
    RequestSpec,
    WebhookMessage,
)

Change = Callable[[History], History]

FOX = RequestSpec(prompt="Tell me of a fox.", max_tokens=8, temperature=0, seed=1)
CALL = RequestSpec(prompt="Weather?", max_tokens=8, temperature=0, seed=1, calls_tool=True)
TEXT, ARGUMENTS = "A fox ran.", '{"location": "Paris"}'
JOB, CALLED, LINE, BATCH = "job-1", "job-2", "job-3", "batch-1"


def message(subject: str, kind: str, **more: Any) -> WebhookMessage:
    fields: dict[str, Any] = {"id": f"webhook-{subject}", "digest": "d", "is_signed": True} | more
    return WebhookMessage(subject=subject, type=kind, **fields)


def numbered(*events: tuple[str, str, dict[str, Any]]) -> tuple[Event, ...]:
    versions: dict[str, int] = {}
    made = []
    for position, (stream, kind, data) in enumerate(events, start=1):
        versions[stream] = versions.get(stream, 0) + 1
        made.append(
            Event(position=position, stream=stream, version=versions[stream], type=kind, data=data)
        )
    return tuple(made)


def submitted(stream: str, client: str, **more: Any) -> tuple[str, str, dict[str, Any]]:
    return stream, "JobSubmitted", {"client": client, "worker_deaths_max": 2, **more}


HOOK = {"webhook": "http://127.0.0.1/hook"}
EVENTS = numbered(
    submitted(JOB, "one", **HOOK),
    ("models", "ModelSwapRequested", {"swap": "s1", "model": "two"}),
    (BATCH, "BatchSubmitted", {"client": "three", **HOOK}),
    (JOB, "AttemptStarted", {"attempt": 1}),
    ("models", "ModelSwapRequested", {"swap": "s2", "model": "one"}),
    submitted(CALLED, "two"),
    ("models", "ModelLoadLost", {"swap": "s2"}),
    submitted(LINE, "three"),
    ("models", "ModelServed", {"swap": "s2", "model": "one"}),
    (JOB, "JobCompleted", {"attempt": 1}),
    (CALLED, "AttemptStarted", {"attempt": 1}),
    (LINE, "AttemptStarted", {"attempt": 1}),
    (CALLED, "JobCompleted", {"attempt": 1}),
    (LINE, "JobCompleted", {"attempt": 1}),
    (BATCH, "BatchEnded", {}),
)
POLLED = Operation(
    client="one",
    kind=Kind.POLLED,
    request=FOX,
    keyed=True,
    sendings=1,
    accepted=(JOB,),
    statuses=("queued", "completed"),
)
TOOL = Operation(
    client="two",
    kind=Kind.TOOLS,
    request=CALL,
    keyed=True,
    sendings=1,
    accepted=(CALLED,),
    readings=(
        Reading(
            job=CALLED,
            items=(
                Item(n=None, attempt=0, kind="text", text=ARGUMENTS[:5]),
                Item(n=None, attempt=0, kind="text", text=ARGUMENTS[5:]),
            ),
            is_whole=True,
        ),
    ),
)
LINES = Operation(
    client="three",
    kind=Kind.BATCH,
    request=FOX,
    keyed=False,
    sendings=1,
    lines=(FOX,),
    batch=BATCH,
    results=(LineResult(line=0, status="succeeded", text=TEXT),),
)
GOOD = History(
    operations=(POLLED, TOOL, LINES),
    outcomes={
        JOB: Outcome(job=JOB, status="completed", text=TEXT),
        CALLED: Outcome(job=CALLED, status="completed", text=ARGUMENTS),
        LINE: Outcome(job=LINE, status="completed", text=TEXT),
    },
    events=EVENTS,
    baseline={FOX: TEXT, CALL: ARGUMENTS},
    messages=(
        message(JOB, "job.completed"),
        message(BATCH, "batch.completed"),
        message(JOB, "job.completed"),  # delivered again
    ),
    swaps=("s1", "s2"),
)


def sent(*messages: WebhookMessage) -> Change:
    return lambda history: replace(history, messages=(*history.messages, *messages))


def lost(subject: str) -> Change:
    return lambda history: replace(
        history, messages=tuple(one for one in history.messages if one.subject != subject)
    )


def without(*positions: int) -> Change:
    return lambda history: replace(
        history,
        events=numbered(
            *((e.stream, e.type, dict(e.data)) for e in EVENTS if e.position not in positions)
        ),
    )


def also(*more: tuple[str, str, dict[str, Any]]) -> Change:
    return lambda history: replace(
        history, events=numbered(*((e.stream, e.type, dict(e.data)) for e in EVENTS), *more)
    )


def operated(index: int, **changes: Any) -> Change:
    def change(history: History) -> History:
        operations = list(history.operations)
        operations[index] = replace(operations[index], **changes)
        return replace(history, operations=tuple(operations))

    return change


def results(*lines: LineResult) -> Change:
    return operated(2, results=lines)


def called(text: str, **changes: Any) -> Change:
    """Let the tool call have other arguments, also in the baseline and in the log."""

    def change(history: History) -> History:
        items = (Item(n=None, attempt=0, kind="text", text=text),)
        read = operated(1, readings=(Reading(job=CALLED, items=items, is_whole=True, **changes),))
        outcome = replace(history.outcomes[CALLED], text=text)
        return replace(
            read(history),
            baseline={**history.baseline, CALL: text},
            outcomes={**history.outcomes, CALLED: outcome},
        )

    return change


ONE = LineResult(line=0, status="succeeded", text=TEXT)
PLANTED: dict[str, tuple[str, Change]] = {
    "end of a job not sent": ("every end is sent", lost(JOB)),
    "end of a batch not sent": ("every end is sent", lost(BATCH)),
    "second message of one end": (
        "one end, one message",
        sent(message(JOB, "job.completed", id="webhook-9")),
    ),
    "repeated message with other bytes": (
        "messages never change",
        sent(message(JOB, "job.completed", digest="e")),
    ),
    "message of another end": ("messages are of ends", sent(message(JOB, "job.failed"))),
    "message before the end": ("messages are of ends", without(15)),
    "message of an unknown job": ("messages are of ends", sent(message("job-9", "job.completed"))),
    "message without its signature": (
        "messages are signed",
        sent(message(JOB, "job.completed", is_signed=False)),
    ),
    "line without a result": ("one line, one result", results()),
    "line with two results": ("one line, one result", results(ONE, ONE)),
    "result of an unknown line": ("one line, one result", results(replace(ONE, line=1))),
    "failed line": ("answers are whole", results(replace(ONE, status="errored"))),
    "other text of a line": (
        "answers are the undisturbed ones",
        results(replace(ONE, text="A cat.")),
    ),
    "accepted batch missing in the log": ("accepted is logged", operated(2, batch="batch-9")),
    "two jobs for one line": (
        "one request, one job",
        also(
            submitted("job-4", "three"),
            ("job-4", "AttemptStarted", {"attempt": 1}),
            ("job-4", "JobCompleted", {"attempt": 1}),
        ),
    ),
    "batch ends twice": ("a batch ends once", also((BATCH, "BatchEnded", {}))),
    "batch never ends": ("a batch ends once", without(15)),
    "accepted swap missing in the log": (
        "accepted is logged",
        lambda history: replace(history, swaps=(*history.swaps, "s9")),
    ),
    "swap never ends": ("every swap ends", without(9)),
    "swap rolled back without a reason": (
        "every swap ends",
        also(("models", "ModelSwapRolledBack", {"swap": "s1", "model": "two"})),
    ),
    "call that is cut": ("tool calls are whole", called('{"location": "Pa')),
    "call without its argument": ("tool calls are whole", called("{}")),
    "call of another type": ("tool calls are whole", called('{"location": 3}')),
    "call with other arguments": (
        "answers are the undisturbed ones",
        operated(
            1,
            readings=(
                Reading(
                    job=CALLED,
                    items=(Item(n=None, attempt=0, kind="text", text='{"location": "Rome"}'),),
                    is_whole=True,
                ),
            ),
        ),
    ),
}


def test_good_history_has_no_violation() -> None:
    assert check(GOOD) == ()


@pytest.mark.parametrize(("promise", "plant"), PLANTED.values(), ids=PLANTED)
def test_planted_violation_is_found(promise: str, plant: Change) -> None:
    assert promise in {violation.promise for violation in check(plant(GOOD))}


@pytest.mark.parametrize(
    "excuse",
    [
        without(7),
        also(("models", "ModelSwapRolledBack", {"swap": "s2", "model": "one"})),
    ],
    ids=["a load that was not lost", "a load that was lost, then rolled back"],
)
def test_allowed_effects_are_no_violations(excuse: Change) -> None:
    assert check(excuse(GOOD)) == ()
