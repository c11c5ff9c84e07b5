"""Replies of ``/admin/swaps``."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12


class SwapTimings(TypedDict):
    """Milliseconds of each phase, ``null`` for those that were not entered or are not over.

    ``notice`` is the time until a worker saw the request, ``restart`` that from the last block on
    the disk to the load by a new process.
    """

    notice: float | None
    drain: float | None
    save: float | None
    restart: float | None
    load: float | None
    total: float | None


class SwapObject(TypedDict):
    """A change of the loaded model.

    ``before`` is the model that served last, to which the workers return if ``model`` cannot be
    loaded; ``why`` then has the reason, unless the key sees only what is its own. ``worker`` is the
    place of the only worker that is meant.
    """

    id: str
    object: Literal["model.swap"]
    model: str
    worker: str | None
    before: str | None
    state: Literal[
        "requested",
        "draining",
        "saving",
        "restarting",
        "loading",
        "done",
        "rolled_back",
        "superseded",
    ]
    reason: str
    why: str | None
    drain_s: float
    losses: int
    created_at: str
    ended_at: str | None
    timings_ms: SwapTimings
