"""What a measurement of a server is, those of our own, and how all servers take turns at them."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench.comparison.server import Server
from bench.report.section import spread, table_lines
from bench.together.workloads import Conversations, next_turn

#: A number in the unit of its row, or a verdict as text.
Figure = float | str


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Attributes:
        key: Its name in the JSON.
        title: Its name in the table.
        form: Format of one figure.
    """

    key: str
    title: str
    form: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The parameters that all servers of a round share.

    Attributes:
        name: Part of every prompt, so that no prompt of another round is cached.
        conversations: Makes the prompts.
        scratch: A directory for this server in this round.
        rivals: Folder of the environments of others, and of their traces.
        is_long: Whether load generators take their large sizes.
    """

    name: str
    conversations: Conversations
    scratch: Path
    rivals: Path
    is_long: bool = False


class Measurement:
    """Runs on a server and returns the figures of some rows.

    Args:
        run: Measures; the server may be restarted or stopped afterwards.
        rows: The rows that it fills.
    """

    def __init__(self, run: Callable[[Server, Round], Mapping[str, Figure]], *rows: Row) -> None:
        self.run, self.rows = run, rows
        #: For ``--only``.
        self.name = run.__name__.removeprefix("_")


MILLISECONDS = "{:,.0f} ms"


def _warmth(server: Server, round_: Round) -> dict[str, float]:
    """Time to the first text: new conversation, the same again, its next turn, and another one."""
    messages = round_.conversations.begin(f"warmth {round_.name}")
    cold = server.ask(messages)
    identical = server.ask(messages)
    following = next_turn(messages, identical)
    next_ = server.ask(following)
    question = {"role": "user", "content": "How many days has a week?"}
    branch = server.ask([*following[:-1], question])
    return {
        "cold": 1000 * cold.first_s,
        "identical": 1000 * identical.first_s,
        "next_turn": 1000 * next_.first_s,
        "branch": 1000 * branch.first_s,
        "prompt_tokens": next_.prompt_tokens,
    }


WARMTH = Measurement(
    _warmth,
    Row("cold", "cold, first text", MILLISECONDS),
    Row("identical", "identical request again", MILLISECONDS),
    Row("next_turn", "next turn", MILLISECONDS),
    Row("branch", "next turn asked in another way", MILLISECONDS),
    Row("prompt_tokens", "tokens of that prompt", "{:,.0f}"),
)


#: Seconds between an answer's end and the server's, so that write-behind can finish.
SETTLE_S = 3.0


def _restart(server: Server, round_: Round) -> dict[str, float]:
    """How much of a conversation is cached after a restart of the server?"""
    messages = round_.conversations.begin(f"restart {round_.name}")
    messages = next_turn(messages, server.ask(messages))
    time.sleep(SETTLE_S)
    server.kill()
    server.start()
    killed = server.ask(messages)
    messages = next_turn(messages, killed)
    time.sleep(SETTLE_S)
    server.stop()
    server.start()
    stopped = server.ask(messages)
    return {"sigkill": 1000 * killed.first_s, "sigterm": 1000 * stopped.first_s}


RESTART = Measurement(
    _restart,
    Row("sigterm", "next turn after SIGTERM and restart", MILLISECONDS),
    Row("sigkill", "next turn after SIGKILL and restart", MILLISECONDS),
)


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
