"""``python -m worker.main``: settings, signals and exit codes of the worker process."""

from __future__ import annotations

import signal
import sys

from domain.errors import CorruptLog, LogUnavailable, QueueUnavailable
from ops.adapters.data_dir.lock import DataDirLocked
from ops.adapters.data_dir.permissions import create_private_files, use_own_temporary_directory
from ops.exit_codes import ExitCode, after_failed_start, end_process
from ops.liveness.child import watch_lifeline
from ops.liveness.imports import resting_collector

#: Thread switch interval of the interpreter. The engine thread returns from native code every few
#: milliseconds and must not wait the default 5 ms while other threads format text.
SWITCH_INTERVAL_S = 0.0005


def main() -> int:
    """Run a worker until SIGTERM, SIGINT or the end of its supervisor; return the exit code."""
    with resting_collector():
        from ops.logs import configure_logging  # noqa: PLC0415 - imported in this block
        from ops.settings import load_part_settings  # noqa: PLC0415 - as above
        from worker.control.worker_drain import RestartAlone  # noqa: PLC0415 - as above
        from worker.engine.ports import ModelLoadError  # noqa: PLC0415 - as above
        from worker.process import WorkerProcess  # noqa: PLC0415 - as above

    create_private_files()
    settings = load_part_settings()
    logger = configure_logging("worker", level=settings.log.level, format=settings.log.format)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    use_own_temporary_directory(settings.data_dir)
    restart = RestartAlone()
    process = WorkerProcess(settings, logger)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.request_stop())
    is_supervised = watch_lifeline(process.request_stop)
    try:
        code = process.run()
    except DataDirLocked as error:
        logger.error("cannot_run", why=error.message)  # noqa: TRY400 - the traceback adds nothing
        # The supervisor has the directory, so the holder is left of a killed service and will end.
        return int(ExitCode.FAILED if is_supervised else ExitCode.CONFIG)
    except ModelLoadError as error:
        logger.error("cannot_run", why=error.message)  # noqa: TRY400 - as above
        return int(ExitCode.CONFIG)
    except (CorruptLog, LogUnavailable, QueueUnavailable) as error:
        logger.error("cannot_start", why=error.message)  # noqa: TRY400 - as above
        return int(after_failed_start(error))
    return restart.after(code, logger)


if __name__ == "__main__":
    end_process(main())
