"""Dramatiq's queues on Redis, filled by job ids and emptied without polling.

The filling side writes Dramatiq's own format by one script and needs neither its broker nor its
actors. The emptying side is Dramatiq's broker with another consumer: an idle one blocks on a
*bell*, a list that every enqueue pushes to, instead of asking again and again.

    {prefix}:{queue}.line:{agent}  waiting ids of one agent, in order of acceptance (sorted set)
    {prefix}:{queue}.ring          agents with a line, in the order of their turns (list)
    {prefix}:{queue}               ids that are called or came back, next to be taken (list)
    {prefix}:{queue}.msgs          messages by id, waiting or in hand (hash)
    {prefix}:__acks__.{id}.{queue} ids in the hand of the consumer ``id`` (set)
    {prefix}:bell:{queue}          at most one element

Agents take turns over the whole queue, however many jobs one of them has in it: a consumer with
room calls one id of each line in turn onto Dramatiq's own list, and then takes from that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import redis
from dramatiq import Message, MessageProxy
from dramatiq.brokers.redis import MAINTENANCE_SCALE, RedisBroker, _RedisConsumer, _scripts
from dramatiq.errors import ConnectionClosed

from domain.values import JobId, Priority
from ops.adapters.redis import queue_scripts as scripts
from ops.adapters.redis.client import BLOCK_MAX_S, Keys, broker_errors

#: The only actor there is; its only argument is the job id.
ACTOR_NAME = "run_job"
#: Silence after which another worker may take what this one has in hand. A worker that merely froze
#: for longer comes back to find its attempt refused by the log.
HEARTBEAT_TIMEOUT_MS = 15_000
#: A worker that was heard of within this time may take the next job; each asks every second.
LIVE_MS = 3000
#: How long a worker that has more in hand than another one lets that one go first.
YIELD_S = 0.02
#: How long a worker that found itself alone does not look for others.
ALONE_S = 1.0
#: Time between two comparisons of a worker's hand with what it holds. A broker that came back with
#: an old snapshot, or whose reply was lost, has in it what the worker does not know of.
HAND_CHECK_S = 5.0
#: Pause before a consumer asks again after the broker failed: the first, and what doubling ends at.
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0


class DramatiqJobQueue:
    """``domain.job.ports.JobQueue`` for whoever accepts, cancels or reconciles jobs."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._enqueue: Any = client.register_script(scripts.ENQUEUE)
        self._remove: Any = client.register_script(scripts.REMOVE)

    def enqueue(self, job_id: JobId, priority: Priority, *, agent: str | None = None) -> bool:
        """Queue a job unless it waits or is in hand; atomic, and safe to repeat."""
        keys = self._keys
        names = [keys.called(priority), keys.messages(priority), keys.bell(priority)]
        names += [keys.heartbeats, keys.ring(priority), keys.line(priority, agent)]
        message = message_of(job_id, priority).encode()
        with broker_errors():
            added = self._enqueue(
                keys=names,
                args=[job_id, message, keys.in_hand_prefix, priority.value, agent or ""],
            )
        return bool(added)

    def remove(self, job_id: JobId, priority: Priority, *, agent: str | None = None) -> bool:
        """Take a waiting job out; ``False`` if a worker has it or it was never there."""
        keys = self._keys
        names = [keys.called(priority), keys.messages(priority)]
        names += [keys.ring(priority), keys.line(priority, agent)]
        with broker_errors():
            return bool(self._remove(keys=names, args=[job_id, agent or ""]))


def message_of(job_id: JobId, priority: Priority) -> Message[None]:
    """Return the message that asks for a job to be run; its id is the job's."""
    return Message(
        queue_name=priority.value,
        actor_name=ACTOR_NAME,
        args=(job_id,),
        kwargs={},
        options={"redis_message_id": job_id},
        message_id=job_id,
    )


class BlockingRedisBroker(RedisBroker):
    """Dramatiq's broker for the worker.

    It has no delay queues, since retries are decided by the log and not by Dramatiq.

    Args:
        client: Made by ``connect``.
        keys: Key names.
        broker_id: Whose hand messages are in; no other live worker's, and the same over restarts of
            one worker, so that ``requeue_in_hand`` finds what the last run left behind.
        shared_hand_max: Messages of a queue in hand at once while other workers live: what waits in
            a hand cannot be taken by one that is idle.
        hand_check_s: Time between two comparisons of the hand with what is held.
        middleware: Dramatiq's middleware; none by default.

    Attributes:
        held: What was fetched and not acknowledged, by queue; outlives a consumer that is replaced.
    """

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        *,
        broker_id: str,
        shared_hand_max: int | None = None,
        hand_check_s: float = HAND_CHECK_S,
        middleware: list[Any] | None = None,
    ) -> None:
        super().__init__(  # type: ignore[no-untyped-call]  # Dramatiq leaves it untyped
            client=client,
            middleware=middleware or [],
            namespace=keys.prefix,
            heartbeat_timeout=HEARTBEAT_TIMEOUT_MS,
            maintenance_chance=MAINTENANCE_SCALE,
        )
        self.broker_id = broker_id
        self.shared_hand_max = shared_hand_max
        self.hand_check_s = hand_check_s
        self.held: defaultdict[str, set[str]] = defaultdict(set)
        self.keys = keys
        self.scripts["dispatch"] = client.register_script(
            scripts.SERVER_CLOCK + _scripts["dispatch"]
        )
        self._requeue: Any = client.register_script(scripts.REQUEUE)
        self._call: Any = client.register_script(scripts.CALL)
        self._share: Any = client.register_script(scripts.SHARE)
        self._ring: Any = client.register_script(scripts.RING)

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue, without the delay queue that would be polled."""
        if queue_name in self.queues:
            return
        self.emit_before("declare_queue", queue_name)
        self.queues.add(queue_name)
        self.emit_after("declare_queue", queue_name)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> BlockingConsumer:
        """Return a consumer that blocks while its queue is empty."""
        return BlockingConsumer(self, queue_name, prefetch, timeout)

    def call_next(self, queue_name: str, count: int) -> None:
        """Put the next jobs of a queue where they are taken from, up to ``count`` in all."""
        names = [self.keys.called(queue_name), self.keys.ring(queue_name)]
        self._call(keys=names, args=[count, self.keys.lines(queue_name)])

    def share(self, queue_name: str) -> int | None:
        """Return how many messages this worker may take before it is another's turn.

        Returns:
            ``None`` if it is the only worker; 0 if another one has fewer in hand, which was called.
        """
        share = self._share(
            keys=[*self._to_ring(queue_name), self.keys.heartbeats],
            args=[self.keys.in_hand_prefix, queue_name, self.broker_id, LIVE_MS],
        )
        return None if share < 0 else int(share)

    def ring(self, queue_name: str) -> None:
        """Call another worker if there is more to do."""
        self._ring(keys=self._to_ring(queue_name))

    def _to_ring(self, queue_name: str) -> list[str]:
        keys = self.keys
        return [keys.called(queue_name), keys.bell(queue_name), keys.ring(queue_name)]

    def requeue_in_hand(self) -> int:
        """Put everything that the last run had in hand back to the front of its queue.

        To be called before the worker starts, by the only process that has this broker id.

        Returns:
            How many messages went back.

        Raises:
            QueueUnavailable: The broker cannot be reached.
        """
        with broker_errors():
            return sum(self.let_go(queue, ()) for queue in Priority)

    def let_go(self, queue_name: str, held: Iterable[str]) -> int:
        """Put back what this worker is said to have in hand and does not hold.

        A job that ended meanwhile is delivered once more and left alone: the log decides.

        Args:
            queue_name: The queue.
            held: What it holds; nothing else may be fetched meanwhile.

        Returns:
            How many messages went back.
        """
        names = [self.keys.called(queue_name), self.keys.messages(queue_name)]
        names += [self.keys.in_hand(queue_name, self.broker_id), self.keys.bell(queue_name)]
        return int(self._requeue(keys=names, args=list(held)))


class BlockingConsumer(_RedisConsumer):
    """A consumer that waits on the bell while there is nothing, and on its own hands while full.

    Nothing raises out of it while the broker is away: it asks again until it is back.
    """

    broker: BlockingRedisBroker

    def __init__(
        self, broker: BlockingRedisBroker, queue_name: str, prefetch: int, timeout: int
    ) -> None:
        super().__init__(broker, queue_name, prefetch, timeout)  # type: ignore[no-untyped-call]  # as above
        self._bell = broker.keys.bell(queue_name)
        self._block_s = min(timeout / 1000, BLOCK_MAX_S)
        self._hand_freed = threading.Event()
        self._retry_s = RETRY_FIRST_S
        self._is_alone = True
        self._alone_until_s = 0.0
        self._check_hand_at_s = time.monotonic() + broker.hand_check_s
        self.queued_message_ids = broker.held[queue_name]
        self._log = logging.getLogger(__name__)

    def __next__(self) -> MessageProxy | None:
        """Return the next message, or ``None`` after at most the idle timeout."""
        try:
            message = self._next_message()
        except (redis.ConnectionError, redis.TimeoutError) as error:
            self._log.warning("queue %s: the broker does not answer: %s", self.queue_name, error)
            time.sleep(self._retry_s)
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
            return None
        self._retry_s = RETRY_FIRST_S
        return message

    def ack(self, message: MessageProxy) -> None:
        """Acknowledge; Dramatiq repeats it on ``ConnectionClosed`` and on nothing else."""
        try:
            super().ack(message)  # type: ignore[no-untyped-call]  # as above
        except redis.TimeoutError as error:
            raise ConnectionClosed(error) from error  # type: ignore[no-untyped-call]  # as above
        finally:
            self._hand_freed.set()

    def nack(self, message: MessageProxy) -> None:
        """Reject; Dramatiq repeats it on ``ConnectionClosed`` and on nothing else."""
        try:
            super().nack(message)  # type: ignore[no-untyped-call]  # as above
        except redis.TimeoutError as error:
            raise ConnectionClosed(error) from error  # type: ignore[no-untyped-call]  # as above
        finally:
            self._hand_freed.set()

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Give back what was not begun, as a worker does that stops."""
        given = list(messages)
        super().requeue(given)  # type: ignore[no-untyped-call]  # as above
        self.queued_message_ids.difference_update(one.message_id for one in given)

    def _next_message(self) -> MessageProxy | None:
        if not self.message_cache and not self._fetch():
            if self._room > 0:
                # Whether it rang or not: messages also come back without a ring.
                self.broker.client.blpop([self._bell], timeout=self._block_s)
            else:
                self._hand_freed.wait(self._block_s)
                self._hand_freed.clear()
            self._fetch()
        # A message without a body was removed by hand while its id waited.
        while self.message_cache:
            body = self.message_cache.pop(0)
            if body is not None:
                message: Message[None] = Message.decode(body)
                self.queued_message_ids.add(message.message_id)
                return MessageProxy(message)
        return None

    @property
    def _room(self) -> int:
        most = self.prefetch
        if not self._is_alone and self.broker.shared_hand_max is not None:
            most = min(most, self.broker.shared_hand_max)
        return int(most - self.outstanding_message_count)

    def _fetch(self) -> bool:
        """Fill the cache as far as there is room; with no room it is still a sign of life."""
        self._check_hand()
        share = self._fair_share()
        room = max(0, self._room)
        if room and share is not None:
            if share == 0:
                time.sleep(YIELD_S)  # and then take one anyway: the other may be busy
            room = min(room, max(1, share))
        if room:
            self.broker.call_next(self.queue_name, room)
        self.message_cache = self.broker.do_fetch(self.queue_name, room)
        if share is not None and self.message_cache:
            self.broker.ring(self.queue_name)
        return bool(self.message_cache)

    def _check_hand(self) -> None:
        """Let go of what the broker takes to be in hand here; nothing waits in the cache now."""
        if time.monotonic() < self._check_hand_at_s:
            return
        # Copied at one stroke: other threads acknowledge meanwhile.
        if count := self.broker.let_go(self.queue_name, tuple(self.queued_message_ids)):
            self._log.warning("queue %s: %d were not in hand", self.queue_name, count)
        self._check_hand_at_s = time.monotonic() + self.broker.hand_check_s

    def _fair_share(self) -> int | None:
        """Return what ``share`` does; who was alone a moment ago is taken to be so still."""
        if time.monotonic() < self._alone_until_s:
            return None
        share = self.broker.share(self.queue_name)
        self._is_alone = share is None
        if self._is_alone:
            self._alone_until_s = time.monotonic() + ALONE_S
        return share
