"""Runs every measurement on all servers in turn, and makes a table of the figures."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from bench.comparison.measurements import Figure, Measurement, Round
from bench.comparison.server import Server
from bench.figures import spread
from bench.report.section import table_lines

#: By server and row: ``figures`` of the rounds, and ``failures``, the reasons why there is none.
Results = dict[str, dict[str, dict[str, list[Figure]]]]
_REASON_CHARS_MAX: Final = 80
#: Errors of a server or its connection; other exceptions are faults of the harness.
SERVER_FAULTS = (OSError, RuntimeError, http.client.HTTPException, KeyError, ValueError)


def compare(
    servers: Sequence[Server],
    measurements: Sequence[Measurement],
    *,
    common: Round,
    rounds: int,
) -> Results:
    """Run all measurements; the reason of a failed one is recorded, and the run continues.

    All servers run all the time. Within each measurement they take turns, in another order in each
    round, so that other load on the machine hits all of them alike.

    Args:
        common: What all rounds share; each has a name of its own and a folder in its scratch.
    """
    results: Results = {server.adapter.name: {} for server in servers}
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.kill)
        for number in range(rounds):
            for measurement in measurements:
                for server in _rotated(servers, number):
                    place = common.scratch / f"{server.adapter.name}-{measurement.name}-{number}"
                    round_ = replace(common, name=f"Round {number + 1}", scratch=place)
                    _measure(server, measurement, round_, results)
    return results


def _measure(server: Server, measurement: Measurement, round_: Round, results: Results) -> None:
    name = server.adapter.name
    cells = {
        row.key: results[name].setdefault(row.key, {"figures": [], "failures": []})
        for row in measurement.rows
    }
    begin = time.monotonic()
    try:
        if not server.running:
            server.start()
        figures = measurement.run(server, round_)
    except SERVER_FAULTS as error:
        server.kill()
        for cell in cells.values():
            cell["failures"].append(f"{type(error).__name__}: {error}")
        summary = f"failed: {error}"
    else:
        for key, figure in figures.items():
            cells[key]["figures"].append(figure)
        summary = ", ".join(
            f"{row.title} {row.form.format(figures[row.key])}"
            for row in measurement.rows
            if row.key in figures
        )
    took_s = time.monotonic() - begin
    print(f"{round_.name}, {name}, {measurement.name}, {took_s:.0f} s: {summary}", flush=True)


def _rotated(servers: Sequence[Server], by: int) -> list[Server]:
    by %= len(servers)
    return [*servers[by:], *servers[:by]]


def table_of(results: Results, measurements: Sequence[Measurement]) -> Iterator[str]:
    """Yield a table with a column for each server."""
    rows = (
        (
            ", ".join(filter(None, (row.title, row.form.rpartition("}")[2].strip()))),
            *(_cell(of[row.key]) for of in results.values()),
        )
        for measurement in measurements
        for row in measurement.rows
    )
    return table_lines(["", *(f">{server}" for server in results)], rows)


def _cell(cell: Mapping[str, Sequence[Figure]]) -> str:
    """Return the median of a row with least and most, or its verdict, or why there is none."""
    figures, failures = cell["figures"], cell["failures"]
    numbers = [float(one) for one in figures if not isinstance(one, str)]
    text = str(figures[0]) if figures else "-"
    if numbers:
        digits = 0 if max(numbers) >= 10 else 2
        middle, *ends = (f"{one:,.{digits}f}" for one in spread(numbers))
        text = middle if len(numbers) == 1 else f"{middle} ({'-'.join(ends)})"
    elif failures:
        text = "failed: " + " ".join(str(failures[-1]).split())[:_REASON_CHARS_MAX]
    return text if not (figures and failures) else f"{text} (failed {len(failures)} times)"
