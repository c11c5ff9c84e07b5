"""The one thread of a process that writes the log: everything that waits shares one commit.

A commit waits for the disk. While one is under way new appends gather; the next transaction takes
them all. One that is refused costs the others nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from domain.errors import LogUnavailable
from domain.log.record import RecordedEvent
from domain.ports import Clock
from ops.adapters.event_log.database import reason_of
from ops.adapters.event_log.row_codec import instant
from ops.adapters.event_log.transaction import Append, LogTransaction

#: Appends that may wait, and what their payloads may weigh together.
WAITING_APPENDS_MAX = 4096
WAITING_BYTES_MAX = 512 * 1024 * 1024
#: Appends, and bytes of payload, that share one commit.
COMMIT_APPENDS_MAX = 256
COMMIT_BYTES_MAX = 64 * 1024 * 1024
#: How long a caller waits for its turn; longer than SQLite waits for another process's lock.
TURN_WAIT_MAX_S = 30.0
#: How long a caller waits for a commit that has begun.
COMMIT_WAIT_MAX_S = 60.0
#: How long ``close`` waits for what was accepted before.
CLOSE_WAIT_MAX_S = 30.0

_log = logging.getLogger(__name__)

_Result = tuple[RecordedEvent, ...] | Exception


@dataclass(slots=True)
class _Waiting:
    request: Append
    future: Future[tuple[RecordedEvent, ...]] = field(default_factory=Future)


class LogWriter:
    """Appends from any thread.

    Args:
        engine: From ``writer_engine``; disposed of by ``close``.
        clock: Stamps the events, never earlier than the event before.
    """

    def __init__(self, engine: Engine, *, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._last_instant = ""
        self._changed = threading.Condition()
        self._inbox: deque[_Waiting] = deque()
        self._inbox_bytes = 0
        self._closed = False
        self._commits = 0
        self._thread = threading.Thread(target=self._run, name="event-log-writer", daemon=True)
        self._thread.start()

    @property
    def commits(self) -> int:
        """Transactions that this process has committed."""
        return self._commits

    def append(self, request: Append) -> tuple[RecordedEvent, ...]:
        """Wait for a turn, append and return what was recorded; see ``EventLog.append``."""
        future = self._enqueue(request)
        try:
            return future.result(TURN_WAIT_MAX_S)
        except TimeoutError as error:
            if future.cancel():
                msg = f"no turn to write within {TURN_WAIT_MAX_S:.0f} s"
                raise LogUnavailable(msg) from error
        try:
            return future.result(COMMIT_WAIT_MAX_S)
        except TimeoutError as error:
            # The disk does not answer. Appending again with the same event ids is safe either way.
            msg = f"the disk has not answered for {COMMIT_WAIT_MAX_S:.0f} s"
            raise LogUnavailable(msg) from error

    def close(self) -> None:
        """Write what was accepted, then end the thread; later appends are refused."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(CLOSE_WAIT_MAX_S)
        self._engine.dispose()

    def _enqueue(self, request: Append) -> Future[tuple[RecordedEvent, ...]]:
        waiting = _Waiting(request)
        with self._changed:
            if self._closed:
                msg = "the event log is closed"
                raise LogUnavailable(msg)
            if len(self._inbox) >= WAITING_APPENDS_MAX:
                msg = f"{WAITING_APPENDS_MAX} appends are waiting to be written already"
                raise LogUnavailable(msg)
            weight = self._inbox_bytes + request.payload_bytes
            if self._inbox and weight > WAITING_BYTES_MAX:
                msg = f"{WAITING_BYTES_MAX} bytes are waiting to be written already"
                raise LogUnavailable(msg)
            self._inbox.append(waiting)
            self._inbox_bytes = weight
            self._changed.notify_all()
        return waiting.future

    def _run(self) -> None:
        while batch := self._take():
            taken = [one for one in batch if one.future.set_running_or_notify_cancel()]
            if taken:
                self._commit(taken)

    def _take(self) -> list[_Waiting]:
        """Wait for work; nothing means that the writer is closed and has nothing left."""
        with self._changed:
            # Every append and ``close`` notify, so this wait needs no limit.
            self._changed.wait_for(lambda: self._inbox or self._closed)
            batch: list[_Waiting] = []
            weight = 0
            while self._inbox and len(batch) < COMMIT_APPENDS_MAX and weight < COMMIT_BYTES_MAX:
                one = self._inbox.popleft()
                batch.append(one)
                weight += one.request.payload_bytes
            self._inbox_bytes -= weight
            return batch

    def _commit(self, batch: list[_Waiting]) -> None:
        results = self._write([one.request for one in batch])
        for one, result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                one.future.set_exception(result)
            else:
                one.future.set_result(result)

    def _write(self, batch: list[Append]) -> list[_Result]:
        """Return what became of each append, once the commit has succeeded or failed."""
        try:
            with self._engine.begin() as connection:
                transaction = LogTransaction(connection, batch, now=self._now)
                results = [_attempt(transaction, one) for one in batch]
                transaction.write()
            self._commits += 1
        except OperationalError as error:  # full, locked, not readable: so for all of them
            _log.warning("%d appends were not written: %s", len(batch), reason_of(error))
            return [_refusal(error) for _ in batch]
        except Exception as error:  # noqa: BLE001 - the thread serves later appends whatever happens
            if len(batch) > 1:
                # One of them cannot be stored; alone, it fails alone.
                return [result for one in batch for result in self._write([one])]
            _log.warning("an append to %s was not written: %s", batch[0].stream, reason_of(error))
            return [_refusal(error)]
        return results

    def _now(self) -> str:
        self._last_instant = max(self._last_instant, instant(self._clock.now()))
        return self._last_instant


def _attempt(transaction: LogTransaction, request: Append) -> _Result:
    try:
        return transaction.append(request)
    except Exception as error:  # noqa: BLE001 - handed to the caller that it belongs to
        return error


def _refusal(error: Exception) -> Exception:
    if not isinstance(error, SQLAlchemyError):
        return error
    refusal = LogUnavailable(f"the event log cannot be written: {reason_of(error)}")
    refusal.__cause__ = error
    return refusal
