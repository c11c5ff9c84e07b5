"""The parts of the overview as operators see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Literal, cast

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.dialects.jobs.bodies import WaitingName
from api.dialects.jobs.objects import rounded
from api.http.messages import shown
from api.operate.swaps import SwapObject
from domain.audit.recent_ends import CacheDiagnosis
from domain.engine.figures import RowFigures
from domain.engine.presence import model_of
from domain.engine.rates import RatePoint, Rates
from domain.engine.workers import WorkerPulse, WorkerState
from domain.job.eta import Forecast
from domain.job.state import Job
from domain.values import CacheFigures, WaitingFor

ServiceState = Literal[
    "ready",
    "loading",
    "unloaded",
    "swapping",
    "draining",
    "paused",
    "stuck",
    "down",
]
WorkerStateName = Literal[
    "ready",
    "loading",
    "unloaded",
    "swapping",
    "draining",
    "stuck",
    "dead",
]
Phase = Literal["start", "restore", "prefill", "decode"]


class OverviewMemory(TypedDict):
    """Memory of the engine in bytes.

    ``live`` are contexts of running jobs, ``kept`` are contexts that later prompts may continue,
    and ``pinned`` is the part of both that cannot be freed at once. ``live`` and ``kept`` together
    stay below ``budget``. ``soft`` and ``hard`` are marks for ``weights`` and ``pinned`` together:
    from ``soft`` on contexts are saved in a hurry, at ``hard`` new jobs wait for memory.
    ``ceiling`` is the most that the engine takes, with the memory of a step.
    """

    weights: int
    live: int
    kept: int
    pinned: int
    budget: int
    soft: int
    hard: int
    ceiling: int


class OverviewDisk(TypedDict):
    """Contexts on the disk; sizes in bytes."""

    state: Literal["on", "paused", "scanning", "off"]
    used: int
    budget: int
    blocks: int


class OverviewRates(TypedDict):
    """Rates over the last seconds; ``null`` while nothing was measured.

    ``tokens_per_s`` are generated and ``prompt_tokens_per_s`` computed tokens of prompts.
    ``first_token_ms`` is the mean time to the first token, and ``cached_share`` the share of the
    prompts that the cache held, from 0 to 1; both over the last minute.
    """

    tokens_per_s: float
    prompt_tokens_per_s: float
    running: int
    queue_depth: int
    first_token_ms: float | None
    cached_share: float | None


class OverviewWorker(TypedDict):
    """A worker as it last reported.

    ``model`` is the name of the model that it has, loads or swaps to. A worker that is ``dead`` is
    shown for a while; ``age_s`` is the time since its reports ended. ``step`` is the step in which
    the engine of a ``stuck`` worker is. ``running`` counts without those that wait in the engine.
    """

    id: str
    state: WorkerStateName
    model: str | None
    pid: int
    age_s: float
    step: str | None
    running: int
    places: int | None
    waiting: int
    tokens_per_s: float
    prompt_tokens_per_s: float
    memory: OverviewMemory | None
    disk: OverviewDisk | None


class RunningRow(TypedDict):
    """A job that a worker runs.

    ``read_tokens`` of ``prompt_tokens`` are computed or restored; ``cached_tokens`` of them come
    from the cache. ``eta_s`` is the estimated time to the end, and ``eta_most_s`` the time to the
    end of the longest answer that the job may give.
    """

    job: str
    agent: str | None
    model: str
    worker: str | None
    priority: Literal["interactive", "batch"]
    attempt: int
    phase: Phase
    prompt_tokens: int
    read_tokens: int
    cached_tokens: int
    generated_tokens: int
    max_tokens: int | None
    tokens_per_s: float | None
    eta_s: float | None
    eta_most_s: float | None
    cancel_requested: bool
    created_at: str
    started_at: str | None


class WaitingRow(TypedDict):
    """A job that waits.

    ``position`` is the number of jobs that start before it. ``reason`` is what it needs; ``agent``
    stands for an earlier job of the same agent. ``eta_s`` is the estimated time to its start.
    """

    job: str
    agent: str | None
    model: str
    priority: Literal["interactive", "batch"]
    position: int | None
    reason: WaitingName | Literal["agent"]
    eta_s: float | None
    attempt: int
    cancel_requested: bool
    created_at: str


class MissReason(TypedDict):
    """Why the cache held no more of a prompt.

    ``cause`` is a cause as in the ``cache`` part of a job, and ``place`` where the prompts differ.
    """

    cause: str
    place: str
    missed_tokens: int


class FinishedRow(TypedDict):
    """A job that has ended lately; ``first_token_ms`` counts from the acceptance of the job."""

    job: str
    agent: str | None
    model: str
    outcome: Literal["completed", "failed", "cancelled", "expired"]
    stop_reason: str | None
    error: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first_token_ms: float | None
    total_ms: float
    miss: MissReason | None
    created_at: str
    finished_at: str


class OverviewObject(TypedDict):
    """What the service does now; clients ignore fields that they do not know.

    ``problem`` is one sentence on why ``state`` is not ``ready``. ``memory`` and ``disk`` are
    sums over ``workers``; ``disk_free`` is the free space of the disk of the log, in bytes.
    ``running`` begins with the oldest job, ``waiting`` with the one that starts next and
    ``finished`` with the latest; they hold the first rows only, while ``rates`` counts all jobs.
    """

    object: Literal["overview"]
    at: str
    version: str
    state: ServiceState
    problem: str | None
    model: str | None
    admission: Literal["open", "paused", "draining"]
    swap: SwapObject | None
    rates: OverviewRates
    memory: OverviewMemory | None
    disk: OverviewDisk | None
    disk_free: int
    workers: list[OverviewWorker]
    running: list[RunningRow]
    waiting: list[WaitingRow]
    finished: list[FinishedRow]


class HistoryPoint(TypedDict):
    """Means over one step that begins at ``t``, seconds since 1970; ``null``: nothing measured."""

    t: int
    tokens_per_s: float | None
    prompt_tokens_per_s: float | None
    running: float | None
    queue_depth: float | None
    first_token_ms: float | None
    cached_share: float | None


class HistoryObject(TypedDict):
    """Rates of the last time, oldest first; steps in which nothing was measured may be missing."""

    object: Literal["history"]
    range: Literal["5m", "1h", "24h"]
    step_s: int
    points: list[HistoryPoint]


#: Share of the memory for contexts from which on less is started and more is saved.
SOFT_SHARE = 0.9
_STATES = frozenset(WorkerState)
_DiskState = Literal["on", "paused", "scanning", "off"]
#: The worst one first.
_DISK_STATES: tuple[_DiskState, ...] = ("paused", "scanning", "on", "off")


def worker_state(pulse: WorkerPulse) -> WorkerStateName:
    """Return the state of a living worker."""
    if pulse.slow_step is not None:
        return "stuck"
    return cast("WorkerStateName", pulse.state) if pulse.state in _STATES else "ready"


def worker_section(
    pulse: WorkerPulse, state: WorkerStateName, *, age_s: float, rates: Rates
) -> OverviewWorker:
    """Return the section of a worker.

    Args:
        age_s: Seconds since the report was first missing; 0 while it lives.
    """
    is_ready = state in {"ready", "stuck"}
    return {
        "id": pulse.worker,
        "state": state,
        "model": model_of(pulse),
        "pid": pulse.pid,
        "age_s": round(age_s, 1),
        "step": pulse.slow_step,
        "running": pulse.running if is_ready else 0,
        "places": None if pulse.values is None else pulse.values.max_batch_size,
        "waiting": len(pulse.waiting),
        "tokens_per_s": _rate(rates.tokens_per_s) or 0.0,
        "prompt_tokens_per_s": _rate(rates.prompt_tokens_per_s) or 0.0,
        "memory": None if pulse.cache is None else _memory(pulse.cache),
        "disk": None if pulse.cache is None else _disk(pulse.cache),
    }


def _memory(cache: CacheFigures) -> OverviewMemory:
    weights, budget = cache.weights_bytes, cache.ram_budget_bytes
    return {
        "weights": weights,
        "live": cache.ram_live_bytes,
        "kept": max(0, cache.ram_used_bytes - cache.ram_live_bytes),
        "pinned": cache.ram_held_bytes,
        "budget": budget,
        "soft": weights + int(SOFT_SHARE * budget),
        "hard": weights + budget,
        "ceiling": max(cache.ceiling_bytes, weights + budget),
    }


def _disk(cache: CacheFigures) -> OverviewDisk:
    return {
        "state": cast("_DiskState", cache.disk),
        "used": cache.disk_used_bytes,
        "budget": cache.disk_budget_bytes,
        "blocks": cache.disk_blocks,
    }


def total_memory(workers: Iterable[OverviewWorker]) -> OverviewMemory | None:
    """Return the sums over the workers; ``None`` where none reports its memory."""
    found = [worker["memory"] for worker in workers if worker["memory"] is not None]
    if not found:
        return None
    totals = Counter[str]()
    for one in found:
        totals.update(cast("dict[str, int]", one))
    return cast("OverviewMemory", dict(totals))


def total_disk(workers: Iterable[OverviewWorker]) -> OverviewDisk | None:
    """Return the sums over the workers, in the worst of their states; ``None`` without any."""
    found = [worker["disk"] for worker in workers if worker["disk"] is not None]
    if not found:
        return None
    states = {one["state"] for one in found}
    return {
        "state": next(state for state in _DISK_STATES if state in states),
        "used": sum(one["used"] for one in found),
        "budget": sum(one["budget"] for one in found),
        "blocks": sum(one["blocks"] for one in found),
    }


def rates_object(rates: Rates, *, running: int, queue_depth: int) -> OverviewRates:
    """Return the rates of now, with the numbers of jobs."""
    counts = {"running": running, "queue_depth": queue_depth}
    means = _means(rates)
    speeds = {name: means[name] or 0.0 for name in ("tokens_per_s", "prompt_tokens_per_s")}
    return shown(OverviewRates, **(means | speeds | counts))


def _model_of(view: Job) -> str:
    """Return the model that answers a job, or the one that it waits for or names."""
    return view.answered_by or view.submitted.bound_model or view.submitted.model


def running_row(
    view: Job,
    row: tuple[WorkerPulse, RowFigures] | None,
    forecast: Forecast | None,
) -> RunningRow:
    """Return a running job.

    Args:
        row: Its worker and figures; ``None`` until the worker reports it.
    """
    worker, figures = (None, None) if row is None else row
    return shown(
        RunningRow,
        figures,
        view.usage,
        view,
        view.submitted,
        job=view.id,
        model=_model_of(view),
        worker=worker and worker.worker,
        phase="start" if figures is None else figures.phase,
        read_tokens=0 if figures is None else figures.read_tokens,
        generated_tokens=0 if figures is None else figures.generated_tokens,
        max_tokens=None if figures is None else figures.max_tokens,
        tokens_per_s=None if figures is None else _rate(figures.tokens_per_s),
        eta_s=None if forecast is None else rounded(forecast.end_s),
        eta_most_s=None if forecast is None else rounded(forecast.end_most_s),
    )


def waiting_rows(jobs: Iterable[tuple[Job, Forecast | None]]) -> list[WaitingRow]:
    """Return the waiting jobs in the given order, in which they start."""
    agents: set[str] = set()
    rows: list[WaitingRow] = []
    for view, forecast in jobs:
        reason = (forecast and forecast.waiting_for) or WaitingFor.PLACE
        is_behind = reason is WaitingFor.PLACE and view.submitted.agent in agents
        rows.append(
            shown(
                WaitingRow,
                view,
                view.submitted,
                job=view.id,
                model=view.submitted.bound_model or view.submitted.model,
                position=None if forecast is None else forecast.position,
                reason="agent" if is_behind else reason,
                eta_s=None if forecast is None else rounded(forecast.start_s),
            )
        )
        if view.submitted.agent is not None:
            agents.add(view.submitted.agent)
    return rows


def finished_row(view: Job, diagnosis: CacheDiagnosis | None) -> FinishedRow:
    """Return a job that has ended.

    Args:
        diagnosis: What it found in the cache, once that is known.
    """
    timings = view.timings
    finished_at = view.finished_at or view.created_at
    first_ms = timings.queued_ms + timings.first_token_ms if timings.first_token_ms else None
    parted = diagnosis and diagnosis.divergence
    return shown(
        FinishedRow,
        view.usage,
        view,
        view.submitted,
        job=view.id,
        model=_model_of(view),
        outcome=view.status,
        first_token_ms=_rate(first_ms),
        total_ms=round(1000 * (_s(finished_at) - _s(view.created_at)), 1),
        miss=None if parted is None else shown(MissReason, parted, diagnosis),
        finished_at=finished_at,
    )


def history_point(point: RatePoint) -> HistoryPoint:
    """Return one step of the history."""
    return shown(HistoryPoint, t=point.at_s, **_means(point.rates))


def _means(rates: Rates) -> dict[str, float | None]:
    means = {name: _rate(mean) for name, mean in asdict(rates).items()}
    return means | {"cached_share": _share(rates.cached_share)}


def rows_of(pulses: Iterable[WorkerPulse]) -> Mapping[str, tuple[WorkerPulse, RowFigures]]:
    """Return the rows that the workers report, by job."""
    return {row.job: (pulse, row) for pulse in pulses for row in pulse.rows or ()}


def _s(instant: str) -> float:
    return datetime.fromisoformat(instant).timestamp()


def _rate(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _share(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
