"""The power fails at many moments of one recording, and every promise is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.power_cut.check import Promises, check
from bench.power_cut.cuts import Cut, Recording, cut, cut_places, record, unseen
from bench.power_cut.journal import compiler

SEED = 11


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    if compiler() is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have a C compiler")
        pytest.skip("the recorder needs Linux and a C compiler")
    return record(tmp_path_factory.mktemp("recording"))


def broken(recording: Recording, directory: Path, *, cuts: int, syncs: bool = True) -> list[Cut]:
    places = cut_places(recording.journal, cuts=cuts, seed=SEED)
    promises = Promises()
    done = list(
        cut(
            recording,
            directory,
            places=places,
            seed=SEED,
            promise=promises.add,
            broken=lambda root: check(root, promises),
            syncs=syncs,
        )
    )
    assert len(done) == cuts
    return [one for one in done if one.violations]


def test_the_recorder_has_seen_every_write(recording: Recording) -> None:
    assert unseen(recording) == []


def test_every_promise_is_kept(recording: Recording, tmp_path: Path) -> None:
    assert broken(recording, tmp_path, cuts=5) == []


def test_a_drive_that_ignores_syncs_is_found_out(recording: Recording, tmp_path: Path) -> None:
    assert broken(recording, tmp_path, cuts=3, syncs=False)


@pytest.mark.nightly
def test_every_promise_is_kept_in_many_cuts(recording: Recording, tmp_path: Path) -> None:
    assert broken(recording, tmp_path, cuts=200) == []
