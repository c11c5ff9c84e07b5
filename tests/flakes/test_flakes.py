"""The flake hunt lists what fails in some round only, and leaves no busy loop behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bench.long_runs import END
from tests.flakes.__main__ import PAGE, SUSPECTS
from tests.flakes.selection import ROOT, timed_files
from tests.support.polling import wait_until

PLANTED = """
from pathlib import Path

import pytest


class TestAll:
    def test_sometimes(self):
        with Path(__file__).with_name("rounds").open("a+") as rounds:
            rounds.write("x")
            rounds.seek(0)
            assert len(rounds.read()) != 2, "planted"


@pytest.mark.parametrize("number", range(20))
def test_always(number):
    with Path(__file__).with_name("order").open("a") as order:
        order.write(f"{number} ")
"""
WAITING = """
import time
from pathlib import Path


def test_without_end():
    place = Path(__file__)
    place.with_name("begun").touch()
    try:
        signal.pause()
    finally:
        place.with_name("ended").touch()
"""


def begin(directory: Path, content: str, *arguments: str) -> subprocess.Popen[str]:
    (directory / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    (directory / "test_planted.py").write_text(content)
    return subprocess.Popen(
        [sys.executable, "-m", "tests.flakes", "--processes", "0", *arguments, str(directory)],
        cwd=ROOT,
        # Plug-ins that the planted tests do not need take most of the time.
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_planted_flaky_test_is_listed_with_its_traceback(tmp_path: Path) -> None:
    hunt = begin(tmp_path, PLANTED, "--rounds", "3", "--busy", "0", "--seed", "7")
    output, _ = hunt.communicate()
    assert hunt.returncode == 1, output
    rounds = [line for line in output.splitlines() if line.startswith("round ")]
    assert [line.partition(" failed")[0] for line in rounds] == [
        "round 1 of 3, seed 7: 0",
        "round 2 of 3, seed 8: 1",
        "round 3 of 3, seed 9: 0",
    ]
    listed = output.partition(f"{rounds[2]}\n")[2]
    assert "test_planted.py::TestAll::test_sometimes failed in 1 of 3 rounds:\n" in listed
    assert "assert len(rounds.read()) != 2" in listed
    assert "AssertionError: planted" in listed
    assert "test_always" not in listed
    order = (tmp_path / "order").read_text().split()
    assert len(order) == 60
    assert len({tuple(order[at : at + 20]) for at in (0, 20, 40)}) == 3, order


def test_tests_that_pass_in_all_rounds_are_not_listed(tmp_path: Path) -> None:
    content = "def test_passes():\n    pass\n"
    hunt = begin(tmp_path, content, "--rounds", "2", "--busy", "1", "--seed", "7")
    output, _ = hunt.communicate()
    assert hunt.returncode == 0, output
    assert "1 busy loops of niceness 0\n" in output


def test_a_round_that_does_not_begin_is_a_failure(tmp_path: Path) -> None:
    hunt = begin(tmp_path, "def broken(:\n", "--rounds", "1", "--busy", "0", "--seed", "7")
    output, _ = hunt.communicate()
    assert hunt.returncode == 1, output
    assert "SyntaxError" in output


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_everything_ends_with_the_hunt(tmp_path: Path, how: signal.Signals) -> None:
    hunt = begin(tmp_path, WAITING, "--rounds", "1", "--busy", "2")
    try:
        wait_until((tmp_path / "begun").exists)
        children = psutil.Process(hunt.pid).children(recursive=True)
        assert len(children) == 3
        os.kill(hunt.pid, how)
        hunt.communicate()
        assert hunt.returncode != 0
        wait_until(lambda: not any(child.is_running() for child in children))
        assert (tmp_path / "ended").exists()
    finally:
        hunt.kill()


def test_selection_has_what_depends_on_time() -> None:
    found = timed_files()
    assert {*SUSPECTS} <= {*found}
    # By an import, by a fixture of the package, by a fixture of a plugin, by the product's module.
    assert "tests/flakes/test_flakes.py" in found
    assert {*map(str, (ROOT / "tests/e2e/faults").glob("test_*.py"))} <= {
        str(ROOT / name) for name in found
    }
    assert "tests/integration/broker/test_fair_queue.py" in found
    assert "tests/architecture/test_wordlist.py" not in found


def test_page_has_the_table_of_hunts() -> None:
    assert PAGE.read_text().count(END) == 1
