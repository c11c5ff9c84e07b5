"""``semantic top``: its texts, its feed and its screen, on recorded overviews."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from textual.app import ScreenStackError
from textual.widgets import DataTable, Static

from ops.cli.top import text
from ops.cli.top.app import TimelineScreen, TopApp
from ops.cli.top.feed import Lost, overviews, snapshot
from ops.clients.http_client import HttpClient, Refused, Unreachable
from tests.support.polling import eventually

JOBS = [f"job-{n:032x}" for n in range(6)]
SIZES = ((120, 40), (40, 10))


def running(job: str, **changes: Any) -> dict[str, Any]:
    row = {
        "job": job,
        "agent": "ann",
        "worker": "w1",
        "phase": "prefill",
        "prompt_tokens": 1000,
        "read_tokens": 500,
        "cached_tokens": 250,
        "generated_tokens": 0,
        "tokens_per_s": None,
        "eta_s": 75.0,
        "cancel_requested": False,
    }
    return row | changes


def overview(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "object": "overview",
        "version": "1.0",
        "state": "ready",
        "problem": None,
        "model": "demo",
        "admission": "open",
        "rates": {"tokens_per_s": 12.34, "running": len(rows), "queue_depth": 1},
        "memory": {
            "weights": 10**9,
            "live": 2 * 10**9,
            "kept": 10**9,
            "ceiling": 8 * 10**9,
        },
        "disk": {"state": "on", "used": 5 * 10**8, "budget": 10**9},
        "disk_free": 7 * 10**9,
        "workers": [],
        "running": list(rows),
        "waiting": [
            {"job": JOBS[5], "agent": None, "position": 0, "reason": "memory", "eta_s": None}
        ],
        "finished": [
            {
                "job": JOBS[4],
                "agent": "bob",
                "outcome": "completed",
                "error": None,
                "prompt_tokens": 100,
                "cached_tokens": 90,
                "first_token_ms": 80.0,
                "total_ms": 3_700_000.0,
                "miss": {"cause": "tool_edited", "place": "tools[2] Bash", "missed_tokens": 9},
            }
        ],
    }
    return found | changes


def test_snapshot_has_every_table() -> None:
    lines = text.snapshot(overview(running(JOBS[0])))
    assert lines[0] == "semantic 1.0 · ready · demo"
    assert lines[1].startswith("12.3 tok/s · 0 prompt tok/s · first token - · cached -")
    assert "[█████·····] weights 1.0 GB, live 2.0 GB, kept 1.0 GB of 8.0 GB" in lines[2]
    whole = "\n".join(lines)
    assert "00000000  ann    prefill  █████····· 500/1,000" in whole
    assert "25%     1 min" in whole
    assert "00000005  -      1      memory" in whole
    assert "completed  90%     0.1 s  1.0 h  tool_edited at tools[2] Bash" in whole


def test_snapshot_of_a_service_without_workers_has_no_memory() -> None:
    empty = overview(memory=None, disk=None, finished=[], waiting=[], state="down", model=None)
    lines = text.snapshot(empty | {"problem": "no worker is alive"})
    assert lines[0] == "semantic 1.0 · down · no model · no worker is alive"
    assert lines[-3:] == ["waiting (0)", "", "finished (0)"]


@pytest.mark.parametrize("name", ["\x1b[31mred", "a\rb", "x\u202egnp.exe", "line\nbreak", "\x9b2J"])
def test_hostile_names_control_no_terminal(name: str) -> None:
    hostile = overview(running(JOBS[0], agent=name, phase=name), problem=name)
    whole = "".join(text.snapshot(hostile))
    assert not set(name) & set(whole) & set("\x1b\r\n\u202e\x9b")
    assert "\\u" in whole


def test_workers_are_listed_if_one_is_not_ready_or_there_are_several() -> None:
    ready = {"id": "w1", "state": "ready", "model": "demo", "running": 1, "places": 8, "waiting": 0}
    dead = ready | {"id": "w2", "state": "dead", "age_s": 4.0, "model": None}
    assert text.workers(overview(workers=[ready])) == []
    assert text.workers(overview(workers=[ready, dead])) == [
        "w1 ready · demo · 1/8 running, 0 waiting",
        "w2 dead for 4.0 s · - · 1/8 running, 0 waiting",
    ]


class FakeClient(HttpClient):
    """Streams what a test puts; an exception breaks the connection."""

    streamed: queue.SimpleQueue[Any]
    sent: list[tuple[str, str]]
    answers: dict[str, Any]

    def __init__(self) -> None:
        super().__init__(base_url="http://127.0.0.1:1")
        for name, value in (
            ("streamed", queue.SimpleQueue[Any]()),
            ("sent", []),
            ("answers", {}),
        ):
            object.__setattr__(self, name, value)

    def ask(self, method: str, path: str, **_: Any) -> Any:
        self.sent.append((method, path))
        answer = self.answers.get(path, {})
        if isinstance(answer, Exception):
            raise answer
        return answer.pop(0) if isinstance(answer, list) else answer

    @contextmanager
    def lines(self, path: str, **_: Any) -> Iterator[Iterator[str]]:
        self.sent.append(("GET", path))
        yield self._lines()

    def _lines(self) -> Iterator[str]:
        import json  # noqa: PLC0415 - only here

        while (found := self.streamed.get()) is not None:
            if isinstance(found, Exception):
                raise found
            yield from ("event: overview", f"data: {json.dumps(found)}", "")


def test_feed_connects_again_with_growing_pauses() -> None:
    client, pauses = FakeClient(), list[float]()
    for one in (overview(), Unreachable("gone"), Refused(503, "x", {}), None, overview()):
        client.streamed.put(one)

    def wait(pause_s: float) -> bool:
        pauses.append(pause_s)
        return False

    found = overviews(lambda: client, wait)
    states = [next(found) for _ in range(5)]
    assert [isinstance(one, Lost) for one in states] == [False, True, True, True, False]
    assert pauses == [0.5, 1.0, 2.0]


def test_snapshot_waits_for_the_rows_of_the_workers() -> None:
    client, waits = FakeClient(), list[float]()
    late = overview(running(JOBS[0], worker=None))
    client.answers["/admin/overview"] = [late, late, overview(running(JOBS[0]))]
    assert snapshot(client, waits.append)["running"][0]["worker"] == "w1"
    assert len(waits) == 2
    client.answers["/admin/overview"] = [late] * 9
    assert snapshot(client, waits.append) == late


def _screen(size: tuple[int, int], scenario: Any) -> None:
    async def main() -> None:
        client = FakeClient()
        app = TopApp(lambda: client)
        async with app.run_test(size=size) as pilot:
            await scenario(app, pilot, client)
            client.streamed.put(None)

    asyncio.run(main())


def _text(app: TopApp, name: str) -> str:
    return str(app.screen_stack[0].query_one(f"#{name}", Static).render())


def _rows(app: TopApp, name: str) -> list[list[str]]:
    table: DataTable[str] = app.screen_stack[0].query_one(f"#{name}", DataTable)
    return [table.get_row_at(index) for index in range(table.row_count)]


@pytest.mark.parametrize("size", SIZES)
def test_screen_follows_the_service_over_its_death(size: tuple[int, int]) -> None:
    async def scenario(app: TopApp, _pilot: Any, client: FakeClient) -> None:
        client.streamed.put(overview(running(JOBS[0])))
        await eventually(lambda: bool(_rows(app, "running")))
        assert _text(app, "title") == "semantic 1.0 · ready · demo"
        assert _rows(app, "running")[0][:3] == ["00000000", "ann", "prefill"]
        client.streamed.put(Unreachable("gone"))
        await eventually(lambda: "trying again" in _text(app, "title"))
        client.streamed.put(overview(state="loading"))
        await eventually(lambda: "loading" in _text(app, "title"))
        assert _rows(app, "running") == []

    _screen(size, scenario)


def test_cursor_stays_on_its_job_and_cancels_it_on_the_second_key() -> None:
    async def scenario(app: TopApp, pilot: Any, client: FakeClient) -> None:
        client.streamed.put(overview(running(JOBS[0]), running(JOBS[1])))
        await eventually(lambda: len(_rows(app, "running")) == 2)
        await pilot.press("down")
        client.streamed.put(overview(running(JOBS[2]), running(JOBS[0]), running(JOBS[1])))
        await eventually(lambda: len(_rows(app, "running")) == 3)
        await pilot.press("c")
        assert "press c again to cancel 00000001" in _text(app, "notice")
        assert ("POST", f"/v1/jobs/{JOBS[1]}/cancel") not in client.sent
        await pilot.press("c")
        await eventually(lambda: "is cancelled" in _text(app, "notice"))
        assert ("POST", f"/v1/jobs/{JOBS[1]}/cancel") in client.sent

    _screen(SIZES[0], scenario)


def test_enter_opens_the_timeline_and_escape_closes_it() -> None:
    async def scenario(app: TopApp, pilot: Any, client: FakeClient) -> None:
        step = {"what": "accepted", "text": "accepted [red]x", "after_ms": 1500.0}
        found = {"steps": [step], "total_ms": 2000.0, "queued_ms": 0.0}
        client.answers[f"/v1/jobs/{JOBS[0]}/timeline"] = found
        client.streamed.put(overview(running(JOBS[0])))
        await eventually(lambda: bool(_rows(app, "running")))
        await pilot.press("enter")
        await eventually(lambda: isinstance(app.screen, TimelineScreen))
        shown = str(app.screen.query_one(Static).render())
        assert "1.5 s  accepted [red]x" in shown
        client.streamed.put(overview(state="loading"))
        await eventually(lambda: "loading" in _text(app, "title"))
        await pilot.press("escape")
        await eventually(lambda: not isinstance(app.screen, TimelineScreen))

    _screen(SIZES[0], scenario)


def test_pause_resumes_a_paused_service_and_an_error_is_a_notice() -> None:
    async def scenario(app: TopApp, pilot: Any, client: FakeClient) -> None:
        client.answers["/admin/pause"] = {"admission": "paused"}
        client.answers["/admin/resume"] = Unreachable("gone")
        client.streamed.put(overview())
        await eventually(lambda: "ready" in _text(app, "title"))
        await pilot.press("p")
        await eventually(lambda: _text(app, "notice") == "paused")
        client.streamed.put(overview(admission="paused", state="paused"))
        await eventually(lambda: "paused" in _text(app, "title"))
        await pilot.press("p")
        await eventually(lambda: _text(app, "notice") == "no service answers")

    _screen(SIZES[0], scenario)


def test_overview_behind_the_end_of_the_screen_ends_its_thread() -> None:
    ended: list[TopApp] = []

    async def scenario(app: TopApp, _pilot: Any, client: FakeClient) -> None:
        client.streamed.put(overview())
        await eventually(lambda: "ready" in _text(app, "title"))
        ended.append(app)

    _screen(SIZES[0], scenario)
    with pytest.raises(ScreenStackError):  # what the thread takes for the end
        ended[0]._show(overview())
