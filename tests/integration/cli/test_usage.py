"""``semantic usage`` and ``GET /admin/usage``: the same figures of the same log."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from api.operate.status import UsageMeans, UsageSums
from domain.events.event import Event
from domain.events.job import JobFailed
from domain.usage.figures import UsageFigures, UsageGroup
from domain.usage.report import report_usage, usage_row
from domain.values import StreamName
from ops.cli.main import build_app
from ops.log.sql_event_log import open_log
from tests.support.builders.api import FakeApi, fake_api
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.builders.log_files import new_log
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock
from tests.support.processes.stand_in_jobs import StandInJobs

HOUR_S = 3600


def _fill(log: Any, clock: FakeClock) -> None:
    ends: list[tuple[str | None, Event]] = [
        ("ann", completed()),
        ("ben", completed()),
        ("ann", completed()),
        (None, JobFailed(error="e", message="m")),
    ]
    for number, (agent, end) in enumerate(ends):
        events: list[Event] = [submitted(agent=agent), started(), end]
        drafts = [draft(event) for event in events]
        log.append(StreamName(f"job-{number}"), drafts, expected_version=0)
        clock.advance(12 * HOUR_S)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    clock = FakeClock()
    with open_log(new_log(tmp_path), clock=clock) as log:
        _fill(log, clock)
    return tmp_path


def _run(directory: Path, *arguments: str, command: tuple[str, ...] = ("usage",)) -> Result:
    return CliRunner().invoke(build_app(), [*command, *arguments, "--data-dir", str(directory)])


def test_days_come_in_order_with_their_sum_below(directory: Path) -> None:
    lines = _run(directory).stdout.splitlines()
    assert lines[0].split()[:3] == ["day", "jobs", "prompt"]
    days, total = lines[1:-1], lines[-1]
    assert days == sorted(days)
    assert total.startswith("total")
    assert "4 (1 without answer)" in total
    assert "12 (40%)" in total


def test_rows_are_hours_days_agents_or_models(directory: Path) -> None:
    shown = {
        group: json.loads(_run(directory, "--by", group.value, "--json").stdout)
        for group in UsageGroup
    }
    assert [row["name"] for row in shown[UsageGroup.AGENT]["data"]] == ["ann", "ben", ""]
    assert [row["jobs"] for row in shown[UsageGroup.MODEL]["data"]] == [4]
    assert len(shown[UsageGroup.HOUR]["data"]) == 4
    assert len({json.dumps(one["total"]) for one in shown.values()}) == 1
    total = shown[UsageGroup.DAY]["total"]
    assert (total["completed"], total["failed"], total["prompt_tokens"]) == (3, 1, 30)
    assert total["mean_ms"] == {
        "queue": 0.0,
        "restore": None,
        "prefill": 2.25,
        "first_token": 3.0,
        "decode": 4.125,
        "total": 0.0,
    }


def test_a_limit_keeps_the_latest_hours_and_the_busiest_agents(directory: Path) -> None:
    hours = json.loads(_run(directory, "--by", "hour", "--limit", "1", "--json").stdout)
    assert (len(hours["data"]), hours["has_more"], hours["total"]["jobs"]) == (1, True, 4)
    assert hours["data"][0]["failed"] == 1
    agents = _run(directory, "--by", "agent", "--limit", "1")
    assert agents.stdout.splitlines()[1].startswith("ann")
    assert "raise --limit" in agents.stderr


def test_only_what_ended_since_an_instant_is_counted(directory: Path) -> None:
    start = FakeClock().now()
    later = f"{start:%Y-%m-%d}T23:59:59"
    shown = json.loads(_run(directory, "--since", later, "--json").stdout)
    assert shown["since"] == f"{start:%Y-%m-%d}T23:00:00Z"
    assert shown["total"]["jobs"] < 4
    recent = json.loads(_run(directory, "--since", "1h", "--json").stdout)
    assert recent["data"] == [] or start > datetime(2030, 1, 1, tzinfo=UTC)
    assert _run(directory, "--since", "soon").exit_code == 2


def test_without_a_log_the_command_says_so(tmp_path: Path) -> None:
    refused = _run(tmp_path)
    assert refused.exit_code == 1
    assert "there is no log" in refused.stderr


def test_usage_and_agents_are_those_of_the_running_service(tmp_path: Path) -> None:
    with StandInJobs() as api, api.serving(tmp_path):
        used = _run(tmp_path, "--by", "model").stdout.splitlines()
        assert [line.split()[0] for line in used] == ["model", "m", "total"]
        assert "5 (1 without answer)" in used[1]
        assert used[1].endswith("1")
        agents = _run(tmp_path, command=("agents", "ls")).stdout.splitlines()
        assert [line.split()[0] for line in agents] == ["agent", "ann", "ben"]
        cells = "ann 3 (1 open) 1,234 40 30 (75%) 2 3 44 2026-01-01T00:00:00"
        assert " ".join(agents[1].split()) == cells
        some = _run(tmp_path, "--limit", "1", command=("agents", "ls"))
        assert (len(some.stdout.splitlines()), "there are more" in some.stderr) == (2, True)


def test_log_is_read_where_the_service_answers_a_part_or_another_log_may_be_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with StandInJobs(sees_all=False) as api, api.serving(tmp_path):
        assert "there is no log" in _run(tmp_path, "--by", "model").stderr
    with StandInJobs() as api, api.serving(tmp_path):
        assert "model" in _run(tmp_path, "--by", "model").stdout
        (tmp_path / "semantic.toml").write_text("")
        assert "there is no log" in _run(tmp_path, "--by", "model").stderr


def test_the_api_returns_the_same_report() -> None:
    async def scenario(api: FakeApi) -> None:
        assert isinstance(api.log, InMemoryEventLog)
        clock = api.app.clock
        assert isinstance(clock, FakeClock)
        _fill(api.log, clock)
        for group in UsageGroup:
            expected = report_usage(api.log.usage, group, since=None, limit=1000)
            found = await api.json("GET", f"/admin/usage?by={group.value}")
            assert found == expected
        first = await api.json("GET", "/admin/usage?limit=1&by=agent")
        assert (first["has_more"], first["data"][0]["name"]) == (True, "ann")
        bad = await api.json("GET", "/admin/usage?by=week", status=400)
        assert "by" in json.dumps(bad)

    async def main() -> None:
        async with fake_api() as api:
            await scenario(api)

    asyncio.run(main())


def test_the_documented_reply_has_every_field() -> None:
    row = usage_row("n", UsageFigures())
    assert set(row) == set(UsageSums.__annotations__)
    assert set(row["mean_ms"]) == set(UsageMeans.__annotations__)
