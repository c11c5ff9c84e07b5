"""``POST /admin/models/{name}/load``, and the swap that it starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from api.http.caller import Access
from api.http.messages import Reply, Request, StreamReply
from api.http.operation import Operation
from api.http.parameters import path, text, whole_number
from api.http.replies import json_reply
from api.http.sse import Comment, Frame, encode
from api.presenters.swaps import swap_object
from api.schemas.swaps import SwapObject
from api.services.route_services import SwapService
from domain.errors import SemanticError
from domain.model.wanted_model import (
    DRAIN_S,
    Swap,
)
from domain.not_found import SwapNotFound

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


async def load_model(request: Request, service: SwapService) -> Reply:
    """Let the workers serve a registered model; one that is loaded is loaded anew."""
    name, drain_s, worker = _NAME.read(request), _DRAIN_S.read(request), _WORKER.read(request)
    swap = await service.call(
        partial(
            service.request, name, drain_s=drain_s, worker=worker or "", correlation_id=request.id
        )
    )
    headers = {"location": f"/admin/swaps/{swap.id}", "retry-after": "1"}
    return json_reply(swap_object(swap), status=202, headers=headers)


async def get_swap(request: Request, service: SwapService) -> Reply | StreamReply:
    """Return a swap; stream its states where the client accepts a stream."""
    swap_id = _SWAP_ID.read(request)
    swap = await service.call(_read, swap_id, service)
    if _EVENT_STREAM in request.headers.get("accept", ""):
        return StreamReply(pieces=_follow(swap, request, service))
    return json_reply(swap_object(swap, names_files=request.caller.sees is None))


def _read(swap_id: str, service: SwapService) -> Swap:
    swap = service.swaps.read_all().get(swap_id)
    if swap is None:
        raise SwapNotFound(swap_id)
    return swap


async def _follow(swap: Swap, request: Request, service: SwapService) -> AsyncIterator[bytes]:
    """Yield the swap now and after each change, up to its end."""
    loop = asyncio.get_running_loop()
    shown: Swap | None = None
    ping_at_s = loop.time() + service.ping_s
    while not (request.gone.is_set() or request.ending.is_set()):
        if swap != shown:
            shown = swap
            shown_as = swap_object(swap, names_files=request.caller.sees is None)
            yield encode([Frame(event="swap", data=dict(shown_as))])
            ping_at_s = loop.time() + service.ping_s
        elif loop.time() >= ping_at_s:
            yield encode([Comment("ping")])
            ping_at_s = loop.time() + service.ping_s
        if not swap.state.is_open:
            return
        await asyncio.sleep(LOOK_S)
        try:
            swap = await service.call(_read, swap.id, service)
        except SemanticError as error:
            yield encode([Frame(event="error", data={"code": error.code, "detail": error.message})])
            return


SWAP_OPERATIONS: Final = (
    Operation(
        "POST /admin/models/{name}/load",
        load_model,
        id="loadModel",
        summary="Let the workers serve a registered model, or load the same one anew",
        parameters=(_NAME, _DRAIN_S, _WORKER),
        reply=SwapObject,
        status=202,
        access=Access.OPERATE,
    ),
    Operation(
        "GET /admin/swaps/{swap_id}",
        get_swap,
        id="getSwap",
        summary="Return a swap with its phases, or stream them as they are entered",
        parameters=(_SWAP_ID,),
        reply=SwapObject,
        is_streamed=True,
    ),
)
