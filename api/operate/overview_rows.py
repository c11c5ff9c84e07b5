"""The overview and swaps as operators see them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Final, Literal, cast

from api.dialects.jobs.objects import rounded
from api.operate.engine_bodies import SwapObject, SwapTimings
from api.operate.overview_bodies import (
    FinishedRow,
    HistoryPoint,
    MissReason,
    OverviewDisk,
    OverviewMemory,
    OverviewRates,
    OverviewWorker,
    RunningRow,
    WaitingRow,
    WorkerStateName,
)
from domain.engine.figures import RowFigures
from domain.engine.rates import RatePoint, Rates
from domain.job.eta import Forecast
from domain.job.ports import WorkerPulse, WorkerState
from domain.job.state import Job
from domain.model.presence import model_of
from domain.model.wanted_model import (
    Swap,
    SwapState,
)
from domain.usecases.recent_ends import CacheDiagnosis
from domain.values import CacheFigures, WaitingFor

#: Share of the memory for contexts from which on less is started and more is saved.
SOFT_SHARE = 0.9
_STATES = frozenset(WorkerState)
_Priority = Literal["interactive", "batch"]


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
        pulse: Its last report.
        age_s: Seconds since the report was first missing; 0 while it lives.
        rates: Its rates of the last seconds.
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
        "state": cast("Literal['on', 'paused', 'scanning', 'off']", cache.disk),
        "used": cache.disk_used_bytes,
        "budget": cache.disk_budget_bytes,
        "blocks": cache.disk_blocks,
    }


def total_memory(workers: Iterable[OverviewWorker]) -> OverviewMemory | None:
    """Return the sums over the workers; ``None`` where none reports its memory."""
    found = [worker["memory"] for worker in workers if worker["memory"] is not None]
    if not found:
        return None
    return {
        "weights": sum(one["weights"] for one in found),
        "live": sum(one["live"] for one in found),
        "kept": sum(one["kept"] for one in found),
        "pinned": sum(one["pinned"] for one in found),
        "budget": sum(one["budget"] for one in found),
        "soft": sum(one["soft"] for one in found),
        "hard": sum(one["hard"] for one in found),
        "ceiling": sum(one["ceiling"] for one in found),
    }


def total_disk(workers: Iterable[OverviewWorker]) -> OverviewDisk | None:
    """Return the sums over the workers, in the worst of their states; ``None`` as above."""
    found = [worker["disk"] for worker in workers if worker["disk"] is not None]
    if not found:
        return None
    states = {one["state"] for one in found}
    order: tuple[Literal["paused", "scanning", "on", "off"], ...] = (
        "paused",
        "scanning",
        "on",
        "off",
    )
    return {
        "state": next(state for state in order if state in states),
        "used": sum(one["used"] for one in found),
        "budget": sum(one["budget"] for one in found),
        "blocks": sum(one["blocks"] for one in found),
    }


def rates_object(rates: Rates, *, running: int, queue_depth: int) -> OverviewRates:
    """Return the rates of now, with the numbers of jobs."""
    return {
        "tokens_per_s": _rate(rates.tokens_per_s) or 0.0,
        "prompt_tokens_per_s": _rate(rates.prompt_tokens_per_s) or 0.0,
        "running": running,
        "queue_depth": queue_depth,
        "first_token_ms": _rate(rates.first_token_ms),
        "cached_share": _share(rates.cached_share),
    }


def running_row(
    view: Job,
    row: tuple[WorkerPulse, RowFigures] | None,
    forecast: Forecast | None,
) -> RunningRow:
    """Return a running job.

    Args:
        row: Its worker and figures; ``None`` until the worker reports it.
        forecast: Its forecast, if it has one.
    """
    usage = view.usage
    figures = None if row is None else row[1]
    return {
        "job": view.id,
        "agent": view.submitted.agent,
        "model": view.answered_by or view.submitted.bound_model or view.submitted.model,
        "worker": None if row is None else row[0].worker,
        "priority": cast("_Priority", view.submitted.priority),
        "attempt": view.attempt,
        "phase": "start" if figures is None else figures.phase.value,
        "prompt_tokens": usage.prompt_tokens if figures is None else figures.prompt_tokens,
        "read_tokens": 0 if figures is None else figures.read_tokens,
        "cached_tokens": usage.cached_tokens if figures is None else figures.cached_tokens,
        "generated_tokens": 0 if figures is None else figures.generated_tokens,
        "max_tokens": None if figures is None else figures.max_tokens,
        "tokens_per_s": None if figures is None else _rate(figures.tokens_per_s),
        "eta_s": None if forecast is None else rounded(forecast.end_s),
        "cancel_requested": view.cancel_requested,
        "created_at": view.created_at,
        "started_at": view.started_at,
    }


def waiting_rows(jobs: Iterable[tuple[Job, Forecast | None]]) -> list[WaitingRow]:
    """Return the waiting jobs in the given order, in which they start."""
    agents: set[str] = set()
    rows: list[WaitingRow] = []
    for view, forecast in jobs:
        reason = (forecast and forecast.waiting_for) or WaitingFor.PLACE
        is_behind = reason is WaitingFor.PLACE and view.submitted.agent in agents
        rows.append(
            {
                "job": view.id,
                "agent": view.submitted.agent,
                "model": view.submitted.bound_model or view.submitted.model,
                "priority": cast("_Priority", view.submitted.priority),
                "position": None if forecast is None else forecast.position,
                "reason": "agent" if is_behind else reason.value,
                "eta_s": None if forecast is None else rounded(forecast.start_s),
                "attempt": view.attempt,
                "cancel_requested": view.cancel_requested,
                "created_at": view.created_at,
            }
        )
        if view.submitted.agent is not None:
            agents.add(view.submitted.agent)
    return rows


def finished_row(view: Job, diagnosis: CacheDiagnosis | None) -> FinishedRow:
    """Return a job that has ended.

    Args:
        diagnosis: What it found in the cache, once that is known.
    """
    usage, timings = view.usage, view.timings
    finished_at = view.finished_at or view.created_at
    first_ms = timings.queued_ms + timings.first_token_ms if timings.first_token_ms else None
    return {
        "job": view.id,
        "agent": view.submitted.agent,
        "model": view.answered_by or view.submitted.bound_model or view.submitted.model,
        "outcome": cast(
            "Literal['completed', 'failed', 'cancelled', 'expired']", view.status.value
        ),
        "stop_reason": view.stop_reason,
        "error": view.error,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "first_token_ms": _rate(first_ms),
        "total_ms": round(1000 * (_s(finished_at) - _s(view.created_at)), 1),
        "miss": None if diagnosis is None else _miss(diagnosis),
        "created_at": view.created_at,
        "finished_at": finished_at,
    }


def history_point(point: RatePoint) -> HistoryPoint:
    """Return one step of the history."""
    rates = point.rates
    return {
        "t": point.at_s,
        "tokens_per_s": _rate(rates.tokens_per_s),
        "prompt_tokens_per_s": _rate(rates.prompt_tokens_per_s),
        "running": _rate(rates.running),
        "queue_depth": _rate(rates.queue_depth),
        "first_token_ms": _rate(rates.first_token_ms),
        "cached_share": _share(rates.cached_share),
    }


def rows_of(pulses: Iterable[WorkerPulse]) -> Mapping[str, tuple[WorkerPulse, RowFigures]]:
    """Return the rows that the workers report, by job."""
    return {row.job: (pulse, row) for pulse in pulses for row in pulse.rows or ()}


def _miss(diagnosis: CacheDiagnosis) -> MissReason | None:
    divergence = diagnosis.divergence
    if divergence is None:
        return None
    return {
        "cause": divergence.cause.value,
        "place": divergence.place,
        "missed_tokens": diagnosis.missed_tokens,
    }


def _s(instant: str) -> float:
    return datetime.fromisoformat(instant).timestamp()


def _rate(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _share(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


#: The phase that begins with each state.
_PHASES: Final = {
    SwapState.REQUESTED: "notice",
    SwapState.DRAINING: "drain",
    SwapState.SAVING: "save",
    SwapState.RESTARTING: "restart",
    SwapState.LOADING: "load",
}


def swap_object(swap: Swap, *, names_files: bool = True) -> SwapObject:
    """Return a swap as clients see it.

    Args:
        names_files: Whether the client may see texts that can name files of this machine.
    """
    ended_at = None if swap.state.is_open else swap.times[swap.state]
    return {
        "id": swap.id,
        "object": "model.swap",
        "model": swap.model,
        "worker": swap.place or None,
        "before": swap.before,
        "state": swap.state.value,
        "reason": swap.reason,
        "why": swap.why if names_files else None,
        "drain_s": swap.drain_s,
        "losses": swap.losses,
        "created_at": swap.times[SwapState.REQUESTED],
        "ended_at": ended_at,
        "timings_ms": _timings(swap, ended_at),
    }


def _timings(swap: Swap, ended_at: str | None) -> SwapTimings:
    entered = sorted(swap.times.items(), key=lambda one: one[1])
    spans = {
        _PHASES[state]: _ms(begin, end)
        for (state, begin), (_, end) in pairwise(entered)
        if state in _PHASES
    }
    total = None if ended_at is None else _ms(swap.times[SwapState.REQUESTED], ended_at)
    return {
        "notice": spans.get("notice"),
        "drain": spans.get("drain"),
        "save": spans.get("save"),
        "restart": spans.get("restart"),
        "load": spans.get("load"),
        "total": total,
    }


def _ms(begin: str, end: str) -> float:
    passed = datetime.fromisoformat(end) - datetime.fromisoformat(begin)
    return round(passed.total_seconds() * 1000, 1)
