"""``/admin/overview``, its stream, and ``/admin/history``, as clients see them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from api.http.messages import Request, StreamReply
from api.operate.overview import current_overview
from domain.engine.control import EngineValues
from domain.engine.figures import RowFigures, RowPhase, WorkCounts
from domain.engine.workers import TurnState, WorkerPulse
from domain.values import CacheFigures, JobId, WaitingFor, WaitingJob, WorkerId
from tests.support.builders.api import CARD, PATIENCE_S, FakeApi, fake_api, leave
from tests.support.fakes.time import FakeClock
from tests.support.polling import scaled

W1 = WorkerId("w1")
CACHE = CacheFigures(
    ram_blocks=4,
    ram_used_bytes=400,
    ram_budget_bytes=1000,
    ram_held_bytes=300,
    ram_live_bytes=250,
    weights_bytes=2000,
    ceiling_bytes=3300,
    disk="on",
    disk_blocks=7,
    disk_used_bytes=700,
    disk_budget_bytes=7000,
)


def _run(scenario: Any) -> None:
    async def main() -> None:
        async with fake_api() as api:
            await scenario(api)

    asyncio.run(main())


def pulse(
    worker: WorkerId = W1, *running: JobId, state: str = "ready", **changes: Any
) -> WorkerPulse:
    turns = TurnState(slots=8, interactive_reserved=1, running=running)
    values = EngineValues(batch_window_ms=0, max_batch_size=8, gap_max_ms=0)
    ready: dict[str, Any] = (
        {"cache": CACHE, "turns": turns, "values": values} if state == "ready" else {}
    )
    plain = WorkerPulse(worker=worker, pid=7, state=state, model=CARD, target="demo")
    return replace(plain, **ready | changes)


async def submit(api: FakeApi, agent: str | None = None, **body: Any) -> JobId:
    wanted = {"prompt": "a secret prompt", "agent_id": agent, **body}
    job = await api.json(
        "POST", "/v1/jobs", {k: v for k, v in wanted.items() if v is not None}, status=202
    )
    return JobId(job["id"])


async def look(api: FakeApi) -> Any:
    """Read the overview a second later; forecasts are kept for less."""
    advance(api, 1)
    return await api.json("GET", "/admin/overview")


def advance(api: FakeApi, seconds: float) -> None:
    clock = api.app.clock
    assert isinstance(clock, FakeClock)
    clock.advance(seconds)


def test_service_without_a_worker_is_down() -> None:
    async def scenario(api: FakeApi) -> None:
        shown = await api.json("GET", "/admin/overview")
        assert (shown["object"], shown["state"], shown["model"]) == ("overview", "down", None)
        assert shown["problem"] == "no worker is alive"
        assert (shown["memory"], shown["disk"], shown["workers"]) == (None, None, [])
        assert (shown["running"], shown["waiting"], shown["finished"]) == ([], [], [])

    _run(scenario)


def test_running_job_shows_the_row_of_its_worker() -> None:
    async def scenario(api: FakeApi) -> None:
        job = await submit(api, "ann")
        api.start(job)
        api.broker.pulses.beat(pulse(W1, job))
        (row,) = (await api.json("GET", "/admin/overview"))["running"]
        assert (row["phase"], row["worker"], row["read_tokens"]) == ("start", None, 0)
        figures = RowFigures(
            job=job,
            phase=RowPhase.PREFILL,
            prompt_tokens=5,
            read_tokens=4,
            cached_tokens=2,
            generated_tokens=0,
            max_tokens=64,
        )
        api.broker.pulses.beat(pulse(W1, job, rows=(figures,)))
        shown = await api.json("GET", "/admin/overview")
        (row,) = shown["running"]
        assert (row["job"], row["agent"], row["model"], row["worker"]) == (job, "ann", "demo", "w1")
        assert (row["phase"], row["prompt_tokens"], row["read_tokens"]) == ("prefill", 5, 4)
        assert (shown["state"], shown["problem"], shown["model"]) == ("ready", None, "demo")
        assert (shown["rates"]["running"], shown["rates"]["queue_depth"]) == (1, 0)
        assert "secret" not in json.dumps(shown)

    _run(scenario)


def test_reading_asks_the_workers_for_their_rows() -> None:
    async def scenario(api: FakeApi) -> None:
        assert not api.broker.pulses.beat(pulse()).is_watched
        await api.json("GET", "/admin/overview")
        assert api.broker.pulses.beat(pulse()).is_watched

    _run(scenario)


def test_memory_has_marks_and_the_sums_of_all_workers() -> None:
    async def scenario(api: FakeApi) -> None:
        api.broker.pulses.beat(pulse(W1))
        api.broker.pulses.beat(pulse(WorkerId("w2"), cache=replace(CACHE, disk="paused")))
        shown = await api.json("GET", "/admin/overview")
        assert shown["workers"][0]["memory"] == {
            "weights": 2000,
            "live": 250,
            "kept": 150,
            "pinned": 300,
            "budget": 1000,
            "soft": 2900,
            "hard": 3000,
            "ceiling": 3300,
        }
        assert shown["memory"]["ceiling"] == 6600
        assert shown["disk"] == {"state": "paused", "used": 1400, "budget": 14000, "blocks": 14}
        assert [worker["places"] for worker in shown["workers"]] == [8, 8]

    _run(scenario)


def test_waiting_jobs_say_what_they_wait_for() -> None:
    async def scenario(api: FakeApi) -> None:
        held = await submit(api, "ann")
        api.start(held)
        first, second = await submit(api, "bob"), await submit(api, "bob")
        in_engine = WaitingJob(id=held, waiting_for=WaitingFor.MEMORY, position=0)
        api.broker.pulses.beat(pulse(W1, held, waiting=(in_engine,)))
        shown = await look(api)
        assert [(one["job"], one["position"], one["reason"]) for one in shown["waiting"]] == [
            (held, 0, "memory"),
            (first, 1, "place"),
            (second, 2, "agent"),
        ]
        assert shown["running"] == []
        assert shown["rates"]["queue_depth"] == 3

    _run(scenario)


def test_paused_service_says_so_on_each_waiting_job() -> None:
    async def scenario(api: FakeApi) -> None:
        await submit(api)
        api.broker.pulses.beat(pulse())
        await api.json("POST", "/admin/pause", {"reason": "backup"})
        shown = await look(api)
        assert (shown["state"], shown["admission"]) == ("paused", "paused")
        assert shown["problem"] == "an operator has paused the start of jobs: backup"
        assert [row["reason"] for row in shown["waiting"]] == ["paused"]

    _run(scenario)


@pytest.mark.parametrize("state", ["loading", "unloaded", "swapping", "draining"])
def test_state_of_the_only_worker_is_that_of_the_service(state: str) -> None:
    async def scenario(api: FakeApi) -> None:
        api.broker.pulses.beat(pulse(state=state))
        shown = await api.json("GET", "/admin/overview")
        assert (shown["state"], shown["workers"][0]["state"]) == (state, state)

    _run(scenario)


def test_open_swap_shows_its_phase() -> None:
    async def scenario(api: FakeApi) -> None:
        api.broker.pulses.beat(pulse())
        await api.json("POST", "/admin/models/demo/load", status=202)
        shown = await api.json("GET", "/admin/overview")
        assert (shown["swap"]["model"], shown["swap"]["state"]) == ("demo", "requested")

    _run(scenario)


def test_step_that_does_not_return_shows_the_worker_as_stuck() -> None:
    async def scenario(api: FakeApi) -> None:
        api.broker.pulses.beat(pulse(slow_step="decode of 2 rows, 31 s"))
        shown = await api.json("GET", "/admin/overview")
        assert (shown["state"], shown["problem"]) == ("stuck", "decode of 2 rows, 31 s")
        assert shown["workers"][0]["state"] == "stuck"

    _run(scenario)


def test_death_shows_for_a_while_and_an_orderly_end_does_not() -> None:
    async def scenario(api: FakeApi) -> None:
        overview = partial(current_overview, api.app)
        api.broker.pulses.beat(pulse(W1))
        api.broker.pulses.beat(pulse(WorkerId("w2"), state="draining"))
        assert [one["state"] for one in overview()["workers"]] == ["ready", "draining"]
        api.broker.pulses.fade()
        advance(api, 4)
        (dead,) = overview()["workers"]
        assert (dead["id"], dead["state"], dead["age_s"]) == ("w1", "dead", 4.0)
        assert overview()["state"] == "down"
        advance(api, 57)
        assert overview()["workers"] == []

    _run(scenario)


def test_lost_broker_is_a_problem_and_no_error() -> None:
    async def scenario(api: FakeApi) -> None:
        await submit(api)
        api.broker.down = True
        shown = await api.json("GET", "/admin/overview")
        assert shown["state"] == "down"
        assert "broker" in shown["problem"]
        assert [row["reason"] for row in shown["waiting"]] == ["place"]

    _run(scenario)


def test_finished_job_says_why_the_cache_missed() -> None:
    async def scenario(api: FakeApi) -> None:
        overview = partial(current_overview, api.app)
        jobs = [await submit(api, "ann"), await submit(api, "ann"), await submit(api)]
        for job in jobs[:2]:
            api.begin(job)
            api.complete(job, "done")
        assert [row["job"] for row in overview()["finished"]] == [jobs[1], jobs[0]]
        await api.json("POST", f"/v1/jobs/{jobs[2]}/cancel")
        first = overview()["finished"][0]
        assert (first["job"], first["outcome"]) == (jobs[2], "cancelled")
        await api.json("POST", f"/v1/jobs/{jobs[2]}/retry", status=202)
        last, *_ = overview()["finished"]
        assert (last["job"], last["agent"], last["outcome"]) == (jobs[1], "ann", "completed")
        assert (last["prompt_tokens"], last["cached_tokens"]) == (5, 2)
        assert last["miss"] is None

    _run(scenario)


def test_stream_has_an_object_for_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.operate.overview.LOOK_S", 0.005)

    async def scenario(api: FakeApi) -> None:
        reply = await api.send("GET", "/admin/overview/stream")
        assert isinstance(reply, StreamReply)
        async with asyncio.timeout(scaled(PATIENCE_S)):
            pieces = aiter(reply.pieces)
            first = (await anext(pieces)).decode()
            assert first.startswith("event: overview\ndata: {")
            assert '"state":"down"' in first
            api.broker.pulses.beat(pulse())
            assert '"state":"ready"' in (await anext(pieces)).decode()
        await leave(reply)

    _run(scenario)


def test_silent_stream_pings_and_ends_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.operate.overview.LOOK_S", 0.005)

    async def main() -> None:
        async with fake_api(ping_s=0.02) as api:
            request = Request(id="req-1", method="GET", path="/")
            reply = await api.send("GET", "/admin/overview/stream", request=request)
            assert isinstance(reply, StreamReply)
            async with asyncio.timeout(scaled(PATIENCE_S)):
                pieces = aiter(reply.pieces)
                await anext(pieces)
                assert await anext(pieces) == b": ping\n"
                request.ending.set()
                assert [piece async for piece in pieces] == []

    asyncio.run(main())


def test_history_has_the_rates_between_the_samples() -> None:
    async def scenario(api: FakeApi) -> None:
        for tokens in (100, 150):
            counts = WorkCounts(generated_tokens=tokens, prompt_tokens=10 * tokens, cached_tokens=0)
            api.broker.pulses.beat(pulse(counts=counts))
            api.app.rates.sample()
            advance(api, 5)
        shown = await api.json("GET", "/admin/history?range=5m")
        assert (shown["object"], shown["range"], shown["step_s"]) == ("history", "5m", 5)
        assert [point["tokens_per_s"] for point in shown["points"]] == [None, 10.0]
        assert shown["points"][1]["cached_share"] == 0.0

    _run(scenario)


def test_history_of_a_day_comes_from_the_sums_of_the_log() -> None:
    async def scenario(api: FakeApi) -> None:
        job = await submit(api, "ann")
        api.begin(job)
        api.complete(job, "done")
        advance(api, 90 * 60)
        shown = await api.json("GET", "/admin/history?range=24h")
        assert (shown["step_s"], len(shown["points"])) == (3600, 24)
        first, second = shown["points"][-2:]
        assert (first["cached_share"], first["queue_depth"]) == (0.4, None)
        assert second["t"] - first["t"] == 3600
        assert (second["tokens_per_s"], second["cached_share"]) == (0.0, None)

    _run(scenario)


def test_unknown_range_is_refused() -> None:
    async def scenario(api: FakeApi) -> None:
        error = await api.json("GET", "/admin/history?range=2h", status=400)
        assert "5m, 1h, 24h" in str(error)

    _run(scenario)
