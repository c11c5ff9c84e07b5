"""Notifications to the workers, and the workers' heartbeats."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import redis

from domain.engine.workers import ControlTopic, PulseReply, WorkerPulse
from domain.log.codec import record_from_json
from domain.values import JobId
from ops.broker.client import Keys, broker_errors
from ops.broker.worker_requests import KIND as BLOCKS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: A worker without a heartbeat for this long counts as gone.
PULSE_TTL_MS = 3000
#: How long the workers report their rows after an overview was read.
WATCH_TTL_MS = 5000
#: How long the listener waits for a notification before it checks whether to stop, which wakes it.
LISTEN_BLOCK_S = 3.0
#: Pause after a lost connection.
RETRY_S = 0.5
_CANCEL = "cancel"
#: Wakes the thread of a listener that stops; the others ignore it.
_STOPPED = "stopped"

# KEYS: pulses, watched. ARGV: TTL in milliseconds, worker, pulse. Only the server's clock counts.
# Each heartbeat deletes the expired ones. Returns whether the worker's last heartbeat was present,
# and whether an overview is watched.
_BEAT = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if tonumber(string.match(all[i + 1], '^%d+')) < now then redis.call('HDEL', KEYS[1], all[i]) end
end
local known = redis.call('HEXISTS', KEYS[1], ARGV[2])
local until_ms = string.format('%.0f', now + ARGV[1])
redis.call('HSET', KEYS[1], ARGV[2], until_ms .. ' ' .. ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return {known, redis.call('EXISTS', KEYS[2])}
"""


class RedisControlSignals:
    """``domain.job.ports.ControlSignals``."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._channel = keys.control

    def nudge_cancel(self, job_id: JobId) -> None:
        """Notify the workers that a job's cancellation is recorded."""
        with broker_errors():
            self._client.publish(self._channel, json.dumps({"kind": _CANCEL, "job": job_id}))

    def nudge(self, topic: ControlTopic) -> None:
        """Notify the workers that a part of the log that they follow has changed."""
        with broker_errors():
            self._client.publish(self._channel, json.dumps({"kind": topic.value}))


class ControlListener:
    """The worker's thread that receives notifications. A context manager.

    Args:
        on_cancel: Called with the job of each cancellation; must return quickly.
        on_listening: Called after each subscription, also after a lost connection. Notifications
            may have been missed before, so the worker checks its running jobs in the log.
        on_topic: Called for the notifications of a topic; must return quickly.
        on_blocks: Called with each request about blocks; must return quickly.
    """

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        *,
        on_cancel: Callable[[JobId], None],
        on_listening: Callable[[], None] = lambda: None,
        on_topic: Mapping[ControlTopic, Callable[[], None]] = MappingProxyType({}),
        on_blocks: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._channel = keys.control
        self._on_cancel = on_cancel
        self._on_listening = on_listening
        self._on_topic = on_topic
        self._on_blocks = on_blocks
        self._stop = threading.Event()
        self._log = logging.getLogger(__name__)
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def __enter__(self) -> Self:
        """Start listening; retry while the broker is unavailable."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop listening."""
        self._stop.set()
        if self._thread.is_alive():
            with suppress(redis.RedisError, OSError):  # then it ends within ``LISTEN_BLOCK_S``
                self._client.publish(self._channel, json.dumps({"kind": _STOPPED}))
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._listen()
            except (redis.RedisError, OSError) as error:
                self._log.warning("lost the control channel, trying again: %s", error)
                self._stop.wait(RETRY_S)

    def _listen(self) -> None:
        with self._client.pubsub() as subscription:  # type: ignore[no-untyped-call]  # in redis
            subscription.subscribe(self._channel)
            while not self._stop.is_set():
                message: Any = subscription.get_message(timeout=LISTEN_BLOCK_S)
                if message is None:
                    continue
                if message["type"] == "message":
                    self._receive(message["data"])
                elif message["type"] == "subscribe":
                    self._guard(self._on_listening)

    def _receive(self, data: bytes) -> None:
        try:
            notification = json.loads(data)
            kind = notification["kind"]
            job_id = JobId(notification["job"]) if kind == _CANCEL else None
            on_topic = self._on_topic.get(kind)
        except (ValueError, KeyError, TypeError):
            self._log.warning("ignored a notification that cannot be parsed: %r", data[:200])
            return
        if job_id is not None:
            self._guard(lambda: self._on_cancel(job_id))
        elif kind == BLOCKS:
            self._guard(lambda: self._on_blocks(notification))
        elif on_topic is not None:
            self._guard(on_topic)

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 - a foreign callback
            # The thread must survive to receive later notifications.
            self._log.exception("a notification failed")


class RedisWorkerPulses:
    """``domain.job.ports.WorkerPulses``: one hash, each value with its expiry."""

    def __init__(self, client: redis.Redis, keys: Keys, *, ttl_ms: int = PULSE_TTL_MS) -> None:
        self._client = client
        self._key = keys.pulses
        self._watched = keys.watched
        self._ttl_ms = ttl_ms
        self._beat: Any = client.register_script(_BEAT)

    def beat(self, pulse: WorkerPulse) -> PulseReply:
        """Renew a worker's heartbeat."""
        with broker_errors():
            was_known, is_watched = self._beat(
                keys=[self._key, self._watched],
                args=[self._ttl_ms, pulse.worker, json.dumps(pulse, default=_as_object)],
            )
        return PulseReply(was_known=bool(was_known), is_watched=bool(is_watched))

    def watch(self) -> None:
        """Ask the workers for their rows, for ``WATCH_TTL_MS``."""
        with broker_errors():
            self._client.set(self._watched, 1, px=WATCH_TTL_MS)

    def alive(self) -> tuple[WorkerPulse, ...]:
        """Return the workers with a heartbeat within the TTL, by name."""
        with broker_errors():
            pipeline = self._client.pipeline(transaction=False)
            pipeline.time()
            pipeline.hgetall(self._key)
            (seconds, microseconds), pulses = pipeline.execute()
        now_ms = seconds * 1000 + microseconds // 1000
        found: list[WorkerPulse] = []
        for value in pulses.values():
            until_ms, _, body = value.partition(b" ")
            if int(until_ms) >= now_ms:
                found.append(record_from_json(WorkerPulse, json.loads(body)))
        return tuple(sorted(found, key=lambda one: one.worker))


def _as_object(figures: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a dataclass; ``asdict`` would copy each figure of each pulse."""
    return {one.name: getattr(figures, one.name) for one in fields(figures)}
