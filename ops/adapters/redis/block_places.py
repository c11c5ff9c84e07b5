"""Requests about blocks: one message to all workers, and a list for their replies.

Requests are not durable. A worker that does not answer in time is left out.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import redis

from domain.job.ports import WorkerPulses
from domain.kv.hashing import HASH_BYTES, BlockHash
from domain.kv.places import NAMES_MAX, FoundBlocks
from domain.values import WorkerId
from ops.adapters.redis.client import Keys, broker_errors

#: Longest wait for the replies of all workers, in seconds. A worker replies within milliseconds.
REPLIES_S: Final = 1.0
#: Time after which an unread reply expires, in seconds.
REPLY_TTL_S: Final = 10
#: Kind of the messages on the control channel.
KIND: Final = "blocks"
_FORGET: Final = "forget"


class HasBlocks(Protocol):
    """The blocks of one worker; safe to use from any thread."""

    def find_blocks(self, names: Sequence[BlockHash]) -> tuple[list[bool], list[bool]]:
        """Return whether memory and disk have each block."""
        ...

    def forget_blocks(self, names: Sequence[BlockHash]) -> None:
        """Delete blocks in memory and on disk."""
        ...


class RedisBlockPlaces:
    """``domain.kv.places.BlockPlaces``.

    Args:
        client: Made by ``connect``.
        keys: Key names.
        pulses: The living workers, whose replies are waited for.
        timeout_s: Longest wait, in seconds.
    """

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        pulses: WorkerPulses,
        *,
        timeout_s: float = REPLIES_S,
    ) -> None:
        self._client = client
        self._keys = keys
        self._pulses = pulses
        self._timeout_s = timeout_s

    def find(self, names: Sequence[BlockHash]) -> tuple[FoundBlocks, ...]:
        """See ``BlockPlaces.find``."""
        replies = self._ask("find", names) if names else []
        return tuple(_found(reply) for reply in replies)

    def forget(self, names: Sequence[BlockHash]) -> int:
        """See ``BlockPlaces.forget``."""
        return len(self._ask(_FORGET, names)) if names else 0

    def _ask(self, action: str, names: Sequence[BlockHash]) -> list[dict[str, Any]]:
        assert len(names) <= NAMES_MAX, "a request has a limit"  # noqa: S101 - a contract of the caller
        expected = sum(pulse.model is not None for pulse in self._pulses.alive())
        if not expected:
            return []
        name = uuid.uuid4().hex
        message = {"kind": KIND, "do": action, "reply": name, "names": b"".join(names).hex()}
        replies: list[dict[str, Any]] = []
        deadline = time.monotonic() + self._timeout_s
        with broker_errors():
            self._client.publish(self._keys.control, json.dumps(message))
            while len(replies) < expected and (left_s := deadline - time.monotonic()) > 0:
                reply: Any = self._client.blpop(
                    [self._keys.blocks_reply(name)], timeout=max(0.01, left_s)
                )
                if reply is not None:
                    replies.append(json.loads(reply[1]))
        return replies


class BlockAnswers:
    """The worker's replies to requests about its blocks.

    Args:
        client: Made by ``connect``.
        keys: Key names.
        worker: This worker.
    """

    def __init__(
        self, client: redis.Redis, keys: Keys, *, worker: WorkerId, blocks: HasBlocks
    ) -> None:
        self._client = client
        self._keys = keys
        self._worker = worker
        self._blocks = blocks

    def receive(self, message: Mapping[str, Any]) -> None:
        """Handle one message of the control channel; returns quickly.

        Raises:
            ValueError: The message cannot be parsed.
            redis.RedisError: The broker does not take the reply.
        """
        names, reply = _names(str(message["names"])), str(message["reply"])
        if message["do"] == _FORGET:
            self._blocks.forget_blocks(names)
            body: dict[str, Any] = {"worker": self._worker}
        else:
            in_memory, on_disk = self._blocks.find_blocks(names)
            body = {"worker": self._worker, "memory": _digits(in_memory), "disk": _digits(on_disk)}
        key = self._keys.blocks_reply(reply)
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.rpush(key, json.dumps(body))
            pipeline.expire(key, REPLY_TTL_S)
            pipeline.execute()


def _names(digits: str) -> list[BlockHash]:
    packed = bytes.fromhex(digits)
    if len(packed) % HASH_BYTES or len(packed) > NAMES_MAX * HASH_BYTES:
        msg = "the names of blocks cannot be parsed"
        raise ValueError(msg)
    return [BlockHash(packed[at : at + HASH_BYTES]) for at in range(0, len(packed), HASH_BYTES)]


def _digits(flags: Sequence[bool]) -> str:
    return "".join("1" if flag else "0" for flag in flags)


def _found(reply: dict[str, Any]) -> FoundBlocks:
    return FoundBlocks(
        worker=WorkerId(reply["worker"]),
        in_memory=tuple(digit == "1" for digit in reply["memory"]),
        on_disk=tuple(digit == "1" for digit in reply["disk"]),
    )
