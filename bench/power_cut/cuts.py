"""Cuts the power at many moments of one recording, and checks what each leaves."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.chaos.history import Violation
from bench.power_cut.drive import Drive, write_image
from bench.power_cut.journal import Kind, compile_recorder, read_journal, recorded_environment

_RECORD_WITHIN_S: Final = 600.0
#: Share of the cuts that fall near a mark, where a promise has just been made.
_NEAR_A_MARK: Final = 0.5
_NEAR: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A finished recording.

    Attributes:
        root: The directory that was recorded, as it is in the end.
        journal: What was written there.
    """

    root: Path
    journal: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One power cut.

    Attributes:
        at: Number of the records before it.
        number: Which of the cuts at this place; with ``at`` it determines what is lost.
        violations: The promises that it broke.
    """

    at: int
    number: int
    violations: tuple[Violation, ...] = field(default=())


def record(directory: Path, *, module: str = "bench.power_cut.work") -> Recording:
    """Run the work in a process of its own and record it."""
    root, journal = directory.resolve() / "root", directory.resolve() / "journal"
    root.mkdir()
    library = compile_recorder(directory)
    env = {name: value for name, value in os.environ.items() if not name.startswith("SEMANTIC_")}
    subprocess.run(
        [sys.executable, "-m", module, str(root), str(journal)],
        env=env | recorded_environment(library, root=root, journal=journal),
        check=True,
        timeout=_RECORD_WITHIN_S,
    )
    return Recording(root=root, journal=journal)


def unseen(recording: Recording) -> list[str]:
    """Return the files that the journal does not explain: what the recorder has missed."""
    drive = Drive(recording.root)
    for one in read_journal(recording.journal):
        drive.apply(one)
    found = {
        str(path.relative_to(recording.root)): path
        for path in recording.root.rglob("*")
        if path.is_file()
    }
    told = drive.now()
    mapped = drive.mapped()
    return sorted(
        name
        for name in {*found, *told} - mapped
        if name not in found or name not in told or found[name].read_bytes() != told[name]
    )


def cut_places(journal: Path, *, cuts: int, seed: int) -> list[int]:
    """Return numbers of records before which the power fails, in order.

    Half of them follow a promise closely, where little time was left for what is not synced. Each
    kind of promise gets as many.
    """
    rng = random.Random(f"places {seed}")
    marks: dict[str, list[int]] = {}
    count = 0
    for count, one in enumerate(read_journal(journal), start=1):
        if one.kind is Kind.MARK:
            marks.setdefault(next(iter(json.loads(one.second))), []).append(count)
    kinds = list(marks.values())
    places = []
    for _ in range(cuts):
        if rng.random() < _NEAR_A_MARK:
            places.append(min(count, rng.choice(rng.choice(kinds)) + rng.randrange(_NEAR)))
        else:
            places.append(rng.randint(0, count))
    return sorted(places)


def cut(
    recording: Recording,
    scratch: Path,
    *,
    places: list[int],
    seed: int,
    promise: Callable[[dict[str, Any]], None],
    broken: Callable[[Path], Iterable[Violation]],
    syncs: bool = True,
) -> Iterator[Cut]:
    """Yield each cut with the promises that it broke.

    Args:
        scratch: An existing directory; that of a cut with violations stays there.
        places: Numbers of records before which the power fails, in order.
        seed: Determines what is lost.
        promise: Takes up each mark, which is a promise.
        broken: Returns the promises so far that a rebuilt directory breaks.
        syncs: Whether the drive does what a sync asks for; some only say so.
    """
    drive = Drive(recording.root)
    records = read_journal(recording.journal)
    done = 0
    for number, place in enumerate(places):
        while done < place:
            one = next(records)
            if one.kind is Kind.MARK:
                promise(json.loads(one.second))
            elif syncs or one.kind is not Kind.SYNC:
                drive.apply(one)
            done += 1
        image = drive.after_a_cut(random.Random(f"{seed} {place} {number}"))
        directory = scratch / f"cut-{number}"
        write_image(image, directory)
        violations = tuple(broken(directory))
        if not violations:
            shutil.rmtree(directory)
        yield Cut(at=place, number=number, violations=violations)
