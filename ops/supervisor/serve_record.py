"""The lock and the record of the one service that a data directory may have."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ops.data_dir.lock import SERVE_LOCK, DataDirLocked, DataLock, is_served
from ops.data_dir.permissions import drop_links, make_directory, replace_file

_RECORD_NAME = "serve.json"
_POLL_S = 0.05


class CannotServe(Exception):
    """The service cannot start with these settings; the message is the one line to show."""


class StartTimedOut(CannotServe):
    """The service did not come up in time; the same start may succeed later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRecord:
    """A started part.

    Attributes:
        created: Start time of the process by the system's account; distinguishes a reused pid.
    """

    pid: int
    created: float
    restarts: int

    @classmethod
    def of(cls, pid: int, *, restarts: int) -> PartRecord:
        """Describe a process that was just started."""
        return cls(pid=pid, created=_created(pid) or 0.0, restarts=restarts)

    def is_alive(self) -> bool:
        """Return whether this very process runs."""
        return _created(self.pid) == self.created

    def signal(self, number: signal.Signals) -> None:
        """Signal this very process; one that has ended is ignored."""
        with suppress(ProcessLookupError):
            if self.is_alive():
                os.kill(self.pid, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRecord:
    """The service of a data directory, for ``semantic status``.

    Attributes:
        started_at: RFC 3339 instant.
        broker_url: Broker of the parts; ``None`` until it is known.
        model: The name of the model; ``None`` until it is loaded.
        ready: Whether every part has come up.
    """

    pid: int
    base_url: str
    started_at: str
    broker_url: str | None = None
    model: str | None = None
    ready: bool = False
    parts: dict[str, PartRecord] = field(default_factory=dict)

    def has_living_parts(self) -> bool:
        """Return whether one of the parts still runs."""
        return any(part.is_alive() for part in self.parts.values())


@contextmanager
def serve_lock(data_dir: Path) -> Iterator[ServeRecord | None]:
    """Hold a data directory for as long as this process serves it.

    The record goes at the end. That of a killed service whose parts still run stays for the next
    holder, unless this one has replaced it.

    Yields:
        The record of a service that was killed; its parts may still be ending.

    Raises:
        CannotServe: Another service holds it, or it cannot be written.
    """
    lock = DataLock(data_dir / SERVE_LOCK)
    try:
        make_directory(data_dir)
        drop_links(data_dir)
        lock.acquire()
    except DataDirLocked as error:
        holder = error.pid or "unknown"
        message = f"{data_dir} is served already, by the process with pid {holder}"
        raise CannotServe(message) from error
    except OSError as error:
        message = f"the data directory {data_dir} cannot be written: {error.strerror}"
        raise CannotServe(message) from error
    leftovers = _read(data_dir)
    try:
        yield leftovers
    finally:
        is_needed = leftovers is not None and leftovers.has_living_parts()
        if not is_needed or _read(data_dir) != leftovers:
            (data_dir / _RECORD_NAME).unlink(missing_ok=True)
        lock.release()


def write_record(data_dir: Path, record: ServeRecord) -> None:
    """Replace the record atomically."""
    replace_file(data_dir / _RECORD_NAME, json.dumps(asdict(record), indent=2) + "\n")


def read_record(data_dir: Path) -> ServeRecord | None:
    """Return the record of the running service, or ``None`` without one."""
    return _read(data_dir) if is_served(data_dir) else None  # else it is that of a dead one


def end_parts(parts: Collection[PartRecord], patience_s: float) -> None:
    """End parts of a killed service: SIGTERM, ``patience_s``, SIGKILL."""
    for part in parts:
        part.signal(signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while any(part.is_alive() for part in parts):
        if time.monotonic() >= deadline:
            for part in parts:
                part.signal(signal.SIGKILL)
        time.sleep(_POLL_S)


def _read(data_dir: Path) -> ServeRecord | None:
    try:
        values: dict[str, Any] = json.loads((data_dir / _RECORD_NAME).read_text(encoding="utf-8"))
        parts = {name: PartRecord(**part) for name, part in values.pop("parts").items()}
        return ServeRecord(**values, parts=parts)
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return None  # no record, or the record of another version


def _created(pid: int) -> float | None:
    """Return when a process began, ``None`` if it has ended."""
    import psutil  # noqa: PLC0415 - most commands ask for no process

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.NoSuchProcess:
        return None
