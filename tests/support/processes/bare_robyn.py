"""Robyn without the shield, on a free port; runs as a process of its own.

Usage: ``python -m tests.support.processes.bare_robyn``. It writes the port, and then one line per
event of its handlers, to stdout.
Importing Robyn parses the command line, so nothing else imports this module.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncGenerator

from robyn import Headers, Request, Response, Robyn, StreamingResponse
from robyn.argument_parser import Config

from tests.support.polling import pause_task

WAIT_MAX_S = 600.0


def report(what: str) -> None:
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


async def echo(request: Request) -> Response:
    body = request.body
    seen = {
        "body_bytes": len(body.encode() if isinstance(body, str) else body),
        "params": dict(request.path_params),
        "query": request.query_params.to_dict(),
        "headers": request.headers.to_dict(),
    }
    return Response(200, Headers({}), json.dumps(seen).encode())


async def slow(request: Request) -> Response:
    del request
    report("slow begun")
    try:
        await pause_task(WAIT_MAX_S, reason="the handler waits for ever")
    finally:
        report("slow over")
    return Response(200, Headers({}), b"")


async def idle(request: Request) -> StreamingResponse:
    del request
    release = threading.Event()

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            yield b"event: first\n\n"
            await asyncio.to_thread(release.wait, WAIT_MAX_S)
        finally:
            report("idle closed")

    return StreamingResponse(pieces(), 200, Headers({}))


async def waiting(request: Request) -> StreamingResponse:
    del request

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"event: first\n\n"
        await pause_task(WAIT_MAX_S, reason="the handler waits for ever")

    return StreamingResponse(pieces(), 200, Headers({}))


async def fails(request: Request) -> StreamingResponse:
    del request

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"event: first\n\n"
        message = "a secret detail"
        raise RuntimeError(message)

    return StreamingResponse(pieces(), 200, Headers({}))


def main() -> None:
    config = Config()
    config.log_level = "WARN"
    config.disable_openapi = True
    app = Robyn(__file__, config=config)
    app.add_route("GET", "/echo", echo)
    app.add_route("POST", "/echo", echo)
    app.add_route("GET", "/named/:name", echo)
    app.add_route("GET", "/slow", slow)
    app.add_route("GET", "/idle", idle)
    app.add_route("GET", "/waiting", waiting)
    app.add_route("GET", "/fails", fails)
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reservation.bind(("127.0.0.1", 0))
        port: int = reservation.getsockname()[1]

        async def report_start() -> None:
            report(str(port))

        app.startup_handler(report_start)
        app.start(host="127.0.0.1", port=port, _check_port=False)
    os._exit(0)


if __name__ == "__main__":
    main()
