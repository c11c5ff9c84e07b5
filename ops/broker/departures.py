"""Finds workers whose process has ended, long before their heartbeat is too old.

The system closes the connections of a process that ends, of one that is killed too. Those of a
worker that is only slow stay open however long it sends nothing, so it keeps its jobs. A machine
that vanishes closes nothing: its heartbeat decides, as does that of a worker never seen connected.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

import redis

from ops.broker.client import Keys, broker_errors

#: Pause between two looks, in seconds.
LOOK_FOR_DEPARTED_S: Final = 1.0
#: How long a worker must have no connection, in seconds: one whose connection broke has another.
DEPARTED_AFTER_S: Final = 2.0
#: Longest wait for the other workers after the broker was emptied, in seconds: each notices it with
#: its next pulse, and one that has no model restores nothing.
RESTORED_WITHIN_S: Final = 2.0
_POLL_S: Final = 0.05


class DepartedWorkers:
    """Lets the other workers take the jobs of those that have ended; one per worker."""

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        broker_id: str,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._keys = keys
        self._own = broker_id
        self._now_s = now_s
        self._server = ""
        self._connected: set[str] = set()
        self._absent_since_s: dict[str, float] = {}

    def look(self) -> None:
        """Expire the heartbeat of each worker that had a connection and has none for a while.

        Raises:
            QueueUnavailable: The broker cannot be reached; each worker must be seen again.
        """
        try:
            with broker_errors():
                self._look()
        except BaseException:
            self._forget()
            raise

    def restore(self, restore_own: Callable[[], None]) -> None:
        """Restore the jobs of this worker in an emptied broker, and wait for the other workers.

        Afterwards a job that no worker has recorded is lost. Until then another worker could take a
        job that is only forgotten, and its attempt would end that of a worker which lives.

        Args:
            restore_own: Records the jobs of this worker.

        Raises:
            QueueUnavailable: The broker cannot be reached.
        """
        with broker_errors():
            if self._client.sismember(self._keys.restored, self._own):
                return
            restore_own()
            self._client.sadd(self._keys.restored, self._own)
            give_up_at_s = self._now_s() + RESTORED_WITHIN_S
            while self._unrestored() and self._now_s() < give_up_at_s:
                time.sleep(_POLL_S)

    def _unrestored(self) -> set[str]:
        """Return the names of the connections of workers that have not restored their jobs."""
        known: Any = self._client.smembers(self._keys.restored)
        prefix = self._keys.connection("")
        try:
            clients: Any = self._client.client_list()
        except redis.ResponseError:
            return set()  # a server that refuses the command
        names = {str(client["name"]) for client in clients}
        connected = {name for name in names if name.startswith(prefix)}
        return connected - {self._keys.connection(worker.decode()) for worker in known}

    def _look(self) -> None:
        workers: Any = self._client.zrange(self._keys.heartbeats, 0, -1)
        known = {worker.decode() for worker in workers}
        if not known - {self._own}:
            self._forget()
            return
        server = str(self._client.info("server")["run_id"])
        if server != self._server:
            # A broker that starts has no connections yet.
            self._forget()
            self._server = server
        clients: Any = self._client.client_list()
        names = {client["name"] for client in clients}
        present = {worker for worker in known if self._keys.connection(worker) in names}
        self._connected |= present
        for worker in present:
            self._absent_since_s.pop(worker, None)
        for worker in (known & self._connected) - present - {self._own}:
            since_s = self._absent_since_s.setdefault(worker, self._now_s())
            if self._now_s() - since_s >= DEPARTED_AFTER_S:
                self._expire(worker)

    def _expire(self, worker: str) -> None:
        self._client.zadd(self._keys.heartbeats, {worker: 0}, xx=True)
        queues: Any = self._client.smembers(self._keys.queues)
        for queue in queues:
            # An idle consumer takes the jobs of the dead when it looks for messages.
            bell = self._keys.wakeup(queue.decode())
            if not self._client.llen(bell):
                self._client.rpush(bell, b"1")
        self._connected.discard(worker)
        self._absent_since_s.pop(worker, None)
        logging.getLogger(__name__).warning("worker %s has no connection any more", worker)

    def _forget(self) -> None:
        self._connected.clear()
        self._absent_since_s.clear()
