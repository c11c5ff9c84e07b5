"""How we talk to Redis: key names, time limits, and one translation of its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import redis
import redis.asyncio
import redis.asyncio.connection
import redis.asyncio.retry
from redis.backoff import NoBackoff
from redis.retry import Retry

from domain.errors import QueueUnavailable
from domain.values import JobId

#: What ``connect`` returns, for those who only hand it on.
BrokerClient: TypeAlias = redis.Redis
#: Longest that one command may block on purpose (``BLPOP``).
BLOCK_MAX_S = 1.0
#: Longest wait for a reply; above ``BLOCK_MAX_S``, or blocking calls would look like a dead broker.
REPLY_TIMEOUT_S = 3.0
CONNECT_TIMEOUT_S = 2.0
#: A connection that died while it lay idle is opened anew once. Every command of ours may be
#: repeated: items and messages carry their own ids.
RECONNECTS_MAX = 1
#: Connections of one client; more callers at once than this are a mistake of ours.
CONNECTIONS_MAX = 512


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of everything we keep, below one prefix.

    Attributes:
        prefix: Also the namespace of Dramatiq's own keys.
    """

    prefix: str

    @property
    def bus(self) -> str:
        """Channel that announces stream items."""
        return f"{self.prefix}:bus"

    @property
    def control(self) -> str:
        """Channel of nudges to the workers."""
        return f"{self.prefix}:control"

    @property
    def questions(self) -> str:
        """List of prompts to be counted."""
        return f"{self.prefix}:questions"

    def answer(self, name: str) -> str:
        """List that gets the answer to one of them."""
        return f"{self.prefix}:answer:{name}"

    @property
    def pulses(self) -> str:
        """Hash of the workers' signs of life."""
        return f"{self.prefix}:pulses"

    @property
    def heartbeats(self) -> str:
        """Dramatiq's sorted set of consumers by their last command."""
        return f"{self.prefix}:__heartbeats__"

    @property
    def in_hand_prefix(self) -> str:
        """What the names of all of Dramatiq's sets of unacknowledged messages begin with."""
        return f"{self.prefix}:__acks__."

    def items(self, job_id: JobId) -> str:
        """Stream of a job's items."""
        return f"{self.prefix}:job:{job_id}:items"

    def called(self, queue: str) -> str:
        """Dramatiq's list of the message ids that are taken next."""
        return f"{self.prefix}:{queue}"

    def ring(self, queue: str) -> str:
        """List of the agents that wait in a queue, in the order of their turns."""
        return f"{self.prefix}:{queue}.ring"

    def lines(self, queue: str) -> str:
        """What the names of the lines of a queue begin with."""
        return f"{self.prefix}:{queue}.line:"

    def line(self, queue: str, agent: str | None) -> str:
        """Sorted set of the waiting message ids of an agent; all jobs without one share one."""
        return f"{self.lines(queue)}{agent or ''}"

    def messages(self, queue: str) -> str:
        """Dramatiq's hash of messages by id, waiting and in hand."""
        return f"{self.prefix}:{queue}.msgs"

    def bell(self, queue: str) -> str:
        """List on which an idle consumer blocks; holds at most one element."""
        return f"{self.prefix}:bell:{queue}"

    def in_hand(self, queue: str, broker_id: str) -> str:
        """Dramatiq's set of messages that a consumer fetched and did not acknowledge."""
        return f"{self.in_hand_prefix}{broker_id}.{queue}"


def connect(url: str) -> redis.Redis:
    """Return a thread-safe client; nothing is sent until it is used.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
    """
    client: redis.Redis = redis.Redis.from_url(
        url, retry=Retry(NoBackoff(), RECONNECTS_MAX, (redis.ConnectionError,)), **_options()
    )
    return client


def connect_async(url: str) -> redis.asyncio.Redis:
    """Return a client for the loop that first uses it."""
    retry = redis.asyncio.retry.Retry(NoBackoff(), RECONNECTS_MAX, (redis.ConnectionError,))
    client: redis.asyncio.Redis = redis.asyncio.Redis.from_url(url, retry=retry, **_options())
    pool = client.connection_pool
    # The address decides the class, so that it cannot be given beforehand.
    is_local = issubclass(pool.connection_class, redis.asyncio.UnixDomainSocketConnection)
    pool.connection_class = _LocalConnection if is_local else _Connection
    return client


class _CancelledSends(redis.asyncio.connection.AbstractConnection):
    """Lets a cancellation that comes just as a command is sent end its task.

    The library sends within ``asyncio.wait_for``, which in Python 3.11 drops a cancellation when
    what it waits for is done at the same time (https://github.com/python/cpython/issues/86296). A
    reader whose client has left would then wait for ever.
    """

    async def send_packed_command(
        self,
        command: bytes | str | Iterable[bytes],
        check_health: bool = True,  # noqa: FBT001, FBT002 - the library's signature
    ) -> None:
        task = asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        await super().send_packed_command(command, check_health)
        if task is not None and task.cancelling() > before:
            # Nobody will read the reply, and the next command must not.
            await self.disconnect(nowait=True)
            raise asyncio.CancelledError


class _Connection(_CancelledSends, redis.asyncio.Connection):
    """To an address."""


class _LocalConnection(_CancelledSends, redis.asyncio.UnixDomainSocketConnection):
    """To a socket in the file system."""


@contextmanager
def broker_errors() -> Iterator[None]:
    """Translate what the client library raises.

    Raises:
        QueueUnavailable: In place of any error of the library.
    """
    try:
        yield
    except (redis.RedisError, OSError) as error:
        message = f"the broker does not answer: {error}"
        raise QueueUnavailable(message) from error


def _options() -> dict[str, Any]:
    return {
        # Replies have another shape under protocol 3, the library's present default.
        "protocol": 2,
        "socket_timeout": REPLY_TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "max_connections": CONNECTIONS_MAX,
    }
