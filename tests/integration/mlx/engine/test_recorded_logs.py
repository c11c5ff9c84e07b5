"""Logs that earlier versions of the service wrote, opened and continued by this one.

Each file in ``tests/fixtures/logs`` is named after its schema revision; its README tells how it was
recorded. Three jobs had ended, one ran, and one waited when its service was killed.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from domain.errors import LogUnavailable
from domain.events.job import AttemptStarted
from domain.job.listing import JobViews
from domain.job.replay import Refusal, Replayed, Verdict
from domain.log.codec import decode_recorded
from domain.usecases.jobs.reconcile import JobReconciler
from domain.usecases.jobs.run_attempt import RunResult
from domain.values import JobId, JobStatus, Priority, StreamName
from ops.adapters.event_log.database import reader_engine
from ops.adapters.event_log.migrate import current, expected
from ops.adapters.event_log.sql_event_log import open_log
from ops.adapters.log_admin.payloads import verify_payloads
from ops.clock import SystemClock
from ops.setting_groups.models import DEMO_MODEL
from tests.support.builders.log_files import verify
from tests.support.models.replay_world import ReplayWorld

DIRECTORY = Path(__file__).parents[3] / "fixtures" / "logs"
LOGS = {path.name.partition(".")[0]: path for path in DIRECTORY.glob("*.xz")}
#: The first schema of the repository's history; the ones before it were never committed alone.
FIRST = "0004"
#: Recorded with earlier weights of the demo model.
OTHER_MODEL = {"0004", "0005"}
ENDED = 3
#: Read in each run; `make nightly` reads the others too.
ALWAYS = {FIRST, "0008", max(LOGS)}


def test_every_earlier_schema_has_a_recorded_log() -> None:
    config = Config()
    config.set_main_option("script_location", "migrations:")
    config.set_main_option("path_separator", "os")
    known = {one.revision for one in ScriptDirectory.from_config(config).walk_revisions()}
    assert {one for one in known if FIRST <= one < expected()} <= LOGS.keys() <= known


@pytest.mark.parametrize(
    "schema",
    [
        one if one in ALWAYS else pytest.param(one, marks=pytest.mark.nightly)
        for one in sorted(LOGS)
    ],
)
def test_a_log_of_an_earlier_version_is_read_replayed_and_continued(
    schema: str, tmp_path: Path
) -> None:
    file = tmp_path / "events.sqlite3"
    file.write_bytes(lzma.decompress(LOGS[schema].read_bytes()))
    url = f"sqlite:///{file}"
    assert current(url) == schema
    before = verify(url)
    if schema < expected():
        with pytest.raises(LogUnavailable, match="log upgrade"):
            open_log(url, clock=SystemClock())
    with ReplayWorld(tmp_path, DEMO_MODEL) as world:
        assert current(url) == expected()
        assert verify(url) == before, "no event was rewritten"
        views = world.log.views
        counts = {JobStatus.COMPLETED: ENDED, JobStatus.RUNNING: 1, JobStatus.QUEUED: 1}
        assert counted(views) == counts
        for view in views.page(limit=10).jobs:
            if view.status is JobStatus.COMPLETED:
                check_replay(world.replay(view.id), schema)
        begun = [view.id for view in views.unfinished() if view.status is JobStatus.RUNNING]
        finish_open_jobs(world)
        assert counted(views) == {JobStatus.COMPLETED: ENDED + 2}
        for job in begun:
            assert attempts(world, job) == 2, "the attempt that was killed, and ours"
        assert world.log.head().position > before.position
    verify(url)
    engine = reader_engine(url)
    assert verify_payloads(engine).erased == 0
    engine.dispose()


def counted(views: JobViews) -> dict[JobStatus, int]:
    """Return the number of jobs of each status that has some."""
    return {status: count for status, count in views.counts().items() if count}


def check_replay(done: Replayed, schema: str) -> None:
    """Check a replay; the first token at least is the same on every device."""
    if schema in OTHER_MODEL:
        assert (done.verdict, done.reason) == (Verdict.REFUSED, Refusal.MODEL_DIFFERS)
        return
    assert done.verdict in {Verdict.SAME, Verdict.DIVERGED}, done.message
    assert done.tokens > 0


def finish_open_jobs(world: ReplayWorld) -> None:
    """Take up the open jobs as a worker does at its start, and run them."""
    queue = world.broker.queue
    found = JobReconciler(views=world.log.views, queue=queue).reconcile()
    assert len(found) == 2
    for _ in found:
        job = queue.take(Priority.INTERACTIVE)
        assert job is not None
        assert world.runner.run(job) is RunResult.ENDED


def attempts(world: ReplayWorld, job: JobId) -> int:
    """Return how many attempts of a job the log has."""
    events = map(decode_recorded, world.log.load(StreamName(job)))
    return sum(isinstance(event, AttemptStarted) for event in events)
