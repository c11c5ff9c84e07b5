from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from domain.agent.state import Profile
from domain.errors import AgentNotFound, CorruptLog, PayloadMissing
from domain.events.agent import AgentTurnAdded
from domain.events.cache import AgentCacheSaved
from domain.events.event import Event
from domain.events.job import AttemptFailed, JobFailed
from domain.log.codec import ERASED_TEXT, decode_recorded
from domain.values import AgentId, JobId, JobStatus, StreamName, digest_of
from ops.blockstore.maintenance import overview
from ops.blockstore.store import BlockStore
from ops.broker.client import Keys, connect
from ops.cli.main import build_app
from ops.clock import RandomIds, SystemClock
from ops.log.admin.projections_check import ProjectionState, verify_projections
from ops.log.database import reader_engine
from ops.log.erase.erase import erase_agent
from ops.log.hot_statements import HotStatement
from ops.log.projections.rebuild import rebuild_projections
from ops.log.sql_event_log import SqlEventLog, open_log
from ops.supervisor.serve_record import serve_lock
from tests.support.builders.blocks import make_chain, make_checkpoint
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.builders.log_files import agent_records, new_log, raw_connection, verify
from tests.support.processes.killed import killed_at_every_step

#: Short enough for a cell, and long enough for pages of its own.
SECRETS = (b"the secret of alice", b"a long secret of alice; " * 2000)
SHARED = b"what both of them asked"
OF_BOB = b"the words of bob"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEMANTIC_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("SEMANTIC_LOG__URL", raising=False)
    return tmp_path


@pytest.fixture
def url(data: Path) -> str:
    url = new_log(data)
    with open_log(url, clock=SystemClock()) as log:
        _run_job(log, "job-1", "alice", SECRETS[0], SECRETS[1])
        _run_job(log, "job-2", "bob", SHARED, OF_BOB)
        _run_job(log, "job-3", "alice", SHARED, SECRETS[0])
    return url


def _run_job(log: SqlEventLog, name: str, agent: str, asked: bytes, said: bytes | None) -> None:
    accepted = replace(submitted(agent=agent), request=digest_of(asked))
    happened: list[Event] = [accepted, started()]
    payloads = {digest_of(asked): asked}
    if said is not None:
        happened.append(replace(completed(), output=digest_of(said)))
        payloads[digest_of(said)] = said
    drafts = [draft(event) for event in happened]
    log.append(StreamName(name), drafts, expected_version=0, payloads=payloads)


def _erase(*options: str) -> Result:
    app = build_app({"log"})
    command = ["log", "erase", "--agent", "alice", "--yes", *options]
    return CliRunner().invoke(app, command)


def _holds(directory: Path, secret: bytes) -> list[str]:
    """Return the files in which a text stands, whole or its beginning."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return [path.name for path in files if secret[:19] in path.read_bytes()]


@pytest.fixture
def idle(url: str) -> Iterator[None]:
    """Somebody has the log open, so that its write-ahead log stays where it is."""
    with closing(raw_connection(url)) as raw:
        raw.execute("SELECT count(*) FROM events").fetchall()
        yield


@pytest.mark.usefixtures("idle")
def test_no_byte_of_an_erased_agent_is_left_and_the_chain_verifies(url: str, data: Path) -> None:
    with open_log(url, clock=SystemClock()) as log:
        _run_job(log, "job-4", "alice", b"the secret of alice again", None)
    assert {"events.sqlite3", "events.sqlite3-wal"} <= set(_holds(data, SECRETS[0]))

    result = _erase("--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["jobs"], report["payloads"], report["shared"]) == (3, 3, 2)
    for secret in SECRETS:
        assert _holds(data, secret) == []
    verify(url)
    with open_log(url, clock=SystemClock()) as log:
        assert log.get(digest_of(SHARED)) == SHARED
        assert log.get(digest_of(OF_BOB)) == OF_BOB
        with pytest.raises(PayloadMissing):
            log.get(digest_of(SECRETS[0]))
        (forgotten,) = log.load(StreamName("agent-alice"))
        assert (forgotten.type, forgotten.data["payloads"]) == ("AgentForgotten", 3)
        view = log.views.get(JobId("job-4"))
        assert view is not None
        assert view.status is JobStatus.CANCELLED


def test_a_fork_keeps_the_texts_that_it_goes_on_from(url: str) -> None:
    alice, profile = AgentId("alice"), Profile(system="All of them need this.")
    with open_log(url, clock=SystemClock()) as log:
        records = agent_records(log)
        agent, _ = records.register(alice, profile, correlation_id="c")
        for number, job in ((1, "job-1"), (2, "job-3")):
            turn = AgentTurnAdded(agent=alice, turn=number, job=JobId(job))
            log.append(
                StreamName("agent-alice"),
                [draft(turn)],
                expected_version=agent.version + number - 1,
            )
        records.fork(alice, AgentId("child"), from_turn=1, correlation_id="c")
    report = json.loads(_erase("--json").stdout)
    assert report["payloads"] == 0
    with open_log(url, clock=SystemClock()) as log:
        records = agent_records(log)
        with pytest.raises(AgentNotFound):
            records.load(alice)
        child = records.load(AgentId("child"))
        assert (child.base, records.profile_of(child)) == ("job-1", profile)
        assert log.get(digest_of(SECRETS[1])) == SECRETS[1]


def test_what_came_since_is_erased_by_the_next_time(url: str, data: Path) -> None:
    assert _erase().exit_code == 0
    with open_log(url, clock=SystemClock()) as log:
        _run_job(log, "job-5", "alice", SECRETS[0], SECRETS[1])
    assert _holds(data, SECRETS[0])
    assert _erase().exit_code == 0
    assert _holds(data, SECRETS[0]) == []
    with open_log(url, clock=SystemClock()) as log:
        assert [event.version for event in log.load(StreamName("agent-alice"))] == [1, 2]


def test_an_unknown_agent_has_nothing_to_erase(url: str) -> None:
    assert url
    app = build_app({"log"})
    arguments = ["log", "erase", "--agent", "nobody", "--yes", "--json"]
    report = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert (report["jobs"], report["payloads"]) == (0, 0)


def test_a_reader_that_keeps_the_old_pages_is_told_of(url: str, data: Path) -> None:
    with closing(raw_connection(url)) as raw:
        raw.execute("BEGIN")
        raw.execute("SELECT count(*) FROM events").fetchall()
        result = _erase()
        assert result.exit_code == 1
        assert "repeat this" in result.stderr
    assert _erase().exit_code == 0
    assert _holds(data, SECRETS[0]) == []


def test_nothing_is_erased_while_a_service_runs(url: str, data: Path) -> None:
    with serve_lock(data):
        assert _erase().exit_code == 1
    with open_log(url, clock=SystemClock()) as log:
        assert log.get(digest_of(SECRETS[0])) == SECRETS[0]


def test_nothing_is_erased_without_a_yes(url: str) -> None:
    app = build_app({"log"})
    result = CliRunner().invoke(app, ["log", "erase", "--agent", "alice"], input="n\n")
    assert result.exit_code == 1
    with open_log(url, clock=SystemClock()) as log:
        assert log.get(digest_of(SECRETS[0])) == SECRETS[0]


def test_the_files_of_a_private_broker_go_too(url: str, data: Path) -> None:
    assert url
    kept = data / "broker" / "appendonlydir"
    kept.mkdir(parents=True)
    (kept / "appendonly.aof.1.incr.aof").write_bytes(SECRETS[0])
    assert _erase().exit_code == 0
    assert _holds(data, SECRETS[0]) == []


def test_items_in_a_shared_broker_are_deleted(
    url: str, redis_url: str, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert url
    monkeypatch.setenv("SEMANTIC_REDIS__URL", redis_url)
    monkeypatch.setenv("SEMANTIC_REDIS__PREFIX", keys.prefix)
    with closing(connect(redis_url)) as client:
        for job in ("job-1", "job-2", "job-3"):
            client.xadd(keys.items(JobId(job)), {"text": "words"})
        result = _erase()
        assert result.exit_code == 0
        assert "append-only file, snapshots and replicas may hold them" in result.stdout
        left = [job for job in ("job-1", "job-2", "job-3") if client.exists(keys.items(JobId(job)))]
    assert left == ["job-2"]


def test_blocks_that_others_use_too_stay(url: str) -> None:
    def saved(*blocks: str) -> AgentCacheSaved:
        return AgentCacheSaved(
            job=JobId("job-1"), fingerprint="f", blocks=blocks[:-1], tail=blocks[-1], tokens=9
        )

    with open_log(url, clock=SystemClock()) as log:
        for agent, blocks in (("alice", ("aa", "bb", "cc")), ("bob", ("aa", "dd"))):
            names = [block * 32 for block in blocks]
            stream = StreamName(f"agent-{agent}")
            log.append(stream, [draft(saved(*names))], expected_version=0)
    erased = erase_agent(url, AgentId("alice"), clock=SystemClock(), ids=RandomIds())
    assert erased.blocks == {"bb" * 32, "cc" * 32}


def test_checkpoints_and_what_builds_on_erased_blocks_go_too(url: str, data: Path) -> None:
    shared, own = make_chain(1, 1), make_chain(1, 3)[1:]
    named = make_checkpoint(shared)
    unnamed = make_checkpoint(own)
    of_both = make_checkpoint([])
    store = BlockStore(data / "cache", budget_bytes=1 << 20, clock=SystemClock())
    store.put_many([*shared, *own, named, unnamed, of_both])
    with open_log(url, clock=SystemClock()) as log:
        for agent, blocks, checkpoints in (
            ("alice", (*shared, own[0]), (named, of_both)),
            ("bob", shared, (of_both,)),
        ):
            saved = AgentCacheSaved(
                job=JobId("job-1"),
                fingerprint="f",
                blocks=tuple(block.hash.hex() for block in blocks),
                tail=None,
                tokens=9,
                checkpoints=tuple(block.hash.hex() for block in checkpoints),
            )
            log.append(StreamName(f"agent-{agent}"), [draft(saved)], expected_version=0)
    result = _erase("--json")
    assert result.exit_code == 0, result.output
    left = {block.hash for block in overview(data / "cache").blocks}
    assert left == {shared[0].hash, of_both.hash}
    assert json.loads(result.stdout)["blocks"] == 4


def test_an_erasing_that_is_killed_can_be_repeated(url: str, data: Path) -> None:
    steps = [(HotStatement, name) for name in ("rows", "row", "run", "run_many")]
    deaths = 0

    def erase() -> None:
        erase_agent(url, AgentId("alice"), clock=SystemClock(), ids=RandomIds())

    with open_log(url, clock=SystemClock()) as log:
        before = log.head()
    for _ in killed_at_every_step(erase, steps):
        deaths += 1
        # All of it or nothing: the texts and the event that says that they are gone.
        assert verify(url) == before
    assert deaths > 10
    assert verify(url).position == before.position + 1
    assert _holds(data, SECRETS[0]) == []


@pytest.mark.parametrize("is_rebuilding", [False, True])
def test_words_of_a_client_in_events_and_rows_go_with_its_texts(
    url: str, data: Path, *, is_rebuilding: bool
) -> None:
    """Names of models, error texts and stop texts: a rebuild then leads to the same rows."""
    words = [f"alice wrote the {name} 7391" for name in ("model", "error", "end", "stop")]
    model, error, end, stop = words
    happened: dict[str, list[Event]] = {
        "job-6": [
            replace(submitted(agent="alice"), model=model),
            started(),
            AttemptFailed(attempt=1, error="engine_lost", message=error, retryable=True),
            AttemptFailed(attempt=1, error="invalid_request", message=end, retryable=False),
            JobFailed(error="invalid_request", message=end),
        ],
        "job-7": [
            replace(submitted(agent="alice"), model=model),
            started(),
            replace(completed(), stop_sequence=stop),
        ],
    }
    with open_log(url, clock=SystemClock()) as log:
        for job, events_ in happened.items():
            drafts = [draft(event) for event in events_]
            log.append(StreamName(job), drafts, expected_version=0)
        view = log.views.get(JobId("job-6"))
        assert view is not None
        assert (view.submitted.model, view.error_message) == (model, end)
        loaded = [decode_recorded(event) for event in log.load(StreamName("job-6"))]
        assert loaded == happened["job-6"]
    if is_rebuilding:
        rebuild_projections(url)
    for word in words:
        assert _holds(data, word.encode()), "the test looks in the wrong place"

    assert _erase().exit_code == 0
    for word in words:
        assert _holds(data, word.encode()) == []
    verify(url)
    engine = reader_engine(url)
    assert verify_projections(engine, url) is ProjectionState.VERIFIED
    engine.dispose()
    with open_log(url, clock=SystemClock()) as log:
        failed, stopped = log.views.get(JobId("job-6")), log.views.get(JobId("job-7"))
        assert failed is not None
        assert stopped is not None
        assert (failed.submitted.model, failed.error, failed.error_message) == (
            ERASED_TEXT,
            "invalid_request",
            ERASED_TEXT,
        )
        assert stopped.stop_sequence == ERASED_TEXT
        others = log.views.get(JobId("job-2"))
        assert others is not None
        assert others.submitted.model == submitted().model


def test_a_word_that_another_job_needs_stays(url: str) -> None:
    failure = AttemptFailed(attempt=0, error="invalid_request", message="both", retryable=False)
    with open_log(url, clock=SystemClock()) as log:
        for job, agent in (("job-8", "alice"), ("job-9", "bob")):
            happened = (submitted(agent=agent), failure, JobFailed(error="e", message="both"))
            drafts = [draft(event) for event in happened]
            log.append(StreamName(job), drafts, expected_version=0)
    assert _erase().exit_code == 0
    with open_log(url, clock=SystemClock()) as log:
        view = log.views.get(JobId("job-9"))
        assert view is not None
        assert view.error_message == "both"
        assert decode_recorded(log.load(StreamName("job-9"))[-1]) == JobFailed(
            error="e", message="both"
        )


def test_a_word_that_comes_again_after_its_erasure_verifies(url: str) -> None:
    """A fold finds the text that a later job stored; the row of the erased job has it no more."""
    failed = JobFailed(error="e", message="the words of alice, again")
    for agent, job in (("alice", "job-8"), ("bob", "job-9")):
        with open_log(url, clock=SystemClock()) as log:
            drafts = [draft(submitted(agent=agent)), draft(failed)]
            log.append(StreamName(job), drafts, expected_version=0)
        if agent == "alice":
            assert _erase().exit_code == 0
    engine = reader_engine(url)
    assert verify_projections(engine, url) is ProjectionState.VERIFIED
    with closing(raw_connection(url)) as raw:
        forged = (
            "UPDATE jobs SET record = replace(record, 'the words', 'forged') WHERE id = 'job-9'"
        )
        raw.execute(forged).fetchall()
    with pytest.raises(CorruptLog):
        verify_projections(engine, url)
    engine.dispose()
