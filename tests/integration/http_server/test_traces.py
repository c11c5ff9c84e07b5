"""The trace of a request: the client's if it names one, and a new one otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.support.processes.sample_server import SampleServer, parse, sample_server

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADER = "x-semantic-trace"


@pytest.fixture(scope="module")
def server() -> Iterator[SampleServer]:
    with sample_server() as running:
        yield running


def test_a_reply_names_the_trace_of_its_client(server: SampleServer) -> None:
    sent = f"traceparent: 00-{TRACE_ID}-00f067aa0ba902b7-01\r\n"
    assert server.ask("GET", "/small", headers=sent).headers[HEADER] == TRACE_ID
    assert server.ask("GET", "/nothing", headers=sent).headers[HEADER] == TRACE_ID


@pytest.mark.parametrize(
    "sent", ["", "traceparent: 00-rubbish\r\n", f"traceparent: {',' * 500}\r\n"]
)
def test_a_request_without_a_trace_gets_one(server: SampleServer, sent: str) -> None:
    ids = [server.ask("GET", "/small", headers=sent).headers[HEADER] for _ in range(2)]
    assert ids[0] != ids[1]
    assert all(re.fullmatch("(?!0{32})[0-9a-f]{32}", one) for one in ids)


def test_a_reply_to_what_is_no_request_names_a_trace(server: SampleServer) -> None:
    (answer,) = parse(server.send(b"\x00rubbish\r\n\r\n"))
    assert answer.status == 400
    assert re.fullmatch("[0-9a-f]{32}", answer.headers[HEADER])
