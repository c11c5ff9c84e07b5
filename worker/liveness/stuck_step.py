"""The step that the worker computes now, in a file; ends the process when it does not return."""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from domain.events.worker import UnfinishedStep
from domain.values import WorkerId
from ops.exit_codes import ExitCode
from ops.observe.logs import Logger
from worker.engine.engine import BatchEngine
from worker.engine.scheduling.step_watch import StepSize, StepWatch

#: State, begin (seconds since 1970), rows, tokens, kind, worker.
_FORMAT: Final = struct.Struct("<BdII16s64s")
_IDLE, _RUNNING, _STUCK = 0, 1, 2


class LastStepFile:
    """The file of one worker; a context manager.

    Each write goes to mapped memory, which the system keeps when the process dies.

    Args:
        path: E.g. ``<data_dir>/worker.step``.
    """

    def __init__(self, path: Path, worker: WorkerId) -> None:
        # Bytes are written before they are mapped: a hole in a full disk would end the process.
        path.write_bytes(bytes(_FORMAT.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _FORMAT.size)
        self._worker = worker.encode()
        self.write(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.write(None)

    def write(self, step: StepSize | None) -> None:
        """Write the step that begins, or that none runs."""
        if step is None:
            self._map[0] = _IDLE
            return
        begun = time.time()
        kind = step.kind.encode()
        _FORMAT.pack_into(self._map, 0, _RUNNING, begun, step.rows, step.tokens, kind, self._worker)

    def mark_stuck(self) -> None:
        """Write that the present step does not return."""
        self._map[0] = _STUCK


def read_last_step(path: Path, worker: WorkerId) -> UnfinishedStep | None:
    """Return the step in which a worker ended; ``None`` if it ended in no step."""
    try:
        content = path.read_bytes()
        state, begun, rows, tokens, kind, writer = _FORMAT.unpack(content)
        if state == _IDLE or writer.rstrip(b"\0").decode() != worker:
            return None
        return UnfinishedStep(
            kind=kind.rstrip(b"\0").decode(),
            rows=rows,
            tokens=tokens,
            seconds=round(max(0.0, time.time() - begun), 1),
            is_stuck=state == _STUCK,
        )
    except (OSError, struct.error, UnicodeDecodeError):
        return None


#: Seconds between two checks.
CHECK_S = 1.0
#: Seconds after which the process ends even if the ends of its attempts are not recorded.
GIVE_UP_S = 20.0


@dataclass(slots=True, eq=False)
class StuckStepGuard:
    """Checks the engine's step; a stuck one ends the process.

    The generations of the step fail as by a death of the worker; those that wait in the engine
    return to the queue without a counted failure.

    Attributes:
        file: Keeps the step for the next worker, which appends ``WorkerLost``.
        on_stuck: Ends the process once the attempts have ended.
    """

    watch: StepWatch
    engine: BatchEngine
    file: LastStepFile
    on_stuck: Callable[[], None]
    logger: Logger
    _is_stuck: bool = field(default=False, init=False)

    def check(self) -> None:
        """Check once; call every ``CHECK_S``."""
        stuck = self.watch.check(CHECK_S, crowding=crowding())
        if stuck is None or self._is_stuck:
            return
        self._is_stuck = True
        self.file.mark_stuck()
        self.logger.critical("step_stuck", why=stuck, age_s=round(self.watch.age_s))
        # The log or the broker may be what hangs.
        end = threading.Timer(GIVE_UP_S, os._exit, args=(int(ExitCode.STUCK),))
        end.daemon = True
        end.start()
        self.engine.abandon(stuck)
        self.on_stuck()


def crowding() -> float:
    """Return the threads that want to run for each processor, as an average of a minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)
