"""The only module that knows the web framework: routes in, a Robyn application out.

Import it through ``api.lifecycle`` only, which first hides the command line: importing Robyn parses
``sys.argv``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import unquote

from robyn import Request as RobynRequest
from robyn import Response as RobynResponse
from robyn import Robyn
from robyn.argument_parser import Config

from api.errors import error_reply
from api.http.messages import Dialect, Reply, Route, StreamReply
from api.http_server.errors import internal_error
from api.http_server.exchange import Exchange, Exchanges
from api.http_server.upstream import EXCHANGE_HEADER, SECRET_HEADER
from domain.errors import SemanticError
from ops.logs import Logger

_HANDLED: Final = 204
_FOREIGN: Final = 403

Endpoint = Callable[[RobynRequest], Awaitable[RobynResponse]]


def build_app(
    routes: Sequence[Route],
    *,
    exchanges: Exchanges,
    on_startup: Callable[[], Awaitable[None]],
    logger: Logger,
) -> Robyn:
    """Build the application that routes for the gate.

    Args:
        routes: Methods, patterns and handlers.
        exchanges: Where handlers find the request and leave the answer.
        on_startup: Awaited in the loop before Robyn accepts; must neither raise nor take long.
        logger: Told of handlers that fail.
    """
    config = Config()
    config.log_level = "WARN"
    config.disable_openapi = True
    app = Robyn(__file__, config=config)
    for route in routes:
        pattern = route.pattern.replace("{", ":").replace("}", "")
        app.add_route(route.method, pattern, _endpoint(route, exchanges, logger))
    app.startup_handler(on_startup)
    return app


def _endpoint(route: Route, exchanges: Exchanges, logger: Logger) -> Endpoint:
    async def endpoint(request: RobynRequest) -> RobynResponse:
        exchange = exchanges.claim(
            request.headers.get(EXCHANGE_HEADER), request.headers.get(SECRET_HEADER)
        )
        if exchange is None:
            return RobynResponse(status_code=_FOREIGN, headers={}, description=b"")
        # Answered whatever happens: a gate that waits for an answer has no time limit.
        reply: Reply | StreamReply = _error(internal_error(), route, exchange)
        try:
            reply = await _handle(route, exchange, dict(request.path_params), logger)
        finally:
            exchange.answer(reply)
        return RobynResponse(status_code=_HANDLED, headers={}, description=b"")

    return endpoint


async def _handle(
    route: Route, exchange: Exchange, raw_params: dict[str, str], logger: Logger
) -> Reply | StreamReply:
    params = {name: unquote(value) for name, value in raw_params.items()}
    try:
        return await route.handler(replace(exchange.request, params=params))
    except SemanticError as error:
        return _error(error, route, exchange)
    except Exception:
        logger.exception("handler_failed", request_id=exchange.request.id, path=exchange.route_path)
        return _error(internal_error(), route, exchange)


def _error(error: SemanticError, route: Route, exchange: Exchange) -> Reply:
    # Routes that two dialects share are told apart by the request; on the others both agree.
    dialect = route.dialect if exchange.dialect is Dialect.NATIVE else exchange.dialect
    return error_reply(error, dialect, exchange.request.id)
