"""Runs every measurement on all servers in turn, and keeps the figures."""

from __future__ import annotations

import http.client
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.comparison.conversation import Conversations
from bench.comparison.measurements import Figure, Measurement, Round, Row
from bench.comparison.server import Server

_REASON_CHARACTERS_MAX = 80


@dataclass(slots=True)
class Cell:
    """The figures of one row for one server."""

    figures: list[Figure] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def text(self, row: Row) -> str:
        """Return the median, or the most frequent verdict, or the reason why there is none."""
        if not self.figures:
            return f"failed: {_short(self.failures[-1])}" if self.failures else "-"
        numbers = [figure for figure in self.figures if not isinstance(figure, str)]
        middle: Figure = (
            statistics.median(numbers)
            if numbers
            else Counter(map(str, self.figures)).most_common(1)[0][0]
        )
        text = row.form.format(middle)
        if self.failures:
            text += f" (failed {len(self.failures)} of {len(self.figures) + len(self.failures)})"
        return text


@dataclass(slots=True)
class Results:
    """Cells by row and server."""

    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)

    def add(self, row: str, server: str, figure: Figure) -> None:
        """Add the figures of one round."""
        self.cells.setdefault((row, server), Cell()).figures.append(figure)

    def fail(self, row: str, server: str, why: str) -> None:
        """Record that a round failed."""
        self.cells.setdefault((row, server), Cell()).failures.append(why)

    def table(self, rows: Sequence[Row], servers: Sequence[str]) -> Iterator[str]:
        """Yield the lines of a Markdown table with one column for each server."""
        yield f"| | {' | '.join(servers)} |"
        yield f"|---|{'--:|' * len(servers)}"
        for row in rows:
            text = (self.cells.get((row.key, server), Cell()).text(row) for server in servers)
            yield f"| {row.title} | {' | '.join(text)} |"

    def as_json(self) -> dict[str, dict[str, dict[str, list[Figure] | list[str]]]]:
        """Return every figure of every round: server, row, figures and failures."""
        text: dict[str, dict[str, dict[str, list[Figure] | list[str]]]] = {}
        for (row, server), cell in self.cells.items():
            text.setdefault(server, {})[row] = {
                "figures": cell.figures,
                "failures": cell.failures,
            }
        return text


def _short(reason: str) -> str:
    line = " ".join(reason.split()).replace("|", "/")
    if len(line) <= _REASON_CHARACTERS_MAX:
        return line
    return line[: _REASON_CHARACTERS_MAX - 1] + "…"


#: Errors of a server or its connection; other exceptions are faults of the harness.
SERVER_FAULTS = (OSError, RuntimeError, http.client.HTTPException, KeyError, ValueError)


def compare(
    servers: Sequence[Server],
    measurements: Sequence[Measurement],
    *,
    conversations: Conversations,
    rounds: int,
    scratch: Path,
) -> Results:
    """Run all measurements; a failed one is recorded in its cell, and the run continues.

    All servers run all the time. Within each measurement they take turns, in another order in each
    round, so that other load on the machine hits all of them alike.
    """
    results = Results()
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.kill)
        for number in range(rounds):
            for measurement in measurements:
                if number and measurement.once:
                    continue
                for server in _rotated(servers, number):
                    place = scratch / f"{server.adapter.name}-{measurement.name}-{number}"
                    round_ = Round(
                        name=f"Round {number + 1}", conversations=conversations, scratch=place
                    )
                    _measure(server, measurement, round_, results)
    return results


def _measure(server: Server, measurement: Measurement, round_: Round, results: Results) -> None:
    name = server.adapter.name
    begin = time.monotonic()
    try:
        if not server.running:
            server.start()
        figures = measurement.run(server, round_)
    except SERVER_FAULTS as error:
        server.kill()
        for row in measurement.rows:
            results.fail(row.key, name, f"{type(error).__name__}: {error}")
        summary = f"failed: {error}"
    else:
        for key, figure in figures.items():
            results.add(key, name, figure)
        summary = ", ".join(
            f"{row.title} {row.form.format(figures[row.key])}" for row in measurement.rows
        )
    took_s = time.monotonic() - begin
    print(f"{round_.name}, {name}, {measurement.name}, {took_s:.0f} s: {summary}", flush=True)


def _rotated(servers: Sequence[Server], by: int) -> list[Server]:
    by %= len(servers)
    return [*servers[by:], *servers[:by]]
