"""The cases with a process that is killed, and with a long context."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.experiments.report import print_table
from bench.memory.agents import Workload
from bench.memory.child import Child, run_child
from bench.memory.long_context import drop_page_cache, read_plain
from bench.memory.rotation_table import QUICK_WORKLOAD

#: Agents whose last turn is measured before the kill, and as many after it.
_AGENTS_EACH = 3
#: Turns of the long context; all but the first start from memory.
_LONG_TURNS = 4
_LONG_SYSTEM_TOKENS = 1024
#: Restores from the disk, each way; each follows a plain read of the same files.
_LONG_ROUNDS = 3


def measure_killed(
    shapes: Sequence[str], directory: Path | None, *, quick: bool
) -> dict[str, dict[str, Any]]:
    """Measure and print the next turn in a living process and after SIGKILL, for each shape."""
    found: dict[str, dict[str, Any]] = {}
    print_table(
        (
            *("shape", ">next turn ms", ">after SIGKILL ms", ">ratio", ">its first ms"),
            *(">reused", ">start ms"),
        ),
        _killed_rows(shapes, directory, found, quick=quick),
    )
    return found


def _killed_rows(
    shapes: Sequence[str],
    directory: Path | None,
    found: dict[str, dict[str, Any]],
    *,
    quick: bool,
) -> Iterator[tuple[object, ...]]:
    workload = replace(QUICK_WORKLOAD if quick else Workload(agents=0), agents=2 * _AGENTS_EACH)
    for shape in shapes:
        with tempfile.TemporaryDirectory(dir=directory) as name:
            store = Path(name)
            with Child("killed_before", store, workload, shape=shape, quick=quick) as child:
                before = child.figures()
            # Leaving the context has killed the process.
            answers = before.pop("answers")
            after = run_child(
                "killed_after", store, workload, shape=shape, quick=quick, answers=answers
            )
        found[shape] = {"before": before, "after": after}
        before_s = statistics.median(before["first_token_s"])
        after_s = statistics.median(after["first_token_s"])
        yield (
            shape,
            f"{1000 * before_s:.0f}",
            f"{1000 * after_s:.0f}",
            f"{after_s / before_s:.2f}",
            f"{1000 * after['first_token_s'][0]:.0f}",
            f"{after['reused']:.1%}",
            f"{1000 * after['started_s']:.0f}",
        )


def measure_long(tokens: int, directory: Path | None) -> dict[str, Any]:
    """Measure and print the turns of a long context."""
    workload = Workload(
        agents=1,
        turns=_LONG_TURNS,
        system=_LONG_SYSTEM_TOKENS,
        task=tokens - _LONG_SYSTEM_TOKENS,
        answer=4,
    )
    reads: list[tuple[int, float]] = []
    from_disk: list[dict[str, Any]] = []
    busy: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=directory) as name:
        store = Path(name)
        first, *again = run_child("long_memory", store, workload)
        for _ in range(_LONG_ROUNDS):
            for case, found in (("long_disk", from_disk), ("long_busy", busy)):
                reads.append(read_plain(store))
                drop_page_cache(store)
                found.append(run_child(case, store, workload))
    size_bytes, read_s = reads[0][0], statistics.median(seconds for _, seconds in reads)
    print(
        f"{tokens:,} tokens, {size_bytes / 1e9:.2f} GB on disk. Cold sequential read and SHA-256 of"
        f" these bytes, median of {len(reads)}: {read_s:.2f} s"
        f" ({size_bytes / read_s / 1e6:.0f} MB/s).\n"
    )
    print_table(
        ("turn", ">restored", ">first token ms", ">join ms", ">restore ms", ">of the read"),
        [
            _long_row("computed", first, read_s),
            *(_long_row("next, from memory", turn, read_s) for turn in again),
            *(_long_row("from disk", turn, read_s) for turn in from_disk),
            *(_long_row("from disk, beside 2 streams", one["turn"], read_s) for one in busy),
        ],
    )
    before, during, after = (
        ", ".join(f"{one[name]:.0f}" for one in busy)
        for name in ("gap_before_ms", "gap_ms", "gap_after_ms")
    )
    print(
        f"Longest time between two tokens of the streams, in ms: {before} before the restore,"
        f" {during} during it, {after} from there to the first token of the long context.\n"
    )
    return {"memory": [first, *again], "disk": from_disk, "busy": busy, "reads": reads}


def _long_row(title: str, turn: dict[str, Any], read_s: float) -> tuple[object, ...]:
    return (
        title,
        f"{turn['restored_tokens']:,} of {turn['prompt_tokens']:,}",
        f"{1000 * turn['first_token_s']:,.0f}",
        f"{1000 * turn['insert_s']:,.0f}",
        f"{1000 * turn['restore_s']:,.0f}",
        f"{turn['restore_s'] / read_s:.2f}" if turn["disk_tokens"] else "-",
    )
