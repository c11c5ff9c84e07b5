"""Dramatiq queues of job ids on Redis, fair between agents and without polling.

Producers and workers use one subclass of Dramatiq's ``RedisBroker``. Its ``enqueue`` adds a job
once, to the line of its agent; its consumer blocks while idle on the *wakeup* list, to which every
enqueue pushes. ADR 0049 has what the plain broker does instead.

    {prefix}:{queue}.line:{line}   waiting ids of one line, in order of acceptance (sorted set)
    {prefix}:{queue}.ring          agents with waiting ids, in the order of their turns (list)
    {prefix}:{queue}               ready ids, which consumers fetch next (list)
    {prefix}:{queue}.msgs          messages by id, waiting or unacknowledged (hash)
    {prefix}:__acks__.{id}.{queue} unacknowledged ids of the consumer ``id`` (set)
    {prefix}:{queue}.consumers     consumers by the time of their last fetch (sorted set)
    {prefix}:bell:{queue}          wakeup: at most one element (list)
    {prefix}:queues                names of all queues that workers have declared (set)

``queue`` is ``interactive`` or ``batch`` for jobs that any model may answer, and
``interactive@NAME`` or ``batch@NAME`` for those that are bound to a model.

Agents take turns, however many jobs each of them has in the queue: a consumer with free slots moves
one id of each agent in turn to Dramatiq's own list, the ready list, and fetches from there.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import dramatiq
import redis
from dramatiq import Consumer, Message, MessageProxy
from dramatiq.brokers.redis import MAINTENANCE_SCALE, RedisBroker
from dramatiq.errors import ConnectionClosed

from domain.values import JobId, Priority
from ops.broker import queue_scripts as scripts
from ops.broker.client import BLOCK_MAX_S, Keys, broker_errors, queue_name, release_blocked

#: The actor of jobs; its only argument is the job id.
ACTOR_NAME = "run_job"
#: The actor of the messages that end the wait of an idle thread, before those of jobs.
WAKE_ACTOR_NAME = "wake_thread"
_WAKE_PRIORITY = -1
#: Option of an enqueued message: the line in which it waits. It is not part of the stored message.
LINE = "line"
#: Option of a message: the highest is first in its line.
URGENCY = "urgency"
#: Option of the message that ``enqueue`` returns: whether the job was neither waiting nor taken.
IS_NEW = "is_new"
#: After this time without a command another worker may take a worker's unacknowledged messages. The
#: log refuses the events of a worker that froze for longer and continues.
HEARTBEAT_TIMEOUT_MS = 15_000
#: A worker counts as live for this long after a command; each worker sends one every two seconds.
LIVE_MS = 5000
#: How long a worker with more unacknowledged messages than another one waits before it fetches.
YIELD_S = 0.02
#: How long a worker that found no other live worker does not check again.
ALONE_S = 1.0
#: Time between two comparisons of the unacked set with the messages that the worker has fetched.
#: They differ after a broker restarts from an old snapshot, or after a reply was lost.
UNACKED_CHECK_S = 5.0
#: Pause of a consumer after a broker error: the first, and the limit of doubling it.
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0


class DramatiqJobQueue:
    """``domain.job.ports.JobQueue``: the producer side."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._broker = BlockingRedisBroker(client, keys)

    def enqueue(
        self,
        job_id: JobId,
        priority: Priority,
        *,
        line: str | None = None,
        model: str | None = None,
        urgency: int = 0,
    ) -> bool:
        """Enqueue a job unless it waits or is unacknowledged; atomic and idempotent."""
        message = message_of(job_id, queue_name(priority, model))
        with broker_errors():
            sent = self._broker.enqueue(message.copy(options={LINE: line, URGENCY: urgency}))
        return bool(sent.options[IS_NEW])

    def remove(
        self,
        job_id: JobId,
        priority: Priority,
        *,
        line: str | None = None,
        model: str | None = None,
    ) -> bool:
        """Remove a waiting job; ``False`` if a live worker has it or it is not queued."""
        with broker_errors():
            return self._broker.remove(job_id, queue_name(priority, model), line)


def message_of(job_id: JobId, queue: str) -> Message[None]:
    """Return the message that runs a job; its id is the job's id."""
    return dataclasses.replace(
        _message(queue, ACTOR_NAME, job_id),
        options={"redis_message_id": job_id},
        message_id=job_id,
    )


def _message(queue: str, actor: str, *args: str) -> Message[None]:
    return Message(queue_name=queue, actor_name=actor, args=args, kwargs={}, options={})


def _do_nothing() -> None:
    pass


class BlockingRedisBroker(RedisBroker):
    """Dramatiq's broker for producers and workers.

    It has no delay queues, since the log decides about retries, not Dramatiq.

    Args:
        broker_id: Of a worker: the name of its unacked sets; unique among live workers, and the
            same over restarts of one worker, so that ``requeue_all_unacked`` finds the messages of
            its last run.
        shared_unacked_max: Most unacknowledged messages of a queue while other workers live, since
            an idle worker cannot take a message that another one has fetched.
        unacked_check_s: Time between two comparisons of the unacked set with ``fetched``.
        middleware: Dramatiq's middleware; none by default.

    Attributes:
        stops: Set once consumers fetch no more messages.
        unacked_max: Most unacknowledged messages by queue; else as many as Dramatiq prefetches.
        fetched: Ids fetched and not acknowledged, by queue; survives a replaced consumer.
    """

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        *,
        broker_id: str | None = None,
        shared_unacked_max: int | None = None,
        unacked_check_s: float = UNACKED_CHECK_S,
        middleware: list[Any] | None = None,
    ) -> None:
        super().__init__(  # type: ignore[no-untyped-call]  # Dramatiq leaves it untyped
            client=client,
            middleware=middleware or [],
            namespace=keys.prefix,
            heartbeat_timeout=HEARTBEAT_TIMEOUT_MS,
            maintenance_chance=MAINTENANCE_SCALE,
        )
        self.broker_id = broker_id or self.broker_id
        self.shared_unacked_max = shared_unacked_max
        self.unacked_check_s = unacked_check_s
        self.unacked_max: dict[str, int] = {}
        self.fetched: defaultdict[str, set[str]] = defaultdict(set)
        self.keys = keys
        dispatch: Any = self.scripts["dispatch"]
        self.scripts["dispatch"] = client.register_script(scripts.SERVER_CLOCK + dispatch.script)
        self._enqueue: Any = client.register_script(scripts.ENQUEUE)
        self._remove: Any = client.register_script(scripts.REMOVE)
        self._requeue: Any = client.register_script(scripts.REQUEUE)
        self._restore: Any = client.register_script(scripts.RESTORE)
        self._make_ready: Any = client.register_script(scripts.MAKE_READY)
        self._fair_share: Any = client.register_script(scripts.FAIR_SHARE)
        self._wake: Any = client.register_script(scripts.WAKE)
        self.stops = threading.Event()
        self._released = threading.Event()
        self.release_key = keys.release(uuid.uuid4().hex)

    def stop_fetching(self) -> None:
        """Let consumers fetch no more messages; they still send heartbeats.

        Each consumer delivers as many messages as it might have fetched, to an actor that does
        nothing: a thread of Dramatiq that waits for a message sees only then that it is stopped.
        """
        if self.queues and WAKE_ACTOR_NAME not in self.actors:
            dramatiq.actor(
                broker=self,
                actor_name=WAKE_ACTOR_NAME,
                queue_name=min(self.queues),
                priority=_WAKE_PRIORITY,
            )(_do_nothing)
        self.stops.set()
        release_blocked(self.client, self.release_key, count=max(1, len(self.queues)))

    def release_consumers(self) -> None:
        """Let consumers end at once, after ``stop_fetching``."""
        self._released.set()

    def wait_released(self, timeout_s: float) -> None:
        """Wait until ``release_consumers`` is called."""
        self._released.wait(timeout_s)

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue without a delay queue, which Dramatiq would poll."""
        if queue_name in self.queues:
            return
        self.emit_before("declare_queue", queue_name)
        self.queues.add(queue_name)
        self.emit_after("declare_queue", queue_name)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> BlockingConsumer:
        """Return a consumer that blocks while its queue is empty."""
        unacked_max = self.unacked_max.get(queue_name, prefetch)
        return BlockingConsumer(self, queue_name, unacked_max, timeout)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Enqueue a message unless it waits or is unacknowledged; atomic and idempotent.

        Args:
            message: Its option ``LINE`` names the line in which it waits, ``URGENCY`` its place.
            delay: Not supported.

        Returns:
            The message with the option ``IS_NEW``.
        """
        assert delay is None, "the log decides about retries"  # noqa: S101 - a contract of the caller
        keys, queue, message_id = self.keys, message.queue_name, message.message_id
        options = dict(message.options)
        line, urgency = options.pop(LINE, None), options.pop(URGENCY, 0)
        names = [keys.ready(queue), keys.messages(queue), keys.wakeup(queue)]
        names += [keys.heartbeats, keys.agent_ring(queue), keys.agent_queue(queue, line)]
        stored = dataclasses.replace(message, options=options).encode()
        args = [message_id, stored, keys.unacked_prefix, queue, line or "", urgency]
        self.emit_before("enqueue", message, delay)
        is_new = bool(self._enqueue(keys=names, args=args))
        self.emit_after("enqueue", message, delay)
        return message.copy(options={IS_NEW: is_new})

    def remove(self, message_id: str, queue_name: str, line: str | None) -> bool:
        """Remove a waiting message; ``False`` if a live worker has it or it is not queued."""
        keys = self.keys
        names = [keys.ready(queue_name), keys.messages(queue_name), keys.heartbeats]
        names += [keys.agent_ring(queue_name), keys.agent_queue(queue_name, line)]
        args = [message_id, keys.unacked_prefix, queue_name, line or "", HEARTBEAT_TIMEOUT_MS]
        return bool(self._remove(keys=names, args=args))

    def make_ready(self, queue_name: str, count: int) -> None:
        """Move waiting ids to the ready list until it has ``count``."""
        names = [self.keys.ready(queue_name), self.keys.agent_ring(queue_name)]
        self._make_ready(keys=names, args=[count, self.keys.agent_queue(queue_name, None)])

    def fair_share(self, queue_name: str) -> int | None:
        """Return how many messages this worker may take before it is another's turn.

        Returns:
            ``None`` if no other worker takes from the queue; 0 if another one has fewer
            unacknowledged messages, which is woken then.
        """
        share = self._fair_share(
            keys=[*self._wake_keys(queue_name), self.keys.consumers(queue_name)],
            args=[self.keys.unacked_prefix, queue_name, self.broker_id, LIVE_MS],
        )
        return None if share < 0 else int(share)

    def wake_another(self, queue_name: str) -> None:
        """Wake an idle worker if the queue has more messages."""
        self._wake(keys=self._wake_keys(queue_name))

    def _wake_keys(self, queue_name: str) -> list[str]:
        keys = self.keys
        return [keys.ready(queue_name), keys.wakeup(queue_name), keys.agent_ring(queue_name)]

    def requeue_all_unacked(self) -> int:
        """Requeue the messages that the last run left unacknowledged, in front of their queues.

        The last run may have had another model: its messages go back to the line of that model.
        Call it before the worker starts and after all queues are declared, in the only process with
        this broker id.

        Returns:
            How many messages were requeued.
        """
        with broker_errors():
            self.client.sadd(self.keys.queues, *Priority, *self.queues)
            queues: Any = self.client.smembers(self.keys.queues)
            return sum(self.requeue_unacked(queue.decode(), ()) for queue in sorted(queues))

    def requeue_unacked(self, queue_name: str, fetched: Iterable[str]) -> int:
        """Requeue the messages of this worker's unacked set that it has not fetched.

        A job that has ended is delivered once more and then skipped, since the log decides.

        Args:
            fetched: Ids that the worker has fetched; it must not fetch others meanwhile.

        Returns:
            How many messages were requeued.
        """
        names = [self.keys.ready(queue_name), self.keys.messages(queue_name)]
        names += [self.keys.unacked(queue_name, self.broker_id), self.keys.wakeup(queue_name)]
        return int(self._requeue(keys=names, args=list(fetched)))

    def restore_fetched(self) -> None:
        """Record the messages that this worker has, where an emptied broker has forgotten them.

        Raises:
            QueueUnavailable: The broker cannot be reached.
        """
        keys = self.keys
        for queue, fetched in tuple(self.fetched.items()):
            messages = {one: message_of(JobId(one), queue).encode() for one in tuple(fetched)}
            names = [keys.ready(queue), keys.messages(queue), keys.unacked(queue, self.broker_id)]
            names += [keys.heartbeats, keys.agent_ring(queue)]
            args: list[str | bytes] = [self.broker_id, keys.agent_queue(queue, None)]
            with broker_errors():
                self._restore(keys=names, args=[*args, *chain.from_iterable(messages.items())])


class BlockingConsumer(Consumer):
    """A consumer that blocks on the wakeup list while idle, and on acknowledgements while full.

    It raises nothing while the broker is unavailable, and retries until it is back.

    Attributes:
        queued_message_ids: The broker's ``fetched`` ids of this queue.
    """

    def __init__(
        self, broker: BlockingRedisBroker, queue_name: str, prefetch: int, timeout: int
    ) -> None:
        self.queued_message_ids = broker.fetched[queue_name]
        self._broker = broker
        self._queue_name = queue_name
        self._prefetch = prefetch
        self._cache: list[bytes | None] = []
        self._wakes_left = prefetch
        self._wakeup = broker.keys.wakeup(queue_name)
        self._block_s = min(timeout / 1000, BLOCK_MAX_S)
        self._acknowledged = threading.Event()
        self._retry_s = RETRY_FIRST_S
        self._is_alone = True
        self._alone_until_s = 0.0
        self._check_unacked_at_s = time.monotonic() + broker.unacked_check_s
        self._log = logging.getLogger(__name__)

    def __next__(self) -> MessageProxy | None:
        """Return the next message, or ``None`` after at most the idle timeout."""
        try:
            message = self._next_message()
        except (redis.ConnectionError, redis.TimeoutError) as error:
            self._log.warning("queue %s: the broker does not answer: %s", self._queue_name, error)
            time.sleep(self._retry_s)
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
            return None
        self._retry_s = RETRY_FIRST_S
        return message

    def ack(self, message: MessageProxy) -> None:
        """Acknowledge a message."""
        self._settle(message, self._broker.do_ack)

    def nack(self, message: MessageProxy) -> None:
        """Reject a message."""
        self._settle(message, self._broker.do_nack)

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Requeue messages that a stopping worker has not started."""
        returned = [one.message_id for one in messages if one.actor_name != WAKE_ACTOR_NAME]
        if returned:
            with _lost_connections():
                self._broker.do_requeue(self._queue_name, *returned)
        self.queued_message_ids.difference_update(returned)

    def _settle(self, message: MessageProxy, command: Callable[[str, str], object]) -> None:
        if message.actor_name == WAKE_ACTOR_NAME:
            return
        try:
            with _lost_connections():
                command(self._queue_name, message.message_id)
        finally:
            self.queued_message_ids.discard(message.message_id)
            self._acknowledged.set()

    def _next_message(self) -> MessageProxy | None:
        if self._broker.stops.is_set() and self._wakes_left:
            self._wakes_left -= 1
            return MessageProxy(_message(self._queue_name, WAKE_ACTOR_NAME))
        if not self._cache:
            self._refill()
        # An operator removed the body of a message while its id waited.
        while self._cache:
            body = self._cache.pop(0)
            if body is not None:
                message: Message[None] = Message.decode(body)
                self.queued_message_ids.add(message.message_id)
                return MessageProxy(message)
        return None

    def _refill(self) -> None:
        """Fetch messages; wait for them while there are none."""
        broker = self._broker
        if broker.stops.is_set():
            broker.do_fetch(self._queue_name, 0)  # a heartbeat
            broker.wait_released(self._block_s)
            return
        if self._fetch():
            return
        if self._free_slots > 0:
            # Without a wakeup the next call fetches, since a requeued message may cause none.
            keys = [broker.release_key, self._wakeup]
            woken = broker.client.blpop(keys, timeout=self._block_s) is not None
        else:
            woken = self._acknowledged.wait(self._block_s)
            self._acknowledged.clear()
        if woken and not broker.stops.is_set():
            self._fetch()

    @property
    def _free_slots(self) -> int:
        unacked_max = self._prefetch
        if not self._is_alone and self._broker.shared_unacked_max is not None:
            unacked_max = min(unacked_max, self._broker.shared_unacked_max)
        return unacked_max - len(self.queued_message_ids) - len(self._cache)

    def _fetch(self) -> bool:
        """Fill the cache up to the free slots; with none, the command is still a heartbeat."""
        self._check_unacked()
        share = self._share()
        free = max(0, self._free_slots)
        if free and share is not None:
            if share == 0:
                time.sleep(YIELD_S)  # then take one anyway, since the other may be busy
            free = min(free, max(1, share))
        if free:
            self._broker.make_ready(self._queue_name, free)
        self._cache = self._broker.do_fetch(self._queue_name, free)
        if share is not None and self._cache:
            self._broker.wake_another(self._queue_name)
        return bool(self._cache)

    def _check_unacked(self) -> None:
        """Requeue unacked messages that this worker has not fetched; the cache is empty now."""
        if time.monotonic() < self._check_unacked_at_s:
            return
        # A copy, since other threads acknowledge meanwhile.
        if count := self._broker.requeue_unacked(self._queue_name, tuple(self.queued_message_ids)):
            self._log.warning("queue %s: requeued %d unacked messages", self._queue_name, count)
        self._check_unacked_at_s = time.monotonic() + self._broker.unacked_check_s

    def _share(self) -> int | None:
        """Return the fair share; ``None`` without a query for ``ALONE_S`` after that answer."""
        if time.monotonic() < self._alone_until_s:
            return None
        share = self._broker.fair_share(self._queue_name)
        self._is_alone = share is None
        if self._is_alone:
            self._alone_until_s = time.monotonic() + ALONE_S
        return share


@contextmanager
def _lost_connections() -> Iterator[None]:
    """Translate the errors after which Dramatiq tries again; it knows ``ConnectionClosed`` only."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise ConnectionClosed(error) from error  # type: ignore[no-untyped-call]  # Dramatiq leaves it untyped
