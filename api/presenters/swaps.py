"""Swaps as clients see them."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Final

from api.schemas.swaps import SwapObject, SwapTimings
from domain.model.wanted_model import (
    Swap,
    SwapState,
)

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
