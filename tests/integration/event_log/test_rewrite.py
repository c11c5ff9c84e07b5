"""A database is rewritten in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from ops.log.erase.rewrite import RewriteFailed, rewrite
from ops.log.sqlite_driver import driver_module
from tests.support.polling import scaled, wait_until

DRIVER = driver_module().__name__
SECRET = b"a text that was deleted"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """A database of which most was deleted, and a connection that keeps it open."""
    file = tmp_path / "log.sqlite3"
    with closing(driver_module().connect(str(file), isolation_level=None)) as raw:
        raw.execute("CREATE TABLE texts (content BLOB)")
        raw.executemany("INSERT INTO texts VALUES (?)", [(SECRET * 100,)] * 2000)
        raw.execute("DELETE FROM texts")
        raw.execute("INSERT INTO texts VALUES ('kept')")
        yield file


def _kept(file: Path) -> list[tuple[str]]:
    with closing(driver_module().connect(str(file))) as raw:
        found: list[tuple[str]] = raw.execute("SELECT content FROM texts").fetchall()
        return found


def test_no_byte_of_a_deleted_row_remains(file: Path) -> None:
    before = file.stat().st_size
    rewrite(file, driver=DRIVER, wait_max_s=5)
    assert _kept(file) == [("kept",)]
    assert file.stat().st_size < before / 10
    assert SECRET not in file.read_bytes()


def test_the_memory_is_that_of_another_process(tmp_path: Path) -> None:
    file = tmp_path / "large.sqlite3"
    with closing(driver_module().connect(str(file))) as raw:
        raw.execute("CREATE TABLE texts (content BLOB)")
        raw.executemany("INSERT INTO texts VALUES (?)", [(SECRET * 50_000,)] * 40)
        raw.commit()
    megabytes = file.stat().st_size / 1e6
    assert megabytes > 40
    program = (
        "import resource; from pathlib import Path;"
        " from ops.log.erase.rewrite import rewrite;"
        " peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; before = peak();"
        f" rewrite(Path({str(file)!r}), driver={DRIVER!r}, wait_max_s=60); print(peak() - before)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, check=True, timeout=scaled(120)
    ).stdout
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(printed) * unit / 1e6 < megabytes / 4


def test_a_file_in_use_is_left_alone_with_the_reason(file: Path) -> None:
    with closing(driver_module().connect(str(file), isolation_level=None)) as raw:
        raw.execute("BEGIN IMMEDIATE")
        with pytest.raises(RewriteFailed, match="database is locked"):
            rewrite(file, driver=DRIVER, wait_max_s=0.1)
        raw.execute("ROLLBACK")
    assert _kept(file) == [("kept",)]


def test_a_rewrite_ends_with_the_process_that_began_it(file: Path) -> None:
    with closing(driver_module().connect(str(file), isolation_level=None)) as raw:
        raw.execute("BEGIN IMMEDIATE")  # the rewrite waits
        program = (
            "from pathlib import Path; from ops.log.erase.rewrite import rewrite;"
            f" rewrite(Path({str(file)!r}), driver={DRIVER!r}, wait_max_s=600)"
        )
        with subprocess.Popen([sys.executable, "-c", program]) as parent:
            process = psutil.Process(parent.pid)
            (child,) = wait_until(process.children)
            parent.kill()
        wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
        raw.execute("ROLLBACK")
