"""A port that cannot be had is told in one line."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from api.framework.listener import ListenError, open_listener
from tests.support.polling import scaled
from tests.support.processes.sample_server import ROOT, sample_server


def run_sample_app(host: str, port: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.support.processes.sample_app",
            json.dumps({"host": host, "port": port}),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(30),
        check=False,
    )


def test_port_taken_by_another_server_is_one_line_and_exit_78() -> None:
    with sample_server() as server:
        second = run_sample_app("127.0.0.1", server.port)
        assert second.returncode == 78
        assert second.stdout == ""
        lines = second.stderr.splitlines()
        assert len(lines) == 1
        assert f"127.0.0.1:{server.port}" in lines[0]
        assert "taken" in lines[0]
        assert server.is_well()


def test_address_that_is_not_ours_is_one_line_and_exit_78() -> None:
    result = run_sample_app("192.0.2.1", 0)
    assert result.returncode == 78
    assert len(result.stderr.splitlines()) == 1


def test_port_of_a_server_that_has_just_ended_is_free() -> None:
    with sample_server() as server, server.connect() as connection:
        connection.sendall(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.recv(1000)
        port = server.port
    with sample_server(port=port) as again:
        assert again.is_well()


def test_port_taken_by_a_reuseport_listener_is_noticed() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ListenError, match="taken"):
            open_listener("127.0.0.1", other.getsockname()[1])


def test_unknown_host_is_a_listen_error() -> None:
    with pytest.raises(ListenError, match=r"nowhere\.invalid:80"):
        open_listener("nowhere.invalid", 80)
