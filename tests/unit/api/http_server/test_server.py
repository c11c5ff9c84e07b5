"""The shield, without sockets."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from api.access.access_control import AccessControl
from api.http.messages import Reply
from api.http_server.limits import ServerLimits
from api.http_server.request import read_target
from api.http_server.shield import Shield
from domain.errors import Draining
from ops.settings.service import ServerSettings


def shield() -> Shield:
    return Shield(
        robyn=("127.0.0.1", 1),
        unrouted=lambda method, route_path: Reply(body=f"{method} {route_path}".encode()),
        access=AccessControl.from_settings(ServerSettings(), connections_max=8),
        limits=ServerLimits(),
        logger=structlog.stdlib.get_logger(),
    )


def test_request_that_begins_while_streams_end_is_asked_to_end() -> None:
    front = shield()
    open_one, late_one = front.begin("192.0.2.1"), front.begin("192.0.2.1")
    front.hand_out(open_one)
    front.end_streams()
    front.hand_out(late_one)
    assert open_one.ending.is_set()
    assert late_one.ending.is_set()


def test_handler_finds_an_exchange_once_and_only_while_it_lasts() -> None:
    async def scenario() -> None:
        front = shield()
        exchange = front.begin("192.0.2.1")
        name = front.hand_out(exchange)
        assert front.find("") is None
        assert front.find(name.rpartition("-")[2]) is None
        assert front.find(name) is exchange
        exchange.handling = asyncio.current_task()
        assert front.find(name) is None
        left = front.begin("192.0.2.1")
        name = front.hand_out(left)
        front.finish(left, 499)
        assert front.find(name) is None

    asyncio.run(scenario())


@pytest.mark.parametrize("method", ["TRACE", "BREW"])
def test_method_that_robyn_cannot_route_is_answered_before_it(method: str) -> None:
    front = shield()
    reply = front.unrouted(method, read_target("/x"))
    assert reply is not None
    assert reply.body == f"{method} /x".encode()
    assert front.unrouted("GET", read_target("/x")) is None
    assert front.unrouted("OPTIONS", read_target("*")) is not None


def test_drain_refuses_all_but_the_health_of_the_service() -> None:
    async def scenario() -> None:
        front = shield()
        await front.drain(0)
        front.check_serving("/health/live")
        with pytest.raises(Draining):
            front.check_serving("/v1/messages")
        with pytest.raises(Draining):
            front.unrouted("BREW", read_target("/x"))

    asyncio.run(scenario())
