"""Is the public address free?"""

from __future__ import annotations

import socket

import pytest

from ops.supervisor.probes import base_url, claim_port
from ops.supervisor.serve_record import CannotServe


def test_port_0_gives_a_free_one() -> None:
    port = claim_port("127.0.0.1", 0)
    assert claim_port("127.0.0.1", port) == port


@pytest.mark.parametrize("holder", ["127.0.0.1", "0.0.0.0"])
def test_taken_port_is_told(holder: str) -> None:
    with socket.create_server((holder, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(CannotServe, match=rf"port {port} .* is taken"):
            claim_port("127.0.0.1", port)


def test_address_of_another_machine_is_told() -> None:
    with pytest.raises(CannotServe, match=r"192\.0\.2\.1:8000 is no address to listen on"):
        claim_port("192.0.2.1", 8000)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::1", "http://[::1]:1"),
        ("::", "http://[::1]:1"),
        ("localhost", "http://localhost:1"),
    ],
)
def test_url_is_one_that_this_machine_can_use(host: str, url: str) -> None:
    assert base_url(host, 1) == url
