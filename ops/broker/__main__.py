"""Run the broker until SIGTERM: ``python -m ops.broker``."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType

from domain.errors import QueueUnavailable
from ops.broker.address import forget_url, socket_path, write_url
from ops.broker.private_redis import PrivateRedis, find_server
from ops.data_dir.lock import DataDirLocked, DataLock, is_served
from ops.data_dir.permissions import create_private_files
from ops.exit_codes import ExitCode
from ops.liveness.child import (
    LIFELINE_ENV,
    ORPHAN_S,
    wait_for_activation,
    watch_lifeline,
)
from ops.observe.logs import Logger, configure_logging
from ops.settings.settings import Settings, load_part_settings


def main() -> int:
    """Run the configured broker until SIGTERM or until the broker ends; return the exit code."""
    if not wait_for_activation():
        return int(ExitCode.OK)
    create_private_files()
    settings = load_part_settings()
    log = configure_logging("broker", level=settings.log.level, format=settings.log.format)
    stop = threading.Event()
    _on_signals(stop.set)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    settings.broker_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with DataLock(settings.broker_dir / "broker.lock"):
            broker = _choose(settings, log)
            return int(ExitCode.CONFIG) if broker is None else _serve(broker, settings, stop, log)
    except PermissionError as error:
        log.error("the broker cannot run", reason=str(error))  # noqa: TRY400 - the reason is the whole message
        return int(ExitCode.CONFIG)
    except DataDirLocked as error:
        log.error("the broker cannot run", reason=error.message)  # noqa: TRY400 - the reason is the whole message
        # A supervisor has the directory, so the holder is left of a killed service and will end.
        return int(ExitCode.FAILED if LIFELINE_ENV in os.environ else ExitCode.CONFIG)
    except QueueUnavailable as error:
        log.error("the broker did not start", reason=error.message)  # noqa: TRY400 - the reason is the whole message
        return int(ExitCode.FAILED)


def _choose(settings: Settings, log: Logger) -> PrivateRedis | None:
    server = find_server()
    if server is None:
        log.error("no server for the broker: install redis-server, or set SEMANTIC_REDIS__URL")
        return None
    return PrivateRedis(server, directory=settings.broker_dir, socket=socket_path(settings))


def _serve(broker: PrivateRedis, settings: Settings, stop: threading.Event, log: Logger) -> int:
    broker.start()
    try:
        # Threads may exist from here on: the server was forked before.
        served = partial(is_served, settings.data_dir)
        watch_lifeline(stop.set, orphan_s=ORPHAN_S, has_successor=served)
        write_url(settings, broker.url)
        log.info("the broker answers", url=broker.url)
        threading.Thread(target=_wait, args=(broker, stop), daemon=True).start()
        stop.wait()
        if broker.exit_code() is not None:
            log.error("the broker ended", exit_code=broker.exit_code())
            return int(ExitCode.FAILED)
        return int(ExitCode.OK)
    finally:
        forget_url(settings)
        broker.stop()


def _wait(broker: PrivateRedis, ended: threading.Event) -> None:
    broker.wait()
    ended.set()


def _on_signals(call: Callable[[], None]) -> None:
    def stop(_number: int, _frame: FrameType | None) -> None:
        call()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # The thread that waits for the server may still block.
    os._exit(code)
