"""The writer thread of a process: appends that wait share one commit.

A commit waits for the disk. Meanwhile new appends queue, and the next transaction takes them all.
A refused append does not affect the others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from domain.errors import DiskFull, LogUnavailable
from domain.log.record import Append, RecordedEvent
from domain.ports import Clock
from domain.values import rfc3339
from ops.data_dir.free_space import Reserve
from ops.log.database import is_disk_full, reason_of
from ops.log.transaction import LogTransaction
from ops.observe.counter_file import Figures
from ops.observe.exposition import HistogramRecorder
from ops.observe.families import COMMIT_BOUNDS_S

#: Limits of the queue: appends, and bytes of their payloads.
WAITING_APPENDS_MAX = 4096
WAITING_BYTES_MAX = 512 * 1024 * 1024
#: Limits of one commit: appends, and bytes of their payloads.
COMMIT_APPENDS_MAX = 256
COMMIT_BYTES_MAX = 64 * 1024 * 1024
#: How long a caller waits until its append is taken from the queue; longer than SQLite waits for
#: another process's lock.
TURN_WAIT_MAX_S = 30.0
#: How long a caller waits for a commit that has begun.
COMMIT_WAIT_MAX_S = 60.0
#: How long ``close`` waits for the appends in the queue.
CLOSE_WAIT_MAX_S = 30.0
#: How long a failed commit shows that the log cannot be written, in seconds.
FAILURE_FRESH_S = 10.0

_log = logging.getLogger(__name__)

_Result = tuple[RecordedEvent, ...] | Exception


@dataclass(slots=True)
class _Waiting:
    request: Append
    future: Future[tuple[RecordedEvent, ...]] = field(default_factory=Future)


class LogWriter:
    """Appends from any thread on one connection.

    Args:
        engine: From ``writer_engine``; ``close`` disposes of it.
        clock: Stamps the events; no event is stamped earlier than the one before.
        reserve: Freed on a full disk for appends that begin no work.
    """

    def __init__(self, engine: Engine, *, clock: Clock, reserve: Reserve | None = None) -> None:
        self._engine = engine
        self._reserve = reserve
        self._clock = clock
        self._changed = threading.Condition()
        self._inbox: deque[_Waiting] = deque()
        self._inbox_bytes = 0
        self._closed = False
        self._failures = 0
        self._durations = HistogramRecorder(COMMIT_BOUNDS_S)
        #: The last failure that no commit has followed, and when it was, in seconds.
        self._failure: tuple[str, float] | None = None
        self._thread = threading.Thread(target=self._run, name="event-log-writer", daemon=True)
        self._thread.start()

    def figures(self) -> Figures:
        """Return what the writer has done so far, by metric family."""
        return {
            "log_commit_duration_seconds": self._durations.read(),
            "log_write_failures_total": {"": float(self._failures)},
            "log_waiting_appends": {"": float(len(self._inbox))},
        }

    def recent_failure(self) -> str | None:
        """Return why the last transaction was not written; ``None`` if that is long ago."""
        failure = self._failure
        if failure is None or time.monotonic() - failure[1] > FAILURE_FRESH_S:
            return None
        return f"the event log cannot be written: {failure[0]}"

    def append(self, request: Append) -> tuple[RecordedEvent, ...]:
        """Queue an append, wait for its commit and return its events; see ``EventLog.append``."""
        future = self._enqueue(request)
        try:
            return future.result(TURN_WAIT_MAX_S)
        except TimeoutError as error:
            if future.cancel():
                raise LogUnavailable(f"no turn to write within {TURN_WAIT_MAX_S:.0f} s") from error
        try:
            return future.result(COMMIT_WAIT_MAX_S)
        except TimeoutError as error:
            # The commit may still succeed; appending the same event ids again is safe either way.
            msg = f"the disk has not answered for {COMMIT_WAIT_MAX_S:.0f} s"
            raise LogUnavailable(msg) from error

    def close(self) -> None:
        """Write the queued appends, then end the thread; later appends are refused."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(CLOSE_WAIT_MAX_S)
        self._engine.dispose()

    def _enqueue(self, request: Append) -> Future[tuple[RecordedEvent, ...]]:
        waiting = _Waiting(request)
        with self._changed:
            if self._closed:
                raise LogUnavailable("the event log is closed")
            if len(self._inbox) >= WAITING_APPENDS_MAX:
                msg = f"{WAITING_APPENDS_MAX} appends are waiting to be written already"
                raise LogUnavailable(msg)
            size_bytes = self._inbox_bytes + request.payload_bytes
            if self._inbox and size_bytes > WAITING_BYTES_MAX:
                raise LogUnavailable(f"{WAITING_BYTES_MAX} bytes are waiting to be written already")
            self._inbox.append(waiting)
            self._inbox_bytes = size_bytes
            self._changed.notify_all()
        return waiting.future

    def _run(self) -> None:
        while batch := self._take():
            taken = [each for each in batch if each.future.set_running_or_notify_cancel()]
            if taken:
                self._commit(taken)

    def _take(self) -> list[_Waiting]:
        """Wait for appends; an empty list means that the writer is closed and its queue empty."""
        with self._changed:
            # Every append and ``close`` notify, so the wait needs no timeout.
            self._changed.wait_for(lambda: self._inbox or self._closed)
            batch: list[_Waiting] = []
            size_bytes = 0
            while self._inbox and len(batch) < COMMIT_APPENDS_MAX and size_bytes < COMMIT_BYTES_MAX:
                each = self._inbox.popleft()
                batch.append(each)
                size_bytes += each.request.payload_bytes
            self._inbox_bytes -= size_bytes
            return batch

    def _commit(self, batch: list[_Waiting]) -> None:
        results = self._write([each.request for each in batch])
        for each, result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                each.future.set_exception(result)
            else:
                each.future.set_result(result)

    def _write(self, batch: list[Append]) -> list[_Result]:
        """Return the result of each append, once the commit has succeeded or failed."""
        started_s = time.monotonic()
        try:
            with self._engine.begin() as connection:
                transaction = LogTransaction(
                    connection, batch, now=lambda: rfc3339(self._clock.now())
                )
                results = [_attempt(transaction, each) for each in batch]
                transaction.write()
            self._durations.record(time.monotonic() - started_s)
            self._failure = None
        except OperationalError as error:  # full, locked or unreadable: every append would fail
            if is_disk_full(error) and (ends := self._appends_for_full_disk(batch)):
                written = iter(self._write(ends))
                refusal = _refusal(error)
                return [refusal if each.begins_work else next(written) for each in batch]
            _log.warning("%d appends were not written: %s", len(batch), reason_of(error))
            self._failure = reason_of(error), time.monotonic()
            self._failures += 1
            return [_refusal(error) for _ in batch]
        except Exception as error:  # noqa: BLE001 - the thread must survive to serve later appends
            if len(batch) > 1:
                # One of them cannot be stored; in transactions of their own the others succeed.
                return [result for each in batch for result in self._write([each])]
            _log.warning("an append to %s was not written: %s", batch[0].stream, reason_of(error))
            return [_refusal(error)]
        return results

    def _appends_for_full_disk(self, batch: list[Append]) -> list[Append]:
        """Return the appends to try again: fewer than before, or with the space of the reserve."""
        ends = [each for each in batch if not each.begins_work]
        if len(ends) < len(batch):
            return ends
        if self._reserve is None or not self._reserve.release():
            return []
        _log.warning("the disk is full: the reserve is freed for the ends of running jobs")
        return ends


def _attempt(transaction: LogTransaction, request: Append) -> _Result:
    try:
        return transaction.append(request)
    except Exception as error:  # noqa: BLE001 - returned to the caller of this append
        return error


def _refusal(error: Exception) -> Exception:
    if not isinstance(error, SQLAlchemyError):
        return error
    kind = DiskFull if is_disk_full(error) else LogUnavailable
    refusal = kind(f"the event log cannot be written: {reason_of(error)}")
    refusal.__cause__ = error
    return refusal
