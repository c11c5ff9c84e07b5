"""Projections: what appends fold in is what a rebuild folds, and what the pure fold computes."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text
from typer.testing import CliRunner

from domain.agent.views import fold_agents
from domain.events.agent import AgentDeleted, AgentForgotten, AgentForked, AgentRegistered
from domain.events.cache import (
    AgentCacheEvicted,
    AgentCacheMissed,
    AgentCacheRestored,
    AgentCacheSaved,
)
from domain.events.event import Event
from domain.usage.figures import UsageGroup
from domain.values import AgentId, JobId, StreamName, digest_of, rfc3339
from ops.cli.main import build_app
from ops.clock import RandomIds
from ops.data_dir import lock
from ops.log.admin.archive import archive_log
from ops.log.database import reader_engine, reading, writer_engine
from ops.log.projections import fold, rebuild
from ops.log.projections.fold import LIVE, NEXT
from ops.log.projections.rebuild import rebuild_projections
from ops.log.sql_event_log import open_log
from tests.support.builders.job_events import draft, worker_event
from tests.support.builders.job_histories import COUNTS, histories
from tests.support.builders.log_files import fill, new_log, raw_connection
from tests.support.day_and_night import by_day, examples
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock
from tests.support.polling import now_s, pause, wait_until

Histories = Mapping[str, list[Event]]
#: The names of jobs and agents; ``job-9`` never exists.
_JOBS = st.sampled_from([JobId("job-0"), JobId("job-1"), JobId("job-9")])
_CACHE_EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        AgentCacheRestored,
        job=_JOBS,
        source=st.sampled_from(["ram", "disk"]),
        tokens=COUNTS,
        disk_tokens=COUNTS,
        prompt_tokens=COUNTS,
        took_ms=st.floats(0, 1e9),
    ),
    st.builds(
        AgentCacheMissed,
        job=_JOBS,
        reason=st.sampled_from(["diverged", "gone", "model_changed"]),
        at_token=COUNTS,
        missed_tokens=COUNTS,
    ),
    st.builds(
        AgentCacheSaved,
        job=_JOBS,
        fingerprint=st.just("f"),
        blocks=st.just(("b",)),
        tokens=COUNTS,
        tail=st.none(),
    ),
)


_AGENT_EVENTS: st.SearchStrategy[Event] = st.sampled_from(
    [
        AgentRegistered(agent=AgentId("a"), profile=digest_of(b"profile")),
        AgentForked(
            agent=AgentId("a"),
            parent=AgentId("b"),
            parent_life=1,
            turn=2,
            profile=digest_of(b"profile"),
        ),
        AgentDeleted(agent=AgentId("a")),
        AgentForgotten(agent=AgentId("a"), jobs=1, payloads=1, payload_bytes=1, shared=0),
        AgentCacheEvicted(agent=AgentId("a"), blocks=1, reason="operator"),
    ]
)


@st.composite
def _logs(draw: st.DrawFn) -> tuple[Histories, list[str]]:
    """Return the events of some streams, and the order of the streams' events."""
    lives: dict[str, list[Event]] = {
        f"job-{number}": list(draw(histories())) for number in range(draw(st.integers(1, 3)))
    }
    for name in ("a", "b"):
        lives[f"agent-{name}"] = draw(st.lists(_CACHE_EVENTS | _AGENT_EVENTS, max_size=5))
    order = draw(st.permutations([name for name, life in lives.items() for _ in life]))
    return lives, order


def _append(log: Any, clock: FakeClock, lives: Histories, order: list[str]) -> None:
    """Append single events and pairs, so that transactions hold one event or several."""
    written = dict.fromkeys(lives, 0)
    for number, name in enumerate(order):
        first = written[name]
        events = lives[name][first : first + 1 + number % 2]
        if not events:
            continue
        drafts = [draft(event) for event in events]
        log.append(StreamName(name), drafts, expected_version=first)
        written[name] += len(events)
        clock.advance(977)


def _rows(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of the projections that readers query."""
    engine = reader_engine(url)
    with reading(engine) as connection:
        found = {
            table.name: [
                tuple(row)
                for row in connection.execute(select(table).order_by(*table.primary_key.columns))
            ]
            for table in LIVE.tables
        }
        for table in NEXT.tables:
            assert connection.execute(select(table)).all() == []
    engine.dispose()
    return found


def _check(url: str, lives: Histories, order: list[str]) -> None:
    clock, fake_clock = FakeClock(), FakeClock()
    fake = InMemoryEventLog(fake_clock)
    with open_log(url, clock=clock) as log:
        _append(log, clock, lives, order)
        _append(fake, fake_clock, lives, order)
        live = _rows(url)
        for group in UsageGroup:
            found = log.usage.grouped(group)
            assert list(found.values()) == list(fake.usage.grouped(group).values())
        assert log.usage.histograms() == fake.usage.histograms()
        folded = fold_agents(log.select(limit=1000))
        agents = log.agents.page(limit=100).agents
        assert agents == folded.page(limit=100).agents
        for agent in agents:
            assert log.agents.latest_jobs(agent.id) == folded.latest_jobs(agent.id)
        with patch.object(fold, "CATCH_UP_EVENTS_MAX", 4):  # several transactions
            rebuild_projections(url)
        assert _rows(url) == live


@examples(6, night=12)
@given(_logs())
def test_appended_rebuilt_and_folded_projections_are_the_same(
    lives_and_order: tuple[Histories, list[str]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        _check(new_log(Path(directory)), *lives_and_order)


@settings(
    max_examples=by_day(4, night=6),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(_logs())
def test_a_server_holds_the_same_projections(
    postgres_url: str, lives_and_order: tuple[Histories, list[str]]
) -> None:
    _empty_the_server(postgres_url)
    _check(postgres_url, *lives_and_order)


def test_a_second_rebuild_waits_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, clock = new_log(tmp_path), FakeClock()
    with open_log(url, clock=clock) as log:
        fill(log)
        clock.advance(60)
        log.append(StreamName("worker-1"), [draft(worker_event())], expected_version=0)
    archive_log(url, before=rfc3339(clock.now()), clock=clock, ids=RandomIds())
    live = _rows(url)
    for module in (rebuild, fold):
        monkeypatch.setattr(module, "CATCH_UP_EVENTS_MAX", 3)
    has_waited = threading.Event()

    class Time:
        """Signals each pause of a process that waits."""

        monotonic = staticmethod(now_s)

        @staticmethod
        def sleep(pause_s: float) -> None:
            has_waited.set()
            pause(pause_s, reason="the product waits with it")

    monkeypatch.setattr(lock, "time", Time)
    second = threading.Thread(target=rebuild_projections, args=(url,))

    def while_the_first_is_at_work(done: int, total: int) -> None:
        del done, total
        if not second.ident:
            second.start()
            wait_until(lambda: has_waited.is_set() or not second.is_alive())

    rebuild_projections(url, progress=while_the_first_is_at_work)
    second.join()
    assert has_waited.is_set()
    assert _rows(url) == live


def test_a_log_of_the_version_before_is_folded_when_its_tables_are_upgraded(
    tmp_path: Path,
) -> None:
    url = new_log(tmp_path)
    with open_log(url, clock=FakeClock()) as log:
        fill(log)
    live = _rows(url)
    with closing(raw_connection(url)) as raw:
        raw.execute("UPDATE checkpoints SET version = 4")
        raw.execute("DELETE FROM usage_hours")
        raw.execute("DELETE FROM agents")
    show = ["usage", "--data-dir", str(tmp_path)]
    refused = CliRunner().invoke(build_app(), show)
    assert refused.exit_code == 1
    assert "semantic log upgrade" in refused.stderr
    assert CliRunner().invoke(build_app(), ["log", "upgrade", *show[1:]]).exit_code == 0
    assert _rows(url) == live
    assert CliRunner().invoke(build_app(), show).exit_code == 0


def _empty_the_server(url: str) -> None:
    engine = writer_engine(url)
    with engine.begin() as connection:
        names = ", ".join(["checkpoints", *(table.name for table in (*LIVE.tables, *NEXT.tables))])
        connection.execute(text("ALTER TABLE events DISABLE TRIGGER ALL"))
        connection.execute(text(f"TRUNCATE events, {names}"))
        connection.execute(text("ALTER TABLE events ENABLE TRIGGER ALL"))
    engine.dispose()
