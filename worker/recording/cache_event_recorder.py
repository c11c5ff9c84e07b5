"""Appends cache events to the log on a thread that retries, so that no reporter waits."""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Generic, Self, TypeAlias, TypeVar

import structlog

from domain.errors import JobNotFound, SemanticError
from domain.events.cache import (
    AgentCacheRestored,
    AgentCacheSaved,
    CacheBlocksEvicted,
    CacheEvent,
)
from domain.job.commit import LoadedJob, load_job
from domain.log.codec import decode_recorded
from domain.log.ports import EventLog
from domain.log.record import Draft
from domain.ports import Clock, IdSource
from domain.values import AgentId, JobId, JobStatus, StreamName, WorkerId
from ops.blockstore.blocks import StoreEvent
from worker.cachestore.reports import ContextReport, ContextSaved, ContextStarted, miss_of
from worker.recording.worker_event_recorder import append_to_end

_Item = TypeVar("_Item")
_log = structlog.get_logger(__name__)

#: Items that may wait; more are dropped, which is logged once.
ITEMS_MAX = 4096
#: Seconds before the first retry of an item; the pause doubles each time.
RETRY_S = 0.05
RETRY_S_MAX = 5.0
#: Tries of one item; with the pauses between them, about half a minute.
TRIES_MAX = 12


class RetryLater(Exception):
    """An item cannot be handled before another event has happened."""


class RetryQueue(Generic[_Item]):
    """A bounded queue and one thread. ``put`` may be called from any thread and never blocks.

    An item is retried after ``RetryLater`` and after a ``SemanticError``, up to ``TRIES_MAX``
    times. Any other exception is a defect: it is logged, and the item is dropped.
    """

    def __init__(
        self, name: str, handle: Callable[[_Item], None], monotonic_s: Callable[[], float]
    ) -> None:
        self._handle = handle
        self._now_s = monotonic_s
        self._changed = threading.Condition()
        #: A heap of (due time, insertion order, earlier tries, item).
        self._waiting: list[tuple[float, int, int, _Item]] = []
        self._order = count()
        self._busy = False
        self._closing = False
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, item: _Item, *, after_s: float = 0.0, tries: int = 0) -> None:
        """Enqueue an item, to be handled after ``after_s`` seconds."""
        with self._changed:
            if len(self._waiting) >= ITEMS_MAX:
                self._lost += 1
                if self._lost == 1:
                    _log.warning("items_dropped", thread=self._thread.name)
                return
            due_s = self._now_s() + after_s
            heapq.heappush(self._waiting, (due_s, next(self._order), tries, item))
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until every item is handled or dropped; return whether that happened in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Handle the remaining items once more and end the thread; return whether in time."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self._next():
            pass

    def _next(self) -> bool:
        """Handle the next item that is due; return ``False`` at the end."""
        with self._changed:
            left_s = self._waiting[0][0] - self._now_s() if self._waiting else None
            if left_s is None or (left_s > 0 and not self._closing):
                if self._closing:
                    return False
                self._changed.wait(left_s)
                return True
            _, _, tries, item = heapq.heappop(self._waiting)
            self._busy = True
        again = not self._handled(item)
        if again and tries + 1 < TRIES_MAX and not self._closing:
            self.put(item, after_s=min(RETRY_S_MAX, RETRY_S * 2**tries), tries=tries + 1)
        with self._changed:
            self._busy = False
            self._changed.notify_all()
        return True

    def _handled(self, item: _Item) -> bool:
        try:
            self._handle(item)
        except RetryLater:
            return False
        except SemanticError as error:
            _log.warning("item_failed", error=error.code, why=error.message)
            return False
        except Exception:  # noqa: BLE001 - a defect in one item must not lose the others
            _log.exception("item_crashed", item=type(item).__name__)
        return True


#: Seconds of evictions that become one event.
EVICTIONS_S = 5.0
#: Seconds at the end for reports that still wait.
FINAL_FLUSH_S = 2.0
#: Agents and streams whose latest state is cached.
REMEMBERED_MAX = 1024

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class _EvictionsDue:
    """The evictions of a tier are due to be appended."""

    tier: str


_Report: TypeAlias = ContextReport | StoreEvent | _EvictionsDue


class CacheEventRecorder:
    """Appends the events of ``domain.events.cache``.

    The methods may be called from any thread and never block, except ``flush`` and the exit.

    Args:
        worker: Its stream receives the events that belong to no agent.
    """

    def __init__(self, worker: WorkerId, *, log: EventLog, ids: IdSource, clock: Clock) -> None:
        self._worker = worker
        self._log = log
        self._ids = ids
        self._run_id = ids.event_id()
        self._queue: RetryQueue[_Report] = RetryQueue("cache-events", self._write, clock.monotonic)
        self._lock = threading.Lock()
        self._evicted: dict[str, tuple[int, int]] = {}
        # Used by the thread only.
        self._versions: OrderedDict[StreamName, int] = OrderedDict()
        self._saved: OrderedDict[AgentId, AgentCacheSaved | None] = OrderedDict()

    def __enter__(self) -> Self:
        """Start the thread."""
        self._queue.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Append the reports that are left."""
        self._queue.close(FINAL_FLUSH_S)

    def record(self, report: ContextReport | StoreEvent) -> None:
        """Enqueue a report of the engine or the block store."""
        if isinstance(report, CacheBlocksEvicted):
            self.record_evicted(report.tier, report.blocks, report.size_bytes)
        else:
            self._queue.put(report)

    def record_evicted(self, tier: str, blocks: int, size_bytes: int) -> None:
        """Count evicted blocks; the evictions of ``EVICTIONS_S`` become one event."""
        with self._lock:
            before = self._evicted.get(tier)
            blocks_before, bytes_before = before or (0, 0)
            self._evicted[tier] = blocks_before + blocks, bytes_before + size_bytes
        if before is None:
            self._queue.put(_EvictionsDue(tier), after_s=EVICTIONS_S)

    def flush(self, timeout_s: float) -> bool:
        """Wait until every report is appended or dropped; return whether that happened in time."""
        return self._queue.flush(timeout_s)

    # --- the thread ------------------------------------------------------------------------

    def _write(self, report: _Report) -> None:
        match report:
            case ContextStarted():
                self._record_started(report)
            case ContextSaved():
                self._record_saved(report)
            case _EvictionsDue(tier):
                with self._lock:
                    blocks, size_bytes = self._evicted.pop(tier)
                self._append_to_worker(
                    CacheBlocksEvicted(
                        worker=self._worker, tier=tier, blocks=blocks, size_bytes=size_bytes
                    )
                )
            case _:
                self._append_to_worker(report)

    def _record_started(self, report: ContextStarted) -> None:
        job = JobId(report.label)
        loaded, agent = self._job_and_agent(job)
        if loaded is None or agent is None:
            return
        events: list[CacheEvent] = []
        if report.restored_tokens:
            events.append(
                AgentCacheRestored(
                    job=job,
                    source="disk" if report.disk_tokens else "ram",
                    tokens=report.restored_tokens,
                    disk_tokens=report.disk_tokens,
                    prompt_tokens=report.prompt_tokens,
                    took_ms=report.took_ms,
                )
            )
        miss = miss_of(report, self._last_saved(agent))
        if miss is not None:
            events.append(miss)
        self._append_agent(agent, loaded, events)

    def _record_saved(self, report: ContextSaved) -> None:
        """Append the manifest of an ended job; its blocks are on disk already."""
        job, manifest = JobId(report.label), report.manifest
        loaded, agent = self._job_and_agent(job)
        if loaded is None or agent is None or not manifest.hashes:
            return
        if not loaded.job.status.is_terminal:
            raise RetryLater
        if loaded.job.status not in {JobStatus.COMPLETED, JobStatus.CANCELLED}:
            return
        saved = AgentCacheSaved(
            job=job,
            fingerprint=manifest.fingerprint,
            blocks=tuple(name.hex() for name in manifest.blocks),
            tail=manifest.tail.hex() if manifest.tail else None,
            checkpoints=tuple(name.hex() for name in manifest.checkpoints),
            tokens=report.tokens,
        )
        self._append_agent(agent, loaded, [saved])
        _remember(self._saved, agent, saved)

    def _job_and_agent(self, job: JobId) -> tuple[LoadedJob | None, AgentId | None]:
        try:
            loaded = load_job(job, log=self._log)
        except JobNotFound:
            return None, None
        return loaded, loaded.job.submitted.agent

    def _last_saved(self, agent: AgentId) -> AgentCacheSaved | None:
        if agent not in self._saved:
            last_saved: AgentCacheSaved | None = None
            recorded = self._log.load(_stream_of(agent))
            for entry in recorded:
                if entry.type == AgentCacheSaved.__name__:
                    event = decode_recorded(entry)
                    assert isinstance(event, AgentCacheSaved)
                    last_saved = event
            # The last version, not the count, because old events are archived.
            _remember(self._versions, _stream_of(agent), recorded[-1].version if recorded else 0)
            _remember(self._saved, agent, last_saved)
        return self._saved[agent]

    def _append_agent(
        self, agent: AgentId, loaded: LoadedJob, events: Sequence[CacheEvent]
    ) -> None:
        drafts = [
            Draft(
                event_id=self._ids.event_id(),
                event=event,
                correlation_id=loaded.job.correlation_id,
                causation_id=loaded.recorded[-1].event_id,
            )
            for event in events
        ]
        self._append(_stream_of(agent), drafts)

    def _append_to_worker(self, event: CacheEvent) -> None:
        draft = Draft(event_id=self._ids.event_id(), event=event, correlation_id=self._run_id)
        self._append(StreamName(self._worker), [draft])

    def _append(self, stream: StreamName, drafts: list[Draft]) -> None:
        """Append at the current version of the stream; other writers append to it too."""
        if drafts:
            known = self._versions.get(stream, 0)
            version = append_to_end(stream, drafts, log=self._log, known=known)
            _remember(self._versions, stream, version)


def _remember(latest: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> None:
    latest[key] = value
    latest.move_to_end(key)
    if len(latest) > REMEMBERED_MAX:
        latest.popitem(last=False)


def _stream_of(agent: AgentId) -> StreamName:
    return StreamName(f"agent-{agent}")
