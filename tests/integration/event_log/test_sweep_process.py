"""A sweep in a process of its own erases after the broker and the workers, or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from domain.errors import LogUnavailable, QueueUnavailable
from domain.events.job import JobHidden
from domain.values import StreamName, digest_of
from ops.log.erase.sweep_process import sweep_in_process
from ops.log.sql_event_log import open_log
from ops.settings.service import RetentionSettings
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.builders.log_files import new_log, raw_connection
from tests.support.fakes.time import FakeClock
from tests.support.polling import wait_until

_TEXT = b"the words of a deleted job"
_RULES = RetentionSettings()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Return a log that is in use, with a deleted job."""
    url = new_log(tmp_path)
    with open_log(url, clock=FakeClock()) as log:
        asked = replace(submitted(), request=digest_of(_TEXT))
        drafts = [draft(event) for event in (asked, started(), completed(), JobHidden())]
        log.append(
            StreamName("job-1"), drafts, expected_version=0, payloads={digest_of(_TEXT): _TEXT}
        )
        yield url


def _has_text(url: str) -> bool:
    with closing(raw_connection(url)) as connection:
        query = "SELECT count(*) FROM payloads WHERE digest = ?"
        ((count,),) = connection.execute(query, (digest_of(_TEXT),)).fetchall()
    return bool(count)


def test_items_and_blocks_are_erased_before_the_texts(url: str) -> None:
    seen = list[tuple[str, Collection[str], bool]]()

    assert sweep_in_process(
        lambda jobs: seen.append(("items", list(jobs), _has_text(url))),
        lambda names: seen.append(("blocks", names, _has_text(url))),
        url=url,
        rules=_RULES,
    )

    assert seen == [("items", ["job-1"], True), ("blocks", frozenset(), True)]
    assert not _has_text(url)
    assert not sweep_in_process(lambda _: None, lambda _: None, url=url, rules=_RULES), (
        "nothing is left to erase"
    )


def test_nothing_is_erased_from_the_log_without_the_broker(url: str) -> None:
    def fail(_: object) -> None:
        raise QueueUnavailable("the broker is gone")

    with pytest.raises(QueueUnavailable):
        sweep_in_process(fail, lambda _: None, url=url, rules=_RULES)

    assert _has_text(url)
    assert not _children(), "the process of the sweep has ended"


def test_a_killed_sweep_is_an_error_and_the_next_one_completes_it(url: str) -> None:
    def kill(_: object) -> None:
        for pid in _children():
            os.kill(pid, signal.SIGKILL)
            # Its pipe is closed then, so that the next line finds no reader.
            wait_until(partial(_has_died, pid))

    with pytest.raises(LogUnavailable, match="ended"):
        sweep_in_process(kill, lambda _: None, url=url, rules=_RULES)
    assert _has_text(url)

    assert sweep_in_process(lambda _: None, lambda _: None, url=url, rules=_RULES)
    assert not _has_text(url)


def test_an_unreadable_log_is_an_error_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "other.sqlite3").write_bytes(b"no database at all" * 300)

    with pytest.raises(LogUnavailable, match="not a database"):
        sweep_in_process(
            lambda _: None,
            lambda _: None,
            url=f"sqlite:///{tmp_path / 'other.sqlite3'}",
            rules=_RULES,
        )


def _has_died(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def _children() -> list[int]:
    """Return the processes of sweeps that this process started."""
    found = subprocess.run(
        ["pgrep", "-P", str(os.getpid()), "-f", "sweep_process"],
        capture_output=True,
        text=True,
        check=False,
    )
    return [int(pid) for pid in found.stdout.split()]
