"""The only module that knows the web framework: routes in, a Robyn application out.

Import it through ``api.framework.lifecycle`` only, which first hides the command line: importing
Robyn parses ``sys.argv``.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Final, cast
from urllib.parse import unquote, unquote_plus, unquote_to_bytes

from robyn import Headers, Robyn, StreamingResponse
from robyn import Request as RobynRequest
from robyn import Response as RobynResponse
from robyn.argument_parser import Config

from api.framework.answer import Answer, Answering
from api.http.messages import Handler, Reply, Request, Route
from api.http_server.exchange import Exchange
from api.http_server.request import BODY_MARK, ENCODED_HEADER, EXCHANGE_HEADER
from api.http_server.shield import ROUTED_METHODS, Shield

_FORBIDDEN: Final = 403
#: Threads on which all of Robyn's workers of a machine with this many cores wait for streams, each
#: worker with as many as this divided by the cores.
_WAITING_THREADS: Final = 512
_REST: Final = "/*rest"

Endpoint = Callable[[RobynRequest], Awaitable[RobynResponse | StreamingResponse]]


def build_app(
    routes: Sequence[Route], shield: Shield, *, on_startup: Callable[[], Awaitable[None]]
) -> Robyn:
    """Build the application that serves the routes behind the shield.

    Args:
        routes: Methods, patterns and handlers; HEAD is answered wherever GET is.
        on_startup: Awaited in the loop before Robyn accepts; must neither raise nor take long.
    """
    config = Config()
    config.log_level = "WARN"
    config.disable_openapi = True
    config.workers = _workers(shield.limits.connections_max)
    app = Robyn(__file__, config=config)
    answering = Answering(shield)
    served = set()
    for route in routes:
        # Robyn reads a colon as the beginning of a parameter; the shield encodes those of paths.
        pattern = route.pattern.replace(":", "%3A").replace("{", ":").replace("}", "")
        endpoint = _endpoint(shield, answering, route.handler, route.pattern)
        methods = ("GET", "HEAD") if route.method == "GET" else (route.method,)
        for method in methods:
            app.add_route(method, pattern, endpoint)
            served.add((method, pattern))
    # Robyn's own replies to what has no route know neither 405 nor the dialect of the client.
    unrouted = _endpoint(shield, answering, _unrouted(shield), None)
    for method in sorted(ROUTED_METHODS):
        app.add_route(method, _REST, unrouted)
        if (method, "/") not in served:
            app.add_route(method, "/", unrouted)
    app.startup_handler(on_startup)
    return app


def _workers(connections_max: int) -> int:
    """Return as many workers as let each connection have a stream, which occupies a thread."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads_each = max(1, _WAITING_THREADS // (cores or 1))
    return -(-connections_max // threads_each)


def _unrouted(shield: Shield) -> Handler:
    async def unrouted(request: Request) -> Reply:
        return shield.unrouted_reply(request.method, request.params["route_path"])

    return unrouted


def _endpoint(
    shield: Shield, answering: Answering, handler: Handler, pattern: str | None
) -> Endpoint:
    async def endpoint(request: RobynRequest) -> RobynResponse | StreamingResponse:
        exchange = shield.find(request.headers.get(EXCHANGE_HEADER) or "")
        if exchange is None:
            return RobynResponse(status_code=_FORBIDDEN, headers=Headers({}), description=b"")
        read = _read(request, exchange, has_route=pattern is not None)
        return _response(await answering.answer(read, exchange, handler, pattern=pattern))

    return endpoint


def _read(request: RobynRequest, exchange: Exchange, *, has_route: bool) -> Request:
    """Return the request as handlers know it; Robyn decodes nothing."""
    params: Mapping[str, str] = {"route_path": request.url.path}
    if has_route:
        params = {name: unquote(value) for name, value in dict(request.path_params).items()}
    return Request(
        id=exchange.request_id,
        trace=exchange.trace,
        method=request.method,
        path=exchange.path,
        params=params,
        query={
            unquote_plus(name): [unquote_plus(value) for value in values]
            for name, values in request.query_params.to_dict().items()
        },
        headers=_headers(request.headers.to_dict()),
        body=_body(request),
        peer=exchange.peer,
        caller=exchange.caller,
        gone=exchange.gone,
        ending=exchange.ending,
    )


def _body(request: RobynRequest) -> bytes:
    """Return the body, and drop the copy that Robyn's request holds."""
    body = request.body
    request.body = b""
    return body.removesuffix(BODY_MARK) if isinstance(body, bytes) else b""


def _headers(headers: dict[str, str]) -> Mapping[str, str]:
    del headers[EXCHANGE_HEADER]
    for name in headers.pop(ENCODED_HEADER, "").split(","):
        if name in headers:
            headers[name] = unquote_to_bytes(headers[name]).decode("latin-1")
    return headers


def _response(answer: Answer) -> RobynResponse | StreamingResponse:
    headers = Headers(dict(answer.headers))
    if isinstance(answer.body, bytes):
        return RobynResponse(answer.status, headers, answer.body)
    # Robyn takes any iterator; its stub asks for a generator.
    body = cast("Generator[bytes, None, None]", answer.body)
    return StreamingResponse(body, answer.status, headers, media_type="")
