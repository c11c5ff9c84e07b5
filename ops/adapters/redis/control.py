"""Nudges to the workers, and the workers' signs of life."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import redis

from domain.job.fair_scheduler import AgentQueueState, TurnState
from domain.job.ports import WorkerPulse
from domain.values import CacheFigures, JobId, ModelCard, Priority, WorkerId
from ops.adapters.redis.client import Keys, broker_errors

#: A worker that was silent for this long is gone.
PULSE_TTL_MS = 3000
#: How long the listener waits for a nudge before it looks whether it shall stop.
LISTEN_BLOCK_S = 0.5
#: Pause after a lost connection.
RETRY_S = 0.5

# KEYS: pulses. ARGV: TTL in milliseconds, worker, pulse. The server's clock is the only one used,
# and each worker sweeps out the dead. Says whether the worker's last pulse was there.
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
return known
"""


class RedisControlSignals:
    """``domain.job.ports.ControlSignals``."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._channel = keys.control

    def nudge_cancel(self, job_id: JobId) -> None:
        """Tell whoever listens that a job's cancellation was recorded."""
        with broker_errors():
            self._client.publish(self._channel, json.dumps({"kind": "cancel", "job": job_id}))


class ControlListener:
    """A thread that hears nudges, for the worker.

    Args:
        client: Made by ``connect``.
        keys: Key names.
        on_cancel: Called with the job of each cancel nudge; must be quick.
        on_listening: Called whenever listening begins, also after a lost connection: nudges may
            have been missed until then, so look into the log for the jobs at hand.
    """

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        *,
        on_cancel: Callable[[JobId], None],
        on_listening: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._channel = keys.control
        self._on_cancel = on_cancel
        self._on_listening = on_listening
        self._stop = threading.Event()
        self._log = logging.getLogger(__name__)
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Begin to listen; if the broker is away, go on trying."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; returns within about ``LISTEN_BLOCK_S``."""
        self._stop.set()
        if self._thread.is_alive():
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
                    self._hear(message["data"])
                elif message["type"] == "subscribe":
                    self._guard(self._on_listening)

    def _hear(self, data: bytes) -> None:
        try:
            nudge = json.loads(data)
            kind, job_id = nudge["kind"], JobId(nudge["job"])
        except (ValueError, KeyError, TypeError):
            self._log.warning("a nudge that is not understood: %r", data[:200])
            return
        if kind == "cancel":
            self._guard(lambda: self._on_cancel(job_id))

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 - a foreign callback
            # One nudge that cannot be followed must not make the worker deaf to the next.
            self._log.exception("a nudge could not be followed")


class RedisWorkerPulses:
    """``domain.job.ports.WorkerPulses``: one hash, each value with its expiry."""

    def __init__(self, client: redis.Redis, keys: Keys, *, ttl_ms: int = PULSE_TTL_MS) -> None:
        self._client = client
        self._key = keys.pulses
        self._ttl_ms = ttl_ms
        self._beat: Any = client.register_script(_BEAT)

    def beat(self, pulse: WorkerPulse) -> bool:
        """Renew a worker's sign of life; tell whether the last one was still there."""
        with broker_errors():
            known = self._beat(
                keys=[self._key], args=[self._ttl_ms, pulse.worker, json.dumps(asdict(pulse))]
            )
        return bool(known)

    def alive(self) -> tuple[WorkerPulse, ...]:
        """Return the workers heard of within the TTL, by name."""
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
                found.append(_pulse(json.loads(body)))
        return tuple(sorted(found, key=lambda one: one.worker))


def _pulse(data: dict[str, Any]) -> WorkerPulse:
    # A worker of the version before does not speak of its cache, or of its turns.
    model, cache, turns = data["model"], data.get("cache"), data.get("turns")
    return WorkerPulse(
        worker=WorkerId(data["worker"]),
        pid=data["pid"],
        state=data["state"],
        model=None if model is None else ModelCard(**model),
        cache=None if cache is None else CacheFigures(**cache),
        turns=None if turns is None else _turns(turns),
    )


def _turns(data: dict[str, Any]) -> TurnState:
    lines = [{**line, "priority": Priority(line["priority"])} for line in data["lines"]]
    running = tuple(JobId(job_id) for job_id in data["running"])
    return TurnState(
        **{**data, "running": running, "lines": tuple(AgentQueueState(**line) for line in lines)}
    )
