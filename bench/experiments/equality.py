"""Is every answer of a warm engine the answer of a cold engine? EXP-003 and EXP-004 print a table.

The conversations run on every architecture of ``tests/support/models/tiny_architectures.py``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

from hypothesis import Phase, given, seed, settings

from bench.report.section import log_to_stderr, print_conditions, print_table, print_verdict
from tests.support.builders.conversations import Turn, conversations
from tests.support.models import equality
from tests.support.models.equality import Tally, Way
from tests.support.models.tiny_architectures import ARCHITECTURES


def print_comparison(ways: Sequence[Way]) -> None:
    """Compare the conversations that the command line asks for, and print the table.

    Args:
        ways: The ways to answer; one that reads the disk follows one that fills it.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=4, help="of each network")
    parser.add_argument("--turns", type=int, default=6, help="of each conversation")
    parser.add_argument("--seed", type=int, help="of other conversations than the same ones")
    asked = parser.parse_args()
    log_to_stderr()
    started_s = time.monotonic()
    sums: dict[tuple[str, str], Tally] = {}
    for example in list(_examples(asked.conversations, asked.turns, asked.seed)):
        for architecture in ARCHITECTURES:
            for way, tally in equality.compare(architecture, example, ways).items():
                sums.setdefault((architecture.name, way), Tally()).merge(tally)
    _print(sums)
    print_conditions(started_s)


def _examples(count: int, turns: int, chosen: int | None) -> Iterator[list[Turn]]:
    found: list[list[Turn]] = []

    @seed(chosen or 0)
    @settings(
        max_examples=count, derandomize=chosen is None, database=None, phases=[Phase.generate]
    )
    @given(conversations(turns))
    def note(example: list[Turn]) -> None:
        found.append(example)

    note()
    yield from found


def _print(sums: dict[tuple[str, str], Tally]) -> None:
    ways = list(dict.fromkeys(way for _, way in sums))
    first = {name: tally for (name, way), tally in sums.items() if way == ways[0]}
    print_table(
        ("network", ">requests", ">answer tokens", *(way.replace("_", " ") for way in ways)),
        [
            (name, tally.requests, tally.tokens, *(_cell(sums[name, way]) for way in ways))
            for name, tally in sorted(first.items())
        ],
    )
    near_ties = sum(tally.near_ties for tally in sums.values())
    requests = sum(tally.requests for tally in sums.values())
    print_verdict(
        reached=near_ties == 0,
        why=f"{requests - near_ties} of {requests} answers are those of the cold engine, token for"
        f" token; the largest difference of a log-probability is"
        f" {max(tally.worst for tally in sums.values()):.1e} (allowed: 0 for the Llama and Qwen"
        f" networks, {equality.BOUND:.0e} for the others).",
    )


def _cell(tally: Tally) -> str:
    """Return the share of restored tokens, and the largest difference of the numbers."""
    apart = "bit-equal" if tally.worst == 0 else f"{tally.worst:.1e}"
    return f"{tally.cached_tokens / tally.prompt_tokens:.0%}, {apart}"
