"""Checks the answers that clients read: every item once, in order, with the baseline's text."""

from __future__ import annotations

import json
from collections.abc import Iterator

from bench.chaos.history import History, Item, Operation, Reading, Violation

_TERMINAL = {"finished", "failed"}


def check_answers(operation: Operation, history: History) -> Iterator[Violation]:
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
