"""The product and the way of a request through it do not grow unnoticed."""

from __future__ import annotations

import runpy
import threading
from dataclasses import replace
from pathlib import Path

from domain.values import rfc3339
from ops.clock import SystemClock
from tests.architecture.figures import CEILINGS, ROOT, Recorder, above, figures, statements_of

PAGE = ROOT / "docs" / "quality.md"


def test_nothing_is_above_its_ceiling() -> None:
    assert above(figures()) == []


def test_the_page_shows_the_ceilings() -> None:
    assert CEILINGS.table() in PAGE.read_text(encoding="utf-8")


def test_what_is_above_its_ceiling_is_named() -> None:
    found = replace(CEILINGS, lines=CEILINGS.lines + 1, jobs_files=CEILINGS.jobs_files - 1)
    assert above(found) == [f"lines is {CEILINGS.lines + 1:,}, above {CEILINGS.lines:,}"]


def test_docstrings_are_no_statements() -> None:
    assert statements_of('"""A module."""\n\ndef one():\n    """Nothing."""\n    return 1\n') == 2


def test_functions_on_all_threads_count_and_imports_do_not() -> None:
    recorder = Recorder()
    try:
        with recorder.recording() as found:
            thread = threading.Thread(target=lambda: rfc3339(SystemClock().now()))
            thread.start()
            thread.join()
            runpy.run_path(str(ROOT / "domain" / "ports.py"))
        SystemClock().monotonic()
    finally:
        recorder.close()
    assert {*map(Path, found)} == {Path("domain/values.py"), Path("ops/clock.py")}
