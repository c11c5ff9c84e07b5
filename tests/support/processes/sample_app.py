"""A server whose routes show how the HTTP server behaves; runs as a process of its own.

Usage: ``python -m tests.support.processes.sample_app '{"port": 0, …}'`` with server settings as
JSON. It writes one JSON line per event to stdout: its address, and what each handler observes.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path

from api.framework.lifecycle import Service, serve
from api.framework.listener import open_listener_or_exit
from api.http.messages import Handler, Reply, Request, Route, StreamReply
from api.http_server.limits import ServerLimits
from domain.errors import EngineFailure, JobNotFound, Overloaded
from ops.observe.logs import configure_logging
from ops.settings.service import ServerSettings
from tests.support.polling import eventually, now_s, pause_task, scaled

WAIT_MAX_S = 300.0


def report(what: str, **more: object) -> None:
    sys.stdout.write(json.dumps({"what": what, "at": now_s(), **more}) + "\n")
    sys.stdout.flush()


def return_free_memory() -> None:
    """Give the system what the allocator of Linux keeps, so that the process has what it uses."""
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


async def echo(request: Request) -> Reply:
    return Reply(
        body=json.dumps(
            {
                "method": request.method,
                "path": request.path,
                "params": dict(request.params),
                "query": {name: list(values) for name, values in request.query.items()},
                "headers": dict(request.headers),
                "body": request.body.decode("latin-1"),
                "peer": request.peer,
            }
        ).encode()
    )


async def count(request: Request) -> Reply:
    return Reply(body=str(len(request.body)).encode())


async def small(request: Request) -> Reply:
    del request
    return Reply(body=b'{"ok":true}')


async def slow(request: Request) -> Reply:
    """Answers when the server drains, or records that the client has gone."""
    report("slow begun")
    gone = asyncio.ensure_future(request.gone.wait())
    ending = asyncio.ensure_future(request.ending.wait())
    seconds = float(request.query.get("s", ["60"])[0])
    await asyncio.wait({gone, ending}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    report("slow over", gone=request.gone.is_set(), ending=request.ending.is_set())
    gone.cancel()
    ending.cancel()
    return Reply(body=b'{"slow":true}')


async def held(request: Request) -> Reply:
    """Answers once the file ``until`` exists, and ignores a drain."""
    report("held begun")
    until = Path(request.query["until"][0])

    def is_over() -> bool:
        return_free_memory()
        return until.exists()

    await eventually(is_over, within_s=WAIT_MAX_S)
    report("held over", ending=request.ending.is_set())
    return Reply(body=b'{"held":true}')


async def idle(request: Request) -> StreamReply:
    """One event, then silence until the server drains."""

    async def pieces() -> AsyncIterator[bytes]:
        try:
            yield b"event: first\ndata: {}\n\n"
            await asyncio.wait_for(request.ending.wait(), scaled(WAIT_MAX_S))
            yield b"event: last\ndata: {}\n\n"
        finally:
            report("idle closed", gone=request.gone.is_set())

    return StreamReply(pieces=pieces())


async def silent(request: Request) -> StreamReply:
    """A stream without a first event."""

    async def pieces() -> AsyncIterator[bytes]:
        try:
            await asyncio.wait_for(request.ending.wait(), scaled(WAIT_MAX_S))
            yield b"event: last\ndata: {}\n\n"
        finally:
            report("silent closed", gone=request.gone.is_set())

    report("silent begun")
    return StreamReply(pieces=pieces())


async def stubborn(request: Request) -> StreamReply:
    """A stream that ignores a drain."""
    del request

    async def pieces() -> AsyncIterator[bytes]:
        yield b"event: first\ndata: {}\n\n"
        await pause_task(WAIT_MAX_S, reason="it ignores the drain")

    return StreamReply(pieces=pieces())


async def ticks(request: Request) -> StreamReply:
    """``n`` events, ``ms`` milliseconds apart."""
    count = int(request.query.get("n", ["10"])[0])
    pause_s = float(request.query.get("ms", ["1"])[0]) / 1000

    async def pieces() -> AsyncIterator[bytes]:
        for index in range(count):
            yield b'event: tick\ndata: {"n":%d,"at":%.6f}\n\n' % (index, now_s())
            await pause_task(pause_s, reason="the pace of the stream")

    return StreamReply(pieces=pieces())


async def endless(request: Request) -> StreamReply:
    """``mb`` megabytes of numbered lines, as fast as the client reads."""
    lines = int(float(request.query.get("mb", ["1000000"])[0]) * 1000)

    async def pieces() -> AsyncIterator[bytes]:
        try:
            for index in range(lines):
                yield b"%0999d\n" % index
        finally:
            report("endless closed")

    return StreamReply(pieces=pieces(), content_type="text/plain")


async def failing(request: Request) -> Reply:
    del request
    message = "a secret detail"
    raise RuntimeError(message)


async def missing(request: Request) -> Reply:
    raise JobNotFound(request.params["job_id"])


async def overloaded(request: Request) -> Reply:
    del request
    message = "the queue holds its 10 jobs"
    raise Overloaded(message, retry_after_s=7)


async def bad_header(request: Request) -> Reply:
    del request
    return Reply(headers={"x-bad": "a\r\nx-injected: b"})


async def breaks_first(request: Request) -> StreamReply:
    del request

    async def pieces() -> AsyncIterator[bytes]:
        message = "the engine failed"
        raise EngineFailure(message)
        yield b""

    return StreamReply(pieces=pieces())


async def breaks_later(request: Request) -> StreamReply:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"event: first\ndata: {}\n\n"
        message = "a secret detail"
        raise RuntimeError(message)

    content_type = request.query.get("type", ["text/event-stream"])[0]
    return StreamReply(pieces=pieces(), content_type=content_type)


def route(method: str, pattern: str, handler: Handler) -> Route:
    return Route(method=method, pattern=pattern, handler=handler)


ROUTES = (
    route("GET", "/", small),
    route("GET", "/echo", echo),
    route("POST", "/echo", echo),
    route("POST", "/count", count),
    route("GET", "/v1/jobs/{job_id}", echo),
    route("GET", "/v1/jobs/{job_id}/missing", missing),
    route("POST", "/v1/messages", echo),
    route("POST", "/v1/chat/completions", echo),
    route("GET", "/v1/models", failing),
    route("GET", "/small", small),
    route("GET", "/slow", slow),
    route("GET", "/held", held),
    route("POST", "/held", held),
    route("GET", "/idle", idle),
    route("GET", "/silent", silent),
    route("GET", "/stubborn", stubborn),
    route("GET", "/ticks", ticks),
    route("GET", "/endless", endless),
    route("GET", "/failing", failing),
    route("GET", "/overloaded", overloaded),
    route("GET", "/bad-header", bad_header),
    route("GET", "/breaks-first", breaks_first),
    route("GET", "/breaks-later", breaks_later),
)


async def start() -> None:
    report("started")


async def stop() -> None:
    report("stopped")


def main() -> None:
    # The tests that speak bytes call every host "x".
    given = {"allowed_hosts": ["x"], **json.loads(sys.argv[1])}
    names = [field.name for field in fields(ServerLimits) if field.name in given]
    limits = ServerLimits(**{name: given.pop(name) for name in names})
    settings = ServerSettings.model_validate(given)
    listener = open_listener_or_exit(settings)
    logger = configure_logging("api", level="WARNING", format="json")
    serve(
        Service(
            routes=ROUTES,
            settings=settings,
            listener=listener,
            on_start=start,
            on_stop=stop,
            on_listening=lambda host, port: report("listening", host=host, port=port),
            logger=logger,
            limits=limits,
        )
    )


if __name__ == "__main__":
    main()
