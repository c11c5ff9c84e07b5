"""The life of the api process: start, serve, drain, end.

Robyn owns the main thread and the event loop, and neither can be stopped. So the service runs as
one task in that loop, and ``os._exit`` ends the process when the task is done.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn

from api.access.access_control import AccessControl
from api.framework.request_spans import RequestSpans
from api.http.messages import Route
from api.http_server.connection import Connection
from api.http_server.limits import ServerLimits
from api.http_server.shield import RequestCounts, Shield
from api.operations import RouteTable
from ops.observe.logs import Logger
from ops.observe.span import SpanSink
from ops.settings.service import ServerSettings

LOOPBACK: Final = "127.0.0.1"
#: How long Robyn may take until it answers for the first time, in seconds.
FRAMEWORK_START_S: Final = 15.0
FRAMEWORK_POLL_S: Final = 0.01
#: How long ``on_stop`` may take, in seconds.
STOP_TIMEOUT_S: Final = 10.0
#: Descriptors per client connection: its own, one to Robyn, and that one's other end.
DESCRIPTORS_PER_CONNECTION: Final = 3
#: Descriptors for everything else: logs, databases, the broker.
DESCRIPTORS_SPARE: Final = 256
#: A shell reports this plus the signal's number for a process that a signal ended.
SIGNAL_EXIT_BASE: Final = 128

Hook = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The routes of a process, and the hooks around them.

    Attributes:
        listener: The public socket, listening; see ``api.framework.listener``.
        on_start: Awaited in the event loop before the first client is accepted.
        on_stop: Awaited after the last reply, at most ``STOP_TIMEOUT_S``.
        on_listening: Called with the public address once clients are served.
        limits: Of connections, requests and replies; the routes that take uploads are added.
        draining: Set when the drain begins.
        limit_s: Shortens the drain time where the next service waits for the end of this process.
    """

    routes: Sequence[Route]
    settings: ServerSettings
    listener: socket.socket
    on_start: Hook
    on_stop: Hook
    on_listening: Callable[[str, int], None]
    logger: Logger
    limits: ServerLimits = ServerLimits()
    draining: threading.Event = field(default_factory=threading.Event)
    counts: RequestCounts = field(default_factory=RequestCounts)
    spans: SpanSink = field(default_factory=SpanSink)
    limit_s: Callable[[float], float] = lambda seconds: seconds


def serve(service: Service) -> NoReturn:
    """Serve until SIGTERM or SIGINT; ends the process.

    The exit code is 0 after a drain, 1 where the start failed, and 128 + n where a second signal n
    cut the drain short. Call it in the main thread, once per process.
    """
    _hide_from_framework()
    from api.framework.app import build_app  # noqa: PLC0415 - importing Robyn parses sys.argv, now hidden

    _allow_descriptors(service.limits.connections_max)
    # Bound without listening, so that no other process gets the port before Robyn binds it too.
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reservation.bind((LOOPBACK, 0))
    port: int = reservation.getsockname()[1]
    life = _ApiLifecycle(service, reservation, port)
    app = build_app(service.routes, life.shield, on_startup=life.begin)
    app.start(host=LOOPBACK, port=port, _check_port=False)
    raise SystemExit(1)  # Robyn's loop ends only where it failed


class _ApiLifecycle:
    """The task that starts, drains and ends the service."""

    def __init__(self, service: Service, reservation: socket.socket, port: int) -> None:
        self._service = service
        self._logger = service.logger
        self._reservation = reservation
        self._port = port
        self.shield = self._shield()
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Start the task; Robyn accepts only after this has returned."""
        # Robyn listens already. On some kernels a second bound socket takes connections from it.
        self._reservation.close()
        self._catch_signals()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        code = 1
        try:
            await self._live()
            code = 0
        except Exception:
            self._logger.exception("api_failed")
        finally:
            _end_process(code)

    async def _live(self) -> None:
        service = self._service
        await self._framework_answers()
        # Robyn has installed its own signal handlers, which would refuse requests after the first
        # signal and never end the process. These replace them.
        self._catch_signals()
        await service.on_start()
        shield = self.shield
        if not self._stop.is_set():
            await shield.listen(service.listener, lambda: Connection(shield))
            host, port = service.listener.getsockname()[:2]
            service.on_listening(host, port)
            await self._stop.wait()
        drain_s = service.limit_s(service.settings.drain_s)
        self._logger.info("draining", drain_s=drain_s)
        await shield.drain(drain_s)
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await service.on_stop()
        self._logger.info("stopped")

    def _shield(self) -> Shield:
        service = self._service
        uploads = (route.pattern for route in service.routes if route.takes_upload)
        limits = replace(service.limits, upload_paths=frozenset(uploads))
        access = AccessControl.from_settings(
            service.settings, connections_max=limits.connections_max
        )
        shield = Shield(
            robyn=(LOOPBACK, self._port),
            unrouted=RouteTable(service.routes).unrouted,
            access=access,
            limits=limits,
            logger=self._logger,
            draining=service.draining,
            counts=service.counts,
            samples=service.spans.samples,
        )
        shield.on_finish = RequestSpans(service.spans).export
        return shield

    async def _framework_answers(self) -> None:
        async with asyncio.timeout(FRAMEWORK_START_S):
            # Robyn has no hook that is called once it listens.
            while not await _answers(LOOPBACK, self._port):  # noqa: ASYNC110 - state of Robyn
                await asyncio.sleep(FRAMEWORK_POLL_S)

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            self._logger.warning("stopped_at_once", signal=number.name)
            _end_process(SIGNAL_EXIT_BASE + number)
        self._stop.set()


async def _answers(host: str, port: int) -> bool:
    """Return whether an HTTP server answers there."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    try:
        writer.write(b"GET / HTTP/1.1\r\nhost: robyn\r\nconnection: close\r\n\r\n")
        return (await reader.readline()).startswith(b"HTTP/1.1 ")
    except OSError:
        return False
    finally:
        writer.close()


def _end_process(code: int) -> NoReturn:
    """End without waiting for Robyn's threads, which never end."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _hide_from_framework() -> None:
    """Hide the command line and Robyn's environment variables from Robyn.

    It parses ``sys.argv`` at import and again in its constructor, prints its own ``--help``, and
    lets ``ROBYN_HOST`` and ``ROBYN_PORT`` overrule its arguments.
    """
    sys.argv = sys.argv[:1]
    for name in [name for name in os.environ if name.startswith("ROBYN_")]:
        del os.environ[name]


def _allow_descriptors(connections_max: int) -> None:
    """Raise the soft limit of open files to what the connections need, within the hard limit."""
    wanted = connections_max * DESCRIPTORS_PER_CONNECTION + DESCRIPTORS_SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
