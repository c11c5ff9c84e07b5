"""Redis clients: key names, time limits, and the translation of errors.

What uses the broker raises ``QueueUnavailable`` where that cannot be reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias
from urllib.parse import quote

import redis
import redis.asyncio
import redis.asyncio.connection
import redis.asyncio.retry
from redis.backoff import NoBackoff
from redis.retry import Retry

from domain.errors import QueueUnavailable
from domain.values import JobId, Priority

#: The type that ``connect`` returns, for modules that must not import redis.
BrokerClient: TypeAlias = redis.Redis
#: Longest time that a blocking command (``BLPOP``) waits. What it waits for wakes it at once, so a
#: longer one only costs an idle service less.
BLOCK_MAX_S = 3.0
#: Longest wait for a reply; longer than ``BLOCK_MAX_S``, or a blocking command would time out.
REPLY_TIMEOUT_S = 4.0
CONNECT_TIMEOUT_S = 2.0
#: A connection that died while idle is reopened once. Every command may be repeated, since items
#: and messages have their own ids.
RECONNECTS_MAX = 1
#: Most connections of an event loop, or of one client for commands that wait; more concurrent
#: callers are a bug.
CONNECTIONS_MAX = 512
#: Most connections of one client for commands that return at once; other threads wait for one.
COMMANDS_AT_ONCE = 8


class Keys:
    """Key names, below one prefix.

    Attributes:
        prefix: Also the namespace of Dramatiq's own keys.
        bus: Channel on which stream items are announced.
        control: Channel of notifications to the workers.
        token_requests: List of requests for a token count.
        pulses: Hash of the workers' heartbeats with their state.
        watched: Exists while an overview is watched.
        probe: Written to find out whether the broker takes writes.
        heartbeats: Dramatiq's sorted set of consumers by the time of their last command.
        unacked_prefix: Prefix of Dramatiq's sets of unacknowledged messages.
        queues: Set of the names of all queues that workers have declared.
        restored: Set of the workers whose jobs the broker knows; an emptied broker has none.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.bus = f"{prefix}:bus"
        self.control = f"{prefix}:control"
        self.token_requests = f"{prefix}:questions"
        self.pulses = f"{prefix}:pulses"
        self.watched = f"{prefix}:watched"
        self.probe = f"{prefix}:probe"
        self.heartbeats = f"{prefix}:__heartbeats__"
        self.unacked_prefix = f"{prefix}:__acks__."
        self.queues = f"{prefix}:queues"
        self.restored = f"{prefix}:restored"

    def token_reply(self, name: str) -> str:
        """List that receives the reply to one request for a token count."""
        return f"{self.prefix}:answer:{name}"

    def blocks_reply(self, name: str) -> str:
        """List that receives the workers' replies to one request about blocks."""
        return f"{self.prefix}:blocks:{name}"

    def connection(self, broker_id: str) -> str:
        """Name of the connections of a worker, by which others see whether its process lives."""
        return f"{self.prefix}:worker:{broker_id}"

    def consumers(self, queue: str) -> str:
        """Sorted set of the consumers of a queue by the time of their last fetch."""
        return f"{self.prefix}:{queue}.consumers"

    def items(self, job_id: JobId) -> str:
        """Stream of a job's items."""
        return f"{self.prefix}:job:{job_id}:items"

    def ready(self, queue: str) -> str:
        """Dramatiq's list of the message ids that consumers fetch next."""
        return f"{self.prefix}:{queue}"

    def agent_ring(self, queue: str) -> str:
        """List of the agents with waiting messages, in the order of their turns."""
        return f"{self.prefix}:{queue}.ring"

    def agent_queue(self, queue: str, line: str | None) -> str:
        """Sorted set of the waiting message ids of a line; see ``line_of``."""
        return f"{self.prefix}:{queue}.line:{line or ''}"

    def messages(self, queue: str) -> str:
        """Dramatiq's hash of messages by id, waiting and unacknowledged."""
        return f"{self.prefix}:{queue}.msgs"

    def wakeup(self, queue: str) -> str:
        """List on which an idle consumer blocks; it has at most one element."""
        return f"{self.prefix}:bell:{queue}"

    def release(self, name: str) -> str:
        """List that ends the blocking commands of a process or thread that stops."""
        return f"{self.prefix}:release:{name}"

    def unacked(self, queue: str, broker_id: str) -> str:
        """Dramatiq's set of messages that a consumer has fetched and not acknowledged."""
        return f"{self.unacked_prefix}{broker_id}.{queue}"


def queue_name(priority: Priority, model: str | None = None) -> str:
    """Return the name of a queue: that of all models, or the line of one.

    A dot would end the name of a queue in a key, so it is escaped too.
    """
    if model is None:
        return priority.value
    return f"{priority.value}@{quote(model, safe='').replace('.', '%2E')}"


def connect(url: str, *, name: str | None = None) -> redis.Redis:
    """Return a thread-safe client; it connects on first use.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        name: Name of its connections, without spaces.
    """
    commands = redis.BlockingConnectionPool.from_url(
        url,
        **_options(COMMANDS_AT_ONCE),
        client_name=name,
        retry=_retry(),
        timeout=REPLY_TIMEOUT_S,
    )
    blocking = redis.Redis.from_url(
        url, **_options(CONNECTIONS_MAX), client_name=name, retry=_retry()
    )
    return _Client(commands, blocking)


class _Client(redis.Redis):
    """Keeps commands that wait off the few connections of those that return at once.

    A pool never closes a connection. Without a bound each burst of threads would leave more.
    """

    def __init__(self, commands: redis.ConnectionPool, blocking: redis.Redis) -> None:
        super().__init__(connection_pool=commands)
        self._blocking = blocking

    def blpop(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the library's signature
        """See ``redis.Redis``."""
        return self._blocking.blpop(*args, **kwargs)

    def pubsub(self, **kwargs: Any) -> redis.client.PubSub:  # noqa: ANN401 - the library's signature
        """See ``redis.Redis``."""
        subscription: redis.client.PubSub = self._blocking.pubsub(**kwargs)  # type: ignore[no-untyped-call]  # in redis
        return subscription

    def close(self) -> None:
        """Close all connections."""
        self.connection_pool.disconnect()
        self._blocking.close()


def connect_async(url: str) -> redis.asyncio.Redis:
    """Return a client for the event loop that first uses it."""
    retry = redis.asyncio.retry.Retry(NoBackoff(), RECONNECTS_MAX, (redis.ConnectionError,))
    options = _options(CONNECTIONS_MAX)
    client: redis.asyncio.Redis = redis.asyncio.Redis.from_url(url, retry=retry, **options)
    pool = client.connection_pool
    # `from_url` chooses the connection class by the address.
    is_local = issubclass(pool.connection_class, redis.asyncio.UnixDomainSocketConnection)
    pool.connection_class = _LocalConnection if is_local else _Connection
    return client


def release_blocked(client: redis.Redis, key: str, *, count: int = 1) -> None:
    """End the commands that block on a list besides their own; an unavailable broker ends them too.

    Args:
        key: From ``Keys.release``.
    """
    with suppress(redis.RedisError, OSError), client.pipeline(transaction=True) as pipeline:
        pipeline.rpush(key, *[b""] * count)
        pipeline.pexpire(key, int(BLOCK_MAX_S * 1000))
        pipeline.execute()


class _CancelledSends(redis.asyncio.connection.AbstractConnection):
    """Keeps a cancellation that arrives while a command is sent.

    The library sends within ``asyncio.wait_for``, which in Python 3.11 drops a cancellation if its
    awaitable completes at the same time (https://github.com/python/cpython/issues/86296). The task
    of a disconnected reader would then wait for ever.
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
            # The next command on this connection must not read the pending reply.
            await self.disconnect(nowait=True)
            raise asyncio.CancelledError


class _Connection(_CancelledSends, redis.asyncio.Connection):
    """Over TCP."""


class _LocalConnection(_CancelledSends, redis.asyncio.UnixDomainSocketConnection):
    """Over a Unix domain socket."""


@contextmanager
def broker_errors() -> Iterator[None]:
    """Translate the exceptions of the client library.

    Raises:
        QueueUnavailable: The library raised an exception.
    """
    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise QueueUnavailable(f"the broker does not answer: {error}") from error


def _retry() -> Retry:
    return Retry(NoBackoff(), RECONNECTS_MAX, (redis.ConnectionError,))


def _options(connections_max: int) -> dict[str, Any]:
    return {
        # Replies have another shape under protocol 3, the library's default.
        "protocol": 2,
        "socket_timeout": REPLY_TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "max_connections": connections_max,
    }
