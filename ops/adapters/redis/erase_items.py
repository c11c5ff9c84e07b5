"""Erases stream items from the broker, and from the files of the service's own broker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import redis

from domain.errors import QueueUnavailable
from domain.values import JobId
from ops.adapters.redis.client import Keys, broker_errors

#: Keys per DEL command.
KEYS_AT_ONCE: Final = 500
#: Longest wait until the append-only file is rewritten, in seconds.
REWRITE_MAX_S: Final = 60.0
_POLL_S: Final = 0.1


class RedisItemEraser:
    """Erases the items of ended jobs.

    Args:
        client: Made by ``connect``.
        keys: Key names.
        is_private: Whether the broker belongs to the service. Its append-only file is rewritten,
            since the file has the items until then. Files of another broker stay as they are.
    """

    def __init__(self, client: redis.Redis, keys: Keys, *, is_private: bool) -> None:
        self._client = client
        self._keys = keys
        self._is_private = is_private

    def erase(self, jobs: Sequence[JobId]) -> None:
        """Erase the items of jobs; returns when no file of a private broker has them.

        Raises:
            QueueUnavailable: The broker does not answer, or cannot rewrite its file.
        """
        names = [self._keys.items(job) for job in jobs]
        with broker_errors():
            for first in range(0, len(names), KEYS_AT_ONCE):
                self._client.delete(*names[first : first + KEYS_AT_ONCE])
            if names and self._is_private:
                self._rewrite_file()

    def _rewrite_file(self) -> None:
        """Rewrite the append-only file from the present data."""
        state: Any = self._client.info("persistence")
        if not state.get("aof_enabled"):
            return
        give_up_at = time.monotonic() + REWRITE_MAX_S
        is_started = False
        while True:
            state = self._client.info("persistence")
            is_idle = not (state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"])
            if is_idle and is_started:
                break
            if is_idle:
                # A rewrite that ran before may have read the items; this one begins after DEL.
                is_started = self._starts_rewrite()
            if time.monotonic() >= give_up_at:
                msg = f"the broker has not rewritten its file within {REWRITE_MAX_S:.0f} s"
                raise QueueUnavailable(msg)
            time.sleep(_POLL_S)
        if state["aof_last_bgrewrite_status"] != "ok":
            msg = "the broker cannot rewrite its append-only file; see redis.log"
            raise QueueUnavailable(msg)

    def _starts_rewrite(self) -> bool:
        """Start a rewrite; return whether it was not refused, because another one has begun."""
        try:
            self._client.bgrewriteaof()
        except redis.ResponseError:
            return False
        return True
