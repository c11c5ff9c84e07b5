"""Requests to workers: a message or a list, and a list for the replies."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final, Protocol, Self

import redis

from domain.chat.request import ChatRequest
from domain.engine.workers import WorkerPulses
from domain.errors import EngineFailure, InvalidRequest, ModelNotReady, Overloaded
from domain.job.prepare_prompt import PromptTokens, TokenCounter
from domain.kv.hashing import HASH_BYTES, BlockHash
from domain.kv.places import NAMES_MAX, FoundBlocks
from domain.values import WorkerId
from ops.broker.client import BLOCK_MAX_S, Keys, broker_errors, release_blocked

#: How long a request waits for its reply. A worker counts 20,000 tokens in about 50 ms.
REPLY_TIMEOUT_S = 20.0
#: Most waiting requests, in the list and in each api; Claude Code sends 28 at once.
WAITING_MAX = 256
#: Pause after a lost connection.
RETRY_S = 0.5

#: What a request for the tokens of a prompt wants: their number, or the ids.
_COUNT: Final = b"count"
_READ: Final = b"read"

# KEYS: requests. ARGV: most waiting requests, TTL in seconds, request.
_SEND = """
if redis.call('LLEN', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call('RPUSH', KEYS[1], ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""


def _send_reply(client: redis.Redis, key: str, body: dict[str, Any], *, ttl_s: int) -> None:
    with client.pipeline(transaction=True) as pipeline:
        pipeline.rpush(key, json.dumps(body))
        pipeline.expire(key, ttl_s)
        pipeline.execute()


def _replies(client: redis.Redis, key: str, timeout_s: float) -> Iterator[dict[str, Any]]:
    """Yield the replies that come within a time."""
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        reply: Any = client.blpop([key], timeout=max(0.01, min(BLOCK_MAX_S, left_s)))
        if reply is not None:
            yield json.loads(reply[1])


class RedisTokenCounter:
    """``domain.job.prepare_prompt.TokenCounter``: a request to the worker."""

    def __init__(
        self, client: redis.Redis, keys: Keys, *, timeout_s: float = REPLY_TIMEOUT_S
    ) -> None:
        self._client = client
        self._keys = keys
        self._timeout_s = timeout_s
        self._send: Any = client.register_script(_SEND)

    def count(self, request: ChatRequest) -> int:
        """Return the length of a prompt; waits for a worker."""
        return int(self._ask(_COUNT, request)["tokens"])

    def read(self, request: ChatRequest) -> PromptTokens:
        """Return the tokens of a prompt; waits for a worker."""
        reply = self._ask(_READ, request)
        return PromptTokens(tuple(reply["ids"]), reply["text"])

    def _ask(self, action: bytes, request: ChatRequest) -> dict[str, Any]:
        name = uuid.uuid4().hex
        message = b" ".join((name.encode(), action, request.to_bytes()))
        with broker_errors():
            limits = [WAITING_MAX, int(self._timeout_s) + 1]
            is_queued = self._send(keys=[self._keys.token_requests], args=[*limits, message])
        if not is_queued:
            raise Overloaded("too many prompts wait to be counted")
        return self._wait(name)

    def _wait(self, name: str) -> dict[str, Any]:
        with broker_errors():
            for reply in _replies(self._client, self._keys.token_reply(name), self._timeout_s):
                return _checked(reply)
        raise ModelNotReady("no worker with a loaded model has counted the prompt in time")


def _checked(reply: dict[str, Any]) -> dict[str, Any]:
    if "refused" in reply:
        raise InvalidRequest(reply["refused"], field=reply["field"])
    if not reply:
        raise EngineFailure("the prompt could not be counted")
    return reply


def counts_wait(client: redis.Redis, keys: Keys) -> bool:
    """Return whether requests for a token count wait for a worker."""
    with broker_errors():
        return bool(client.exists(keys.token_requests))


class TokenCountServer:
    """The worker's thread that serves token count requests. A context manager."""

    def __init__(self, client: redis.Redis, keys: Keys, counter: TokenCounter) -> None:
        self._client = client
        self._keys = keys
        self._counter = counter
        self._stop = threading.Event()
        self._log = logging.getLogger(__name__)
        self._thread = threading.Thread(target=self._run, name="counting", daemon=True)
        self._released = keys.release(uuid.uuid4().hex)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop after the present request."""
        self._stop.set()
        release_blocked(self._client, self._released)
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                taken: Any = self._client.blpop(
                    [self._released, self._keys.token_requests], timeout=BLOCK_MAX_S
                )
                if taken is not None and not self._stop.is_set():
                    self._serve(taken[1])
            except (redis.RedisError, OSError) as error:
                self._log.warning("lost the token count requests, trying again: %s", error)
                self._stop.wait(RETRY_S)

    def _serve(self, message: bytes) -> None:
        name, action, payload = message.split(b" ", 2)
        key = self._keys.token_reply(name.decode())
        _send_reply(self._client, key, self._reply(action, payload), ttl_s=int(REPLY_TIMEOUT_S) + 1)

    def _reply(self, action: bytes, payload: bytes) -> dict[str, Any]:
        try:
            request = ChatRequest.from_bytes(payload)
            if action == _READ:
                return asdict(self._counter.read(request))
            return {"tokens": self._counter.count(request)}
        except InvalidRequest as error:
            return {"refused": error.message, "field": error.field}
        except Exception:  # noqa: BLE001 - the thread must survive to serve later requests
            self._log.exception("a prompt could not be counted")
            return {}


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


@dataclass(frozen=True, slots=True)
class RedisBlockPlaces:
    """``domain.kv.places.BlockPlaces``.

    Attributes:
        pulses: The living workers, whose replies are waited for.
    """

    client: redis.Redis
    keys: Keys
    pulses: WorkerPulses
    timeout_s: float = REPLIES_S

    def find(self, names: Sequence[BlockHash]) -> tuple[FoundBlocks, ...]:
        """See ``BlockPlaces.find``."""
        replies = self._ask("find", names) if names else []
        return tuple(_found(reply) for reply in replies)

    def forget(self, names: Sequence[BlockHash]) -> int:
        """See ``BlockPlaces.forget``."""
        return len(self._ask(_FORGET, names)) if names else 0

    def _ask(self, action: str, names: Sequence[BlockHash]) -> list[dict[str, Any]]:
        assert len(names) <= NAMES_MAX, "a request has a limit"  # noqa: S101 - a contract of the caller
        expected = sum(pulse.model is not None for pulse in self.pulses.alive())
        if not expected:
            return []
        name = uuid.uuid4().hex
        message = {"kind": KIND, "do": action, "reply": name, "names": b"".join(names).hex()}
        with broker_errors():
            self.client.publish(self.keys.control, json.dumps(message))
            replies = _replies(self.client, self.keys.blocks_reply(name), self.timeout_s)
            return list(islice(replies, expected))


class BlockAnswers:
    """The worker's replies to requests about its blocks."""

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
        _send_reply(self._client, self._keys.blocks_reply(reply), body, ttl_s=REPLY_TTL_S)


def _names(digits: str) -> list[BlockHash]:
    packed = bytes.fromhex(digits)
    if len(packed) % HASH_BYTES or len(packed) > NAMES_MAX * HASH_BYTES:
        raise ValueError("the names of blocks cannot be parsed")
    return [BlockHash(packed[at : at + HASH_BYTES]) for at in range(0, len(packed), HASH_BYTES)]


def _digits(flags: Sequence[bool]) -> str:
    return "".join("1" if flag else "0" for flag in flags)


def _found(reply: dict[str, Any]) -> FoundBlocks:
    return FoundBlocks(
        worker=WorkerId(reply["worker"]),
        in_memory=tuple(digit == "1" for digit in reply["memory"]),
        on_disk=tuple(digit == "1" for digit in reply["disk"]),
    )
