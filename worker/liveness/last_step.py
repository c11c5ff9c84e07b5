"""The step that the worker computes now, in a file that outlives the process.

A worker that is killed, or that hangs with the interpreter lock held, can append no event. The next
worker of the data directory reads its last step here.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from domain.events.worker import UnfinishedStep
from domain.values import WorkerId
from worker.engine.scheduling.step_watch import StepSize

#: State, begin (seconds since 1970), rows, tokens, kind, worker.
_FORMAT: Final = struct.Struct("<BdII16s64s")
_IDLE, _RUNNING, _STUCK = 0, 1, 2


class LastStepFile:
    """The file of one worker; a context manager.

    Each write goes to mapped memory, which the system keeps when the process dies.

    Args:
        path: E.g. ``<data_dir>/worker.step``.
        worker: The worker that computes the steps.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
