"""``POST /admin/models/{name}/load``, and the swap that it starts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Final, Literal

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.http.messages import Access, Reply, Request, StreamReply, json_reply, shown
from api.http.operation import Operation, path, text, whole_number
from api.http.sse import Frame, Part, follow
from domain.engine.workers import ControlTopic
from domain.errors import (
    ModelNotFound,
    QueueUnavailable,
    SwapNotFound,
    WorkerNotFound,
)
from domain.model.registry import ModelKind, require_kind
from domain.model.wanted_model import (
    DRAIN_S,
    Swap,
    SwapState,
)


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


#: Longest drain, in seconds.
DRAIN_S_MAX: Final = 24 * 3600
#: Pause between two reads of a swap that is followed, in seconds.
LOOK_S: Final = 0.1
_EVENT_STREAM: Final = "text/event-stream"

_NAME: Final = path("name", example="semantic-demo")
_SWAP_ID: Final = path("swap_id", pattern=r"^swap-[0-9a-f]{32}$", example="swap-" + "0" * 32)
_DRAIN_S: Final = whole_number(
    "drain_s", "seconds that running jobs have to finish", default=int(DRAIN_S), most=DRAIN_S_MAX
)
_WORKER: Final = text(
    "worker", "id or place of the only worker that is meant; default: all workers"
)


def load_model(app: App, request: Request) -> Reply:
    """Let the workers serve a registered model, or load the same one anew.

    Raises:
        InvalidRequest: The model computes vectors; it serves beside the others.
        ModelNotFound: No model is registered by that name.
        WorkerNotFound: No living worker has that id or place.
        LogUnavailable: Nothing was written.
    """
    name, worker, registry = _NAME.read(request), _WORKER.read(request), app.registry()
    entry = registry.get(name)
    if entry is None:
        raise ModelNotFound(name, known=tuple(one.name for one in registry.entries()))
    require_kind(entry, ModelKind.CHAT)
    swap = app.swaps.request(
        entry.name,
        drain_s=_DRAIN_S.read(request),
        place=_place_of(app, worker) if worker else "",
        correlation_id=request.id,
    )
    with suppress(QueueUnavailable):  # the workers look at the log by themselves too
        app.cancellation.signals.nudge(ControlTopic.MODELS)
    headers = {"location": f"/admin/swaps/{swap.id}", "retry-after": "1"}
    return json_reply(swap_object(swap), status=202, headers=headers)


def _place_of(app: App, worker: str) -> str:
    alive = app.pulses.alive()
    for pulse in alive:
        if pulse.place and worker in {pulse.worker, pulse.place}:
            return pulse.place
    raise WorkerNotFound(worker, known=[one.place or one.worker for one in alive])


async def get_swap(app: App, request: Request) -> SwapObject | StreamReply:
    """Return a swap with its phases, or stream them as they are entered."""
    swap_id = _SWAP_ID.read(request)
    swap = await app.call(_read, swap_id, app)
    if _EVENT_STREAM in request.headers.get("accept", ""):
        return StreamReply(pieces=_follow(swap, request, app))
    return swap_object(swap, names_files=request.caller.sees is None)


def _read(swap_id: str, app: App) -> Swap:
    swap = app.swaps.read_all().get(swap_id)
    if swap is None:
        raise SwapNotFound(swap_id)
    return swap


async def _follow(swap: Swap, request: Request, app: App) -> AsyncIterator[bytes]:
    """Yield the swap now and after each change, up to its end."""
    last: list[Swap] = []

    def news(now: Swap) -> list[Part]:
        if last == [now]:
            return []
        last[:] = [now]
        seen = swap_object(now, names_files=request.caller.sees is None)
        return [Frame(event="swap", data=dict(seen))]

    read = partial(app.call, _read, swap.id, app)
    async for piece in follow(swap, read, news, request, look_s=LOOK_S, ping_s=app.ping_s):
        yield piece
        if not last[0].state.is_open:
            return


SWAP_OPERATIONS: Final = (
    Operation(
        "POST /admin/models/{name}/load",
        load_model,
        parameters=(_NAME, _DRAIN_S, _WORKER),
        reply=SwapObject,
        status=202,
        access=Access.OPERATE,
    ),
    Operation("GET /admin/swaps/{swap_id}", get_swap, parameters=(_SWAP_ID,), is_streamed=True),
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
    return shown(
        SwapObject,
        swap,
        object="model.swap",
        worker=swap.place or None,
        why=swap.why if names_files else None,
        created_at=swap.times[SwapState.REQUESTED],
        ended_at=ended_at,
        timings_ms=_timings(swap, ended_at),
    )


def _timings(swap: Swap, ended_at: str | None) -> SwapTimings:
    entered = sorted(swap.times.items(), key=lambda one: one[1])
    spans = {
        _PHASES[state]: _ms(begin, end)
        for (state, begin), (_, end) in pairwise(entered)
        if state in _PHASES
    }
    total = None if ended_at is None else _ms(swap.times[SwapState.REQUESTED], ended_at)
    return shown(SwapTimings, **(dict.fromkeys(_PHASES.values()) | spans), total=total)


def _ms(begin: str, end: str) -> float:
    passed = datetime.fromisoformat(end) - datetime.fromisoformat(begin)
    return round(passed.total_seconds() * 1000, 1)
