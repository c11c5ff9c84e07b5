"""The only module that knows the web framework: routes in, a Robyn application out.

Import it through ``api.framework.lifecycle`` only, which first hides the command line: importing
Robyn parses ``sys.argv``.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from robyn import Request as RobynRequest
from robyn import Response as RobynResponse
from robyn import Robyn
from robyn.argument_parser import Config

from api.http.messages import Route
from api.http_server.router import SECRET_HEADER

_FORBIDDEN: Final = 403

Endpoint = Callable[[RobynRequest], Awaitable[RobynResponse]]


def build_app(
    routes: Sequence[Route], *, secret: str, on_startup: Callable[[], Awaitable[None]]
) -> Robyn:
    """Build the application that ``api.http_server.router`` asks for the route of a request.

    Args:
        routes: Methods and patterns.
        secret: Required of each request, so that no other process uses the port.
        on_startup: Awaited in the loop before Robyn accepts; must neither raise nor take long.
    """
    config = Config()
    config.log_level = "WARN"
    config.disable_openapi = True
    app = Robyn(__file__, config=config)
    for number, route in enumerate(routes):
        pattern = route.pattern.replace("{", ":").replace("}", "")
        app.add_route(route.method, pattern, _endpoint(number, secret))
    app.startup_handler(on_startup)
    return app


def _endpoint(number: int, secret: str) -> Endpoint:
    async def endpoint(request: RobynRequest) -> RobynResponse:
        given = request.headers.get(SECRET_HEADER) or ""
        if not hmac.compare_digest(given.encode(), secret.encode()):
            return RobynResponse(status_code=_FORBIDDEN, headers={}, description=b"")
        answer = json.dumps({"route": number, "params": dict(request.path_params)})
        return RobynResponse(status_code=200, headers={}, description=answer)

    return endpoint
