"""Exit codes of the command line and of the service's processes.

Scripts and service managers read them: they are stable.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NoReturn

from domain.errors import CorruptLog, LogNewer


class ExitCode(IntEnum):
    """Exit code of a process; numbers from 64 on follow ``sysexits.h``."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_RUNNING = 3
    #: The same number: the request cannot be fulfilled with the present model or data.
    REFUSED = 3
    #: Of the service and its processes: the event log does not verify.
    DAMAGED = 65
    CRASHED = 70
    #: Of the worker process: the supervisor starts it again without a pause.
    DEVICE_FAILED = 75
    #: Of the worker process: it ends to start again with the model that the log names.
    SWAPPED = 76
    #: Of the worker process: it could not load its model, and the log names another one now.
    LOAD_FAILED = 77
    CONFIG = 78
    #: Of the worker process: it ends to give back the memory of a model that is not used.
    IDLE = 79
    #: Of the worker process: a step of the engine did not return.
    STUCK = 80
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "the answer is no: a check, a job or a request failed",
    ExitCode.USAGE: "the command line is wrong",
    ExitCode.NOT_RUNNING: "no service answers here, or an answer cannot be replayed",
    ExitCode.DAMAGED: "the event log is damaged: restore a backup",
    ExitCode.CRASHED: "a part crashed again and again",
    ExitCode.DEVICE_FAILED: "the GPU failed: start the worker again",
    ExitCode.SWAPPED: "start the worker again, with another model",
    ExitCode.LOAD_FAILED: "the model cannot be loaded: start the worker again, with another one",
    ExitCode.IDLE: "start the worker again, without a model",
    ExitCode.STUCK: "a step did not return: start the worker again",
    ExitCode.CONFIG: "a setting cannot work: port taken, bad model, data directory in use, log "
    "of a newer version",
    ExitCode.INTERRUPTED: "stopped by Ctrl-C",
}


#: Exit codes of a start that fails again each time; the reasons, for the log.
FINAL: Final[Mapping[int, str]] = MappingProxyType(
    {
        ExitCode.DAMAGED: "the event log is damaged",
        ExitCode.CONFIG: "its settings cannot work",
    }
)


def after_failed_start(error: Exception) -> ExitCode:
    """Return the exit code of a process that an error keeps from starting."""
    if isinstance(error, CorruptLog):
        return ExitCode.DAMAGED
    return ExitCode.CONFIG if isinstance(error, LogNewer) else ExitCode.FAILED


def end_process(code: int) -> NoReturn:
    """End a process whose files and threads are closed, without the interpreter's own teardown.

    With the libraries of a model loaded the teardown takes a second of computing, for which a swap
    would wait.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
