from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection
from typer.testing import CliRunner, Result

from domain.errors import CorruptLog
from domain.events.agent import AgentRegistered, AgentTurnAdded
from domain.events.cache import AgentCacheSaved
from domain.events.job import JobEvent
from domain.job.state import Job
from domain.log.record import LogHead
from domain.values import AgentId, Digest, JobId, StreamName
from ops.cli.main import build_app
from ops.clock import RandomIds
from ops.log.admin import verify as verify_module
from ops.log.admin.archive import Archived, archive_log
from ops.log.admin.verify import verify_log
from ops.log.archives import archive_path, each_event, verify_archives
from ops.log.database import reader_engine
from ops.log.erase.erase import erase_agent
from ops.log.erase.sweep import TextSweeper
from ops.log.hot_statements import HotStatement
from ops.log.projections.rebuild import rebuild_projections
from ops.log.sql_event_log import SqlEventLog, open_log
from ops.log.sqlite_driver import driver_module
from ops.settings.service import RetentionSettings
from tests.support.builders.job_events import (
    TEXTS,
    completed,
    draft,
    started,
    submitted,
    worker_event,
)
from tests.support.builders.job_histories import histories
from tests.support.builders.log_files import agent_records, new_log, raw_connection, verify
from tests.support.day_and_night import examples
from tests.support.fakes.time import FakeClock
from tests.support.processes.killed import DISK, killed_at_every_step

WORKER = StreamName("worker-1")
#: Of the steps of a random life, how many are followed by an archiving.
ARCHIVED_SHARE = 0.2
#: Between the old jobs and the young one.
LIMIT = "2026-01-01T01:00:00.000000Z"


def _append(log: SqlEventLog, stream: str, *events: Any) -> None:
    past = log.load(StreamName(stream))
    version = past[-1].version if past else 0
    drafts = [draft(event) for event in events]
    texts = TEXTS if stream.startswith("job-") else {}
    log.append(StreamName(stream), drafts, expected_version=version, payloads=texts)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def url(tmp_path: Path, clock: FakeClock) -> str:
    """Two old jobs that are over, an old one that is not, a worker's events, and a young job."""
    url = new_log(tmp_path)
    with open_log(url, clock=clock) as log:
        _append(log, "job-1", submitted(agent="a"), started(), completed())
        _append(log, "worker-1", worker_event(), worker_event())
        _append(log, "job-2", submitted(), started())
        _append(log, "job-open", submitted())
        clock.advance(1800)
        _append(log, "job-2", completed())
        clock.advance(1800)
        _append(log, "job-young", submitted(), started(), completed())
    return url


def _archive(url: str, clock: FakeClock, before: str = LIMIT) -> Archived:
    return archive_log(url, before=before, clock=clock, ids=RandomIds())


def _check(url: str) -> LogHead:
    engine = reader_engine(url)
    try:
        verify_archives(engine, url, signed_hashes={})
    finally:
        engine.dispose()
    return verify(url)


def _views(url: str, clock: FakeClock) -> tuple[Job, ...]:
    with open_log(url, clock=clock) as log:
        return log.views.page(limit=100).jobs


def _positions(url: str) -> list[int]:
    with closing(raw_connection(url)) as raw:
        rows = raw.execute("SELECT position FROM events ORDER BY position").fetchall()
        return [position for (position,) in rows]


def _tamper(url: str, *statements: str) -> None:
    with closing(raw_connection(url)) as raw:
        raw.execute("DROP TRIGGER IF EXISTS events_no_delete")
        raw.execute("DROP TRIGGER IF EXISTS events_no_update")
        for statement in statements:
            raw.execute(statement)


def test_an_archive_outside_its_directory_is_neither_read_nor_erased(
    url: str, clock: FakeClock, tmp_path: Path
) -> None:
    """A log from elsewhere may name any file of the user, here an export."""
    (file,) = [archive_path(url, one.archive) for one in (_archive(url, clock),) if one.archive]
    export = tmp_path / "export.jsonl.gz"
    export.write_bytes(file.read_bytes())
    _tamper(url, "UPDATE archives SET file = '../export.jsonl.gz'")
    clock.advance(10)
    sweeper = TextSweeper(
        url,
        RetentionSettings(archive_days=1 / 86_400),
        clock=clock,
        ids=RandomIds(),
        erase_items=lambda _: None,
        erase_blocks=lambda _: None,
    )
    with pytest.raises(CorruptLog, match="is not in archive"):
        sweeper.sweep()
    sweeper.close()
    assert export.exists()


def _run(directory: Path, *arguments: str) -> Result:
    return CliRunner().invoke(build_app(), [*arguments, "--data-dir", str(directory)])


def test_the_history_of_an_agent_stays(url: str, clock: FakeClock) -> None:
    saved = AgentCacheSaved(job=JobId("job-1"), fingerprint="f", blocks=(), tail="t", tokens=1)
    turns = [AgentTurnAdded(agent=AgentId("w"), turn=n, job=JobId(f"job-{n}")) for n in (1, 2)]
    with open_log(url, clock=clock) as log:
        made = AgentRegistered(agent=AgentId("w"), profile=Digest("sha256:0"))
        _append(log, "agent-w", made, saved, turns[0], saved, turns[1])
        before = agent_records(log).load(AgentId("w"))
        clock.advance(3600)
        _append(log, "job-later", submitted())
    _archive(url, clock, "2026-01-01T01:30:00.000000Z")
    _check(url)
    with open_log(url, clock=clock) as log:
        assert agent_records(log).load(AgentId("w")) == before
        assert before.turns == ("job-1", "job-2")
        kept = [one.version for one in log.load(StreamName("agent-w"))]
        assert kept == [1, 3, 4, 5]


def test_jobs_that_are_over_leave_and_what_is_needed_stays(url: str, clock: FakeClock) -> None:
    before = verify(url)
    listed = _views(url, clock)
    done = _archive(url, clock)

    assert (done.events, done.removed) == (9, 7)
    # The open job and the worker's last word, then the young job and the archive's own event.
    assert _positions(url) == [5, 8, 10, 11, 12, 13]
    assert _check(url).position == before.position + 1
    assert _views(url, clock) == listed
    with open_log(url, clock=clock) as log:
        _append(log, "job-open", started(), completed())
        _append(log, "worker-1", worker_event())
        assert [event.version for event in log.load(WORKER)] == [2, 3]
    assert _check(url).position == 16


def test_the_list_is_rebuilt_across_archives(url: str, clock: FakeClock) -> None:
    listed = _views(url, clock)
    first = _archive(url, clock, "2026-01-01T00:10:00.000000Z")
    second = _archive(url, clock)
    assert first.archive is not None
    assert second.archive is not None
    assert second.archive.first_position == first.archive.last_position + 1
    rebuild_projections(url)
    assert _views(url, clock) == listed
    assert _check(url).position == 14


def test_without_its_file_an_archive_is_told_of_and_open_jobs_stay(
    url: str, clock: FakeClock, tmp_path: Path
) -> None:
    done = _archive(url, clock)
    assert done.archive is not None
    archive_path(url, done.archive).unlink()
    engine = reader_engine(url)
    assert verify_archives(engine, url, signed_hashes={}).missing == (done.archive.file,)
    engine.dispose()
    rebuild_projections(url)
    assert [view.id for view in _views(url, clock)] == ["job-young", "job-open"]
    result = _run(tmp_path, "status", "--as-of", "3")
    assert result.exit_code == 1


def test_there_is_nothing_to_archive_twice(url: str, clock: FakeClock) -> None:
    _archive(url, clock)
    before = verify(url)
    assert _archive(url, clock).archive is None
    assert verify(url) == before


def test_the_last_event_stays_even_if_all_are_old(url: str, clock: FakeClock) -> None:
    done = _archive(url, clock, "2027-01-01T00:00:00.000000Z")
    assert done.archive is not None
    assert done.archive.last_position == 11
    assert _check(url).position == 13
    with open_log(url, clock=clock) as log:
        _append(log, "job-new", submitted())
    assert _check(url).position == 14


def test_an_empty_log_has_nothing_to_archive(tmp_path: Path, clock: FakeClock) -> None:
    assert _archive(new_log(tmp_path), clock).archive is None


def test_events_are_still_append_only_afterwards(url: str, clock: FakeClock) -> None:
    _archive(url, clock)
    with (
        closing(raw_connection(url)) as raw,
        pytest.raises(driver_module().IntegrityError, match="append-only"),
    ):
        raw.execute("DELETE FROM events WHERE position = 8")


def test_the_whole_log_is_read_as_it_was(url: str, clock: FakeClock) -> None:
    engine = reader_engine(url)
    before = list(each_event(engine, url))
    _archive(url, clock, "2026-01-01T00:10:00.000000Z")
    _archive(url, clock)
    after = list(each_event(engine, url))
    engine.dispose()
    assert after[: len(before)] == before
    assert [event.type for event in after[len(before) :]] == ["LogArchived"] * 2


@pytest.mark.parametrize(
    ("statements", "position"),
    [
        (["UPDATE archives SET last_hash = 'f'"], 9),
        (["UPDATE archives SET base_hash = 'f'"], 1),
        (["UPDATE archives SET first_position = 2"], 1),
        (["DELETE FROM archives"], 5),
        (["UPDATE events SET correlation_id = 'x' WHERE position = 8"], 8),
        (["DELETE FROM events WHERE position = 13"], 1),
        (["DELETE FROM events WHERE position = 10"], 11),
    ],
)
def test_tampering_with_what_an_archive_left_is_found(
    url: str, clock: FakeClock, statements: list[str], position: int
) -> None:
    _archive(url, clock)
    _tamper(url, *statements)
    with pytest.raises(CorruptLog) as caught:
        _check(url)
    assert abs(caught.value.position - position) <= 1


def test_a_beginning_that_was_cut_off_without_a_word_is_found(url: str) -> None:
    _tamper(
        url,
        "INSERT INTO archives SELECT 3, 1, one.prev_hash, four.prev_hash, 'x'"
        " FROM events AS one, events AS four WHERE one.position = 1 AND four.position = 4",
        "DELETE FROM events WHERE position <= 3",
    )
    with pytest.raises(CorruptLog, match="no event of the log records"):
        _check(url)


def test_a_walk_goes_on_while_another_process_archives(url: str, clock: FakeClock) -> None:
    engine = reader_engine(url)
    archived: list[Archived] = []

    def archive_once(_position: int, _last: int) -> None:
        if not archived:
            archived.append(_archive(url, clock))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify_module, "PAGE_EVENTS", 2)
        head = verify_log(engine, progress=archive_once)
    engine.dispose()
    assert archived
    assert head.position == 13


def test_a_changed_archive_file_is_found(url: str, clock: FakeClock) -> None:
    done = _archive(url, clock)
    assert done.archive is not None
    path = archive_path(url, done.archive)
    path.write_bytes(path.read_bytes()[:-9] + b"123456789")
    with pytest.raises(CorruptLog):
        _check(url)


def test_a_log_that_does_not_verify_is_not_archived(url: str, clock: FakeClock) -> None:
    _tamper(url, "UPDATE events SET correlation_id = 'x' WHERE position = 2")
    with pytest.raises(CorruptLog) as caught:
        _archive(url, clock)
    assert caught.value.position == 2
    assert len(_positions(url)) == 12


def test_a_file_of_a_log_that_was_given_up_is_kept_beside_the_new_one(
    url: str, clock: FakeClock, tmp_path: Path
) -> None:
    directory = tmp_path / "archive"
    directory.mkdir()
    stale = directory / "events-000000000001-000000000009.jsonl.gz"
    stale.write_bytes(b"another history")
    done = _archive(url, clock)
    assert done.archive is not None
    assert done.archive.file == stale.name
    assert stale.with_name(stale.name + ".other").read_bytes() == b"another history"
    assert _check(url).position == 13


def test_the_command_archives_signs_and_tells(url: str, tmp_path: Path) -> None:
    assert url
    result = _run(tmp_path, "log", "archive", "--before", LIMIT)
    assert result.exit_code == 0, result.output
    assert "9 events in" in result.stdout
    report = json.loads(_run(tmp_path, "log", "verify", "--json").stdout)
    assert (report["archives"], report["heads"]) == (1, 1)
    status = json.loads(_run(tmp_path, "status", "--as-of", "6", "--json").stdout)
    assert status["jobs"]["completed"] == 1
    assert "completed" in _run(tmp_path, "jobs", "show", "job-1", "--story").stdout
    assert _run(tmp_path, "log", "show", "--sign").exit_code == 0
    assert "nothing" in _run(tmp_path, "log", "archive", "--before", LIMIT).stdout


def test_texts_of_archived_jobs_are_erased_too(tmp_path: Path, clock: FakeClock) -> None:
    url = new_log(tmp_path)
    with open_log(url, clock=clock) as log:
        events = [draft(event) for event in (submitted(agent="a"), started(), completed())]
        payloads = {completed().output: b"output"}
        log.append(StreamName("job-1"), events, expected_version=0, payloads=payloads)
        _append(log, "worker-1", worker_event())
    _archive(url, clock, LIMIT)
    erased = erase_agent(url, AgentId("a"), clock=clock, ids=RandomIds())
    assert (erased.event.jobs, erased.event.payloads) == (1, 2), "the answer and the model's name"


def _kill_steps() -> list[tuple[Any, str]]:
    statements = [(HotStatement, name) for name in ("rows", "run", "run_many")]
    return [*DISK, *statements, (Connection, "execute"), (Connection, "exec_driver_sql")]


def test_an_archiving_that_is_killed_is_done_whole_or_not_at_all(
    url: str, clock: FakeClock
) -> None:
    listed = _views(url, clock)
    before = verify(url)
    deaths = 0
    action: Callable[[], object] = lambda: _archive(url, clock)  # noqa: E731 - the annotation
    for _ in killed_at_every_step(action, _kill_steps()):
        deaths += 1
        # The lock of rebuilds is released after the commit.
        assert (after := _check(url)) == before or after.position == before.position + 1
    assert deaths > 10
    assert _check(url).position == before.position + 1
    assert _views(url, clock) == listed


@examples(4, night=6)
@given(st.lists(histories(), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_whatever_is_archived_the_list_and_the_chain_stay(
    lives: list[tuple[JobEvent, ...]], order: Any
) -> None:
    steps = [number for number, life in enumerate(lives) for _ in life]
    order.shuffle(steps)
    clock = FakeClock()
    with tempfile.TemporaryDirectory() as directory:
        url = new_log(Path(directory))
        versions = [0] * len(lives)
        with open_log(url, clock=clock) as log:
            for number in steps:
                stream = StreamName(f"job-{number}")
                if log.views.get(JobId(stream)) is not None and not log.load(stream):
                    continue  # it is archived, and nothing more comes to it
                one = draft(lives[number][versions[number]])
                log.append(stream, [one], expected_version=versions[number])
                versions[number] += 1
                clock.advance(60)
                if order.random() < ARCHIVED_SHARE:
                    _archive(url, clock, "2026-01-01T00:05:00.000000Z")
        _check(url)
        listed = _views(url, clock)
        rebuild_projections(url)
        assert _views(url, clock) == listed
        open_jobs = [view.id for view in listed if not view.status.is_terminal]
        with open_log(url, clock=clock) as log:
            assert all(log.load(StreamName(job))[0].version == 1 for job in open_jobs)
