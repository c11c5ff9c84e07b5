"""The server, without sockets."""

from __future__ import annotations

import asyncio

import structlog

from api.access.access_control import AccessControl
from api.http.messages import Reply, Request
from api.http_server.limits import ServerLimits
from api.http_server.router import Router
from api.http_server.server import HttpServer
from ops.setting_groups.service import ServerSettings


def test_request_that_begins_while_streams_end_is_asked_to_end() -> None:
    async def ending() -> bool:
        limits, logger = ServerLimits(), structlog.stdlib.get_logger()
        server = HttpServer(
            router=Router((), "127.0.0.1", 1, secret="s", limits=limits, logger=logger),
            unrouted=lambda method, route_path: Reply(body=f"{method} {route_path}".encode()),
            access=AccessControl.from_settings(ServerSettings(), connections_max=8),
            limits=limits,
            logger=logger,
        )
        open_request = Request(id="req_1", method="BREW", path="/x")
        await server.answer(open_request, "/x")
        server.end_streams()
        late_request = Request(id="req_2", method="BREW", path="/x")
        reply = await server.answer(late_request, "/x")
        assert isinstance(reply, Reply)
        assert reply.body == b"BREW /x"
        return open_request.ending.is_set() and late_request.ending.is_set()

    assert asyncio.run(ending())
