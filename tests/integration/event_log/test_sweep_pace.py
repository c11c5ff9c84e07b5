"""The time between two sweeps of deleted texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from domain.events.event import Event
from domain.events.job import JobHidden
from domain.values import JobId, StreamName, digest_of
from ops.log.erase.sweep import ItemsEraser, PacedSweeps
from ops.log.erase.sweep_process import sweep_in_process
from ops.log.sql_event_log import SqlEventLog, open_log
from ops.settings.service import RetentionSettings
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.builders.log_files import new_log
from tests.support.fakes.time import FakeClock

#: The broker rewrites its file for so long, in seconds.
REWRITE_S = 8.0


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqlEventLog]:
    with open_log(new_log(tmp_path), clock=FakeClock()) as log:
        yield log


def _delete_job(log: SqlEventLog, name: str) -> None:
    text = f"the words of {name}".encode()
    asked = replace(submitted(), request=digest_of(text))
    happened: list[Event] = [asked, started(), completed(), JobHidden()]
    drafts = [draft(event) for event in happened]
    log.append(StreamName(name), drafts, expected_version=0, payloads={digest_of(text): text})


def _paced(directory: Path, clock: FakeClock, erase_items: ItemsEraser) -> PacedSweeps:
    url = f"sqlite:///{directory / 'events.sqlite3'}"
    return PacedSweeps(
        url,
        RetentionSettings(),
        clock=clock,
        sweep=partial(sweep_in_process, url=url, rules=RetentionSettings()),
        erase_items=erase_items,
        erase_blocks=lambda _: None,
    )


def test_a_slow_broker_does_not_delay_the_next_sweep(log: SqlEventLog, tmp_path: Path) -> None:
    clock, erased = FakeClock(), list[JobId]()

    def erase_items(jobs: Sequence[JobId]) -> None:
        clock.advance(REWRITE_S)
        erased.extend(jobs)

    with closing(_paced(tmp_path, clock, erase_items)) as paced:
        for name in ("job-1", "job-2"):
            _delete_job(log, name)
            paced.run()
            assert name in erased


def test_what_is_deleted_during_a_sweep_goes_with_the_next_one(
    log: SqlEventLog, tmp_path: Path
) -> None:
    sweeps = list[Sequence[JobId]]()

    def erase_items(jobs: Sequence[JobId]) -> None:
        if not sweeps:
            _delete_job(log, "job-2")
        sweeps.append(jobs)

    _delete_job(log, "job-1")
    with closing(_paced(tmp_path, FakeClock(), erase_items)) as paced:
        for _ in range(3):
            paced.run()
    assert len(sweeps) == 2
    assert "job-2" not in sweeps[0]
    assert "job-2" in sweeps[1]
