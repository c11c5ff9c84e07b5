"""Compose and run a service: the body of ``semantic serve``."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console

from domain.errors import CorruptLog, LogUnavailable
from ops.data_dir.free_space import floor_of
from ops.data_dir.log_files import FILE_BYTES, LogFiles
from ops.data_dir.permissions import tighten
from ops.exit_codes import ExitCode, after_failed_start
from ops.liveness.child import resting_collector
from ops.models.backend import missing_backend
from ops.models.hub_cache import why_not_found
from ops.models.registry import choice_environment, first_model
from ops.observe.logs import Logger, add_json_lines, configure_logging, console_lines
from ops.settings.settings import Settings
from ops.supervisor.machine import LOG_NAME, log_dir_of
from ops.supervisor.output import (
    BoundedFile,
    LineStream,
    LineWriter,
    PartOutput,
    parsed,
)
from ops.supervisor.parts import (
    API,
    BROKER,
    WORKER,
    Parts,
    parts_of,
    with_json_logs,
)
from ops.supervisor.probes import base_url, claim_port
from ops.supervisor.serve_record import (
    CannotServe,
    ServeRecord,
    StartTimedOut,
    serve_lock,
    write_record,
)
from ops.supervisor.startup_banner import StartupBanner, without_password
from ops.supervisor.supervisor import Supervisor
from ops.terminal_text import visible, visible_line

_COLOURS = {BROKER: "35", WORKER: "33", API: "36"}


def serve(
    settings: Settings,
    parts_for: Callable[[Settings], Parts] = parts_of,
    *,
    is_explicit: bool = False,
) -> ExitCode:
    """Run the service in the foreground until it is stopped.

    Args:
        parts_for: Returns the processes of the service; tests pass their own.
        is_explicit: Whether the command names the model, which is a swap to it; one that is not
            found ends the start before any process begins.

    Returns:
        The exit code of the command.
    """
    try:
        _require_backend()
        if is_explicit:
            _require_files(settings)
        with serve_lock(settings.data_dir) as leftovers:
            killed = leftovers if leftovers and leftovers.has_living_parts() else None
            tighten(settings.data_dir)
            data_dir, log_file = settings.data_dir, settings.log_file
            floor_of(settings.disk, log_file=log_file, data_dir=data_dir).make_way()
            server = settings.server
            # The api of a killed service holds its port until its successor can start.
            is_held = killed and killed.base_url == base_url(server.host, server.port)
            claimed = claim_port(server.host, 0 if is_held else server.port, server=server)
            port = server.port if is_held else claimed
            resolved = settings.model_copy(
                update={
                    "data_dir": settings.data_dir.absolute(),
                    "server": server.model_copy(update={"port": port}),
                }
            )
            choice = choice_environment(is_explicit=is_explicit)
            return _run(resolved, parts_for(resolved), choice, killed)
    except (StartTimedOut, LogUnavailable, CorruptLog) as error:
        sys.stderr.write(f"semantic: {visible(str(error))}\n")
        return after_failed_start(error)
    except CannotServe as error:
        sys.stderr.write(f"semantic: {visible(str(error))}\n")
        return ExitCode.CONFIG
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        sys.stderr.write(f"semantic: the disk of {settings.data_dir} is full: {error.strerror}\n")
        return ExitCode.FAILED


def _require_backend() -> None:
    if (missing := missing_backend()) is not None:
        raise CannotServe(missing)


def _require_files(settings: Settings) -> None:
    if (reason := why_not_found(first_model(settings))) is not None:
        raise CannotServe(reason)


def _run(
    settings: Settings, parts: Parts, choice: Mapping[str, str], killed: ServeRecord | None
) -> ExitCode:
    logger = configure_logging("serve", level=settings.log.level, format=settings.log.format)
    output = _output(settings)
    banner = StartupBanner(Console())
    record = ServeRecord(
        pid=os.getpid(),
        base_url=base_url(settings.server.host, settings.server.port),
        started_at=datetime.now(UTC).isoformat(),
        parts=killed.parts if killed else {},
    )
    write_record(settings.data_dir, record)
    banner.begin(
        version=installed_version(),
        page=record.base_url,
        data_dir=settings.data_dir,
    )
    stack = ExitStack()

    async def main() -> ExitCode:
        supervisor = Supervisor(
            with_json_logs(settings),
            parts,
            record=record,
            prepare=lambda: _open_log(stack, settings, banner, logger),
            banner=banner,
            logger=logger,
            output=output,
            extra_environment=choice,
        )
        return await supervisor.run()

    try:
        with stack:
            return asyncio.run(main())
    finally:
        output.close()
        banner.stopped()


def _open_log(stack: ExitStack, settings: Settings, banner: StartupBanner, logger: Logger) -> None:
    """Sign the head of the log, now and until ``stack`` is closed, and upgrade its tables.

    The parts, which import longer than this process does, have started before.
    """
    with resting_collector():
        from ops.log.database import is_sqlite  # noqa: PLC0415 - after the start of the parts
        from ops.log.migrate import upgrade  # noqa: PLC0415 - the same
        from ops.log.sqlite_driver import sqlite_version  # noqa: PLC0415 - the same
        from ops.supervisor.checkpoint_signer import CheckpointSigner  # noqa: PLC0415 - the same

    database = f"SQLite {sqlite_version()}" if is_sqlite(settings.log_url) else "PostgreSQL"
    banner.log(without_password(settings.log_url), database)
    stack.enter_context(CheckpointSigner(settings, logger))
    upgrade(settings.log_url)


def _output(settings: Settings) -> PartOutput:
    """Return the output of the parts; the log events of this process go to the files too."""
    on_terminal, style = sys.stderr.isatty(), settings.log.format
    is_console = style == "console" or (style == "auto" and on_terminal)
    show = _console_line(coloured=on_terminal) if is_console else _as_it_is
    files = LineWriter(LogFiles(settings.logs_dir))
    add_json_lines("serve", files.put)
    terminal = LineWriter(error_stream())
    if on_terminal and sys.stdout.isatty():
        terminal.hold()  # no log line stands inside the block of the start
    return PartOutput(terminal, show, files=files)


def error_stream() -> LineStream:
    """Return stderr; where launchd made it a file, one that is emptied when it is full.

    launchd bounds no file, and a rotation needs a service that opens its file again.
    """
    try:
        opened = os.fstat(sys.stderr.fileno())
        of_launchd = (log_dir_of(Path.home()) / LOG_NAME).stat()
    except OSError:
        return sys.stderr
    if not os.path.samestat(opened, of_launchd):
        return sys.stderr
    return BoundedFile(sys.stderr, FILE_BYTES)


def _as_it_is(part: str, line: str) -> str:
    del part
    return visible_line(line)


def _console_line(*, coloured: bool) -> Callable[[str, str], str]:
    """Return what renders a line of a part for a terminal."""
    render = console_lines(coloured=coloured)
    prefixes = {
        name: f"\033[{code}m{name:<6} │\033[0m " if coloured else f"{name:<6} | "
        for name, code in _COLOURS.items()
    }

    def show(part: str, line: str) -> str:
        event = parsed(line)
        return prefixes.get(part, "") + (visible_line(line) if event is None else render(event))

    return show


def installed_version() -> str:
    """Return the version of this distribution."""
    try:
        return version("semantic")
    except PackageNotFoundError:
        return "(not installed)"
