"""``python -m worker.main``: imports, settings, signals and exit codes of the worker process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from domain.errors import CorruptLog, LogUnavailable, QueueUnavailable
from ops.data_dir.lock import DataDirLocked, is_served
from ops.data_dir.permissions import create_private_files, use_own_temporary_directory
from ops.exit_codes import ExitCode, after_failed_start, end_process
from ops.liveness.child import (
    ORPHAN_S,
    resting_collector,
    wait_for_activation,
    watch_lifeline,
)

#: Thread switch interval of the interpreter. The engine thread returns from native code every few
#: milliseconds and must not wait the default 5 ms while other threads format text.
SWITCH_INTERVAL_S = 0.0005
#: What a worker imports before MLX, together with all libraries but MLX.
PRELOADED: Final = (
    "numpy.typing",
    "safetensors",
    "ops.log.migrate",
    "ops.log.sql_event_log",
    "ops.broker.control",
    "ops.broker.worker_requests",
    "ops.broker.address",
    "ops.observe.logs",
    "ops.settings.settings",
    "worker.actors",
    "worker.cachestore.tier",
    "worker.engine.engine",
    "worker.engine.grammar.channel_constraint",
    "worker.engine.grammar.constraints",
    "worker.engine.grammar.guidance",
    "worker.recording.cache_event_recorder",
    "worker.recording.worker_event_recorder",
)


def preload() -> None:
    """Import what a worker needs, except MLX."""
    with resting_collector():
        import_tokenizers()
        for name in PRELOADED:
            import_module(name)


def import_tokenizers() -> None:
    """Import the tokenizers of transformers, which reads the 1,600 files of its models once.

    It reads them for the names in ``transformers``, and again for those in ``transformers.models``,
    which takes 0.3 s: its cache has 128 places for 1,100 directories.
    """
    # As mlx-lm does: transformers warns on stderr that there is no PyTorch.
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    transformers = import_module("transformers")
    scans: Any = import_module("transformers.utils.import_utils")
    scan = scans.define_import_structure
    if "transformers.models" not in sys.modules:
        scans.define_import_structure = lambda _: names_of_models(transformers, scan)
    try:
        import_module("transformers.models")
    finally:
        scans.define_import_structure = scan
    import_module("transformers.models.auto.tokenization_auto")


def names_of_models(transformers: Any, scan: Callable[..., Any]) -> dict[Any, Any]:  # noqa: ANN401 - transformers ships no types
    """Return the public names of ``transformers.models``, by what they need and by module.

    Args:
        scan: Its ``define_import_structure``, which keeps the last result of the same arguments.
    """
    found = scan(Path(transformers.__file__).parent / "models", prefix="models")
    of_models = {
        needed: {
            module.removeprefix("models."): names
            for module, names in modules.items()
            if module.startswith("models.")
        }
        for needed, modules in found.items()
    }
    return {needed: modules for needed, modules in of_models.items() if modules}


def main() -> int:
    """Run a worker until SIGTERM, SIGINT or the end of its supervisor; return the exit code."""
    preload()
    if not wait_for_activation():
        return int(ExitCode.OK)
    with resting_collector():
        from ops.observe.logs import configure_logging  # noqa: PLC0415 - imported in this block
        from ops.settings.settings import load_part_settings  # noqa: PLC0415 - imported in this block
        from worker.control.worker_drain import RestartAlone  # noqa: PLC0415 - imported in this block
        from worker.engine.ports import ModelLoadError  # noqa: PLC0415 - imported in this block
        from worker.process import ProcessState, WorkerProcess  # noqa: PLC0415 - imported in this block

    create_private_files()
    settings = load_part_settings()
    logger = configure_logging("worker", level=settings.log.level, format=settings.log.format)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    use_own_temporary_directory(settings.data_dir)
    restart = RestartAlone()
    shared = ProcessState()
    process = WorkerProcess(settings, logger, shared)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.request_stop())
    shared.lifeline = watch_lifeline(
        lambda: process.request_stop(),
        orphan_s=ORPHAN_S,
        has_successor=lambda: is_served(settings.data_dir),
    )
    try:
        code = process.run()
        while (successor := process.successor(code)) is not None:
            process = successor
            code = process.run()
    except DataDirLocked as error:
        logger.error("cannot_run", why=error.message)  # noqa: TRY400 - the traceback adds nothing
        # The supervisor has the directory, so the holder is left of a killed service and will end.
        return int(ExitCode.FAILED if shared.lifeline.is_supervised else ExitCode.CONFIG)
    except ModelLoadError as error:
        logger.error("cannot_run", why=error.message)  # noqa: TRY400 - the traceback adds nothing
        return int(ExitCode.CONFIG)
    except (CorruptLog, LogUnavailable, QueueUnavailable) as error:
        logger.error("cannot_start", why=error.message)  # noqa: TRY400 - the traceback adds nothing
        return int(after_failed_start(error))
    return restart.after(code, logger)


if __name__ == "__main__":
    end_process(main())
