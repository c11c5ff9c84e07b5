"""Stream items in Redis: one script per publish, one stream per job, one bus; and their erasure."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import redis
import redis.asyncio

from domain.chat.items import StreamItem
from domain.errors import QueueUnavailable
from domain.job.ports import ItemPage, ItemReader
from domain.log.codec import decode_item, encode_item
from domain.values import JobId
from ops.broker.client import Keys, broker_errors

#: Items kept per job, approximately.
ITEMS_MAX: Final = 200_000
#: Seconds for which a stream is kept after its terminal item.
ITEMS_TTL_S: Final = 3600
#: Entries read at once.
PAGE_ITEMS = 256
#: A stream without a terminal item, which Redis missed while unavailable, expires after a week.
ABANDONED_TTL_S = 7 * 24 * 3600
#: Largest number in an entry id.
NUMBER_MAX = 2**64 - 1
#: The only field of an entry.
FIELD = b"i"

# KEYS[1] is the bus, the others the items' streams. ARGV: items kept, TTL at the end, TTL of an
# abandoned stream; then per item its entry id ("" if transient), "1" if it is terminal, the job id
# and the payload.
_PUBLISH = """
local announced = {}
for i = 2, #KEYS do
  local at = 4 * i - 4
  local id, terminal, job, payload = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local stored = true
  if id ~= '' then
    local reply = redis.pcall('XADD', KEYS[i], 'MAXLEN', '~', ARGV[1], id, 'i', payload)
    if type(reply) == 'table' and reply.err then
      if not string.find(tostring(reply.err), 'equal or smaller', 1, true) then return reply end
      stored = false
    elseif terminal == '1' then
      redis.call('EXPIRE', KEYS[i], ARGV[2])
    elseif string.sub(id, -2) == '-0' then
      redis.call('EXPIRE', KEYS[i], ARGV[3])
    end
  end
  if stored then announced[#announced + 1] = job .. ' ' .. payload end
end
if #announced > 0 then redis.call('PUBLISH', KEYS[1], table.concat(announced, '\\n')) end
return #announced
"""


class RedisItemSink:
    """``domain.job.ports.ItemSink``: one script call publishes a whole engine step.

    Args:
        items_max: Items kept per job, approximately.
        ttl_s: How long a stream is kept after its terminal item, in seconds.
    """

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        *,
        items_max: int = ITEMS_MAX,
        ttl_s: int = ITEMS_TTL_S,
    ) -> None:
        self._keys = keys
        self._limits = (str(items_max), str(ttl_s), str(ABANDONED_TTL_S))
        self._publish: Callable[..., Any] = client.register_script(_PUBLISH)

    def publish(self, items: Sequence[tuple[JobId, StreamItem]]) -> None:
        """Store the numbered items and announce the stored ones, in one round trip."""
        if not items:
            return
        names: list[str] = [self._keys.bus]
        arguments: list[str | bytes] = [*self._limits]
        for job_id, item in items:
            names.append(self._keys.items(job_id))
            arguments += (
                "" if item.n is None else entry_id(item.attempt, item.n),
                "1" if item.is_terminal else "0",
                job_id,
                encode_item(item),
            )
        with broker_errors():
            self._publish(keys=names, args=arguments)


class RedisItemBacklog:
    """``domain.job.ports.ItemBacklog``."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def require_writable(self) -> None:
        """Write a key that expires at once; Redis refuses it whenever it refuses an item."""
        with broker_errors():
            self._client.set(self._keys.probe, b"", px=1)

    def forget(self, job_id: JobId, *, through: int) -> None:
        """Empty a stream; its last id is above every id of the attempts up to ``through``."""
        key, last = self._keys.items(job_id), f"{through}-{NUMBER_MAX}"
        with broker_errors():
            pipeline = self._client.pipeline(transaction=True)
            pipeline.delete(key)
            pipeline.xadd(key, {FIELD: b""}, id=last)
            pipeline.xtrim(key, maxlen=0, approximate=False)
            pipeline.expire(key, ABANDONED_TTL_S)
            pipeline.execute()

    def read(self, job_id: JobId, *, after: int = -1) -> tuple[StreamItem, ...]:
        """Return the stored items above ``after``, without gaps, the first of each number."""
        key, cursor = self._keys.items(job_id), b"-"
        found: list[StreamItem] = []
        while True:
            with broker_errors():
                entries: Any = self._client.xrange(key, min=cursor, count=PAGE_ITEMS)
            found += (item for _, item in decode_entries(entries))
            if len(entries) < PAGE_ITEMS:
                return tuple(_gapless(found, after))
            cursor = b"(" + entries[-1][0]


def entry_id(attempt: int, n: int) -> str:
    """Return the entry id of an item."""
    assert attempt >= 1, "Redis refuses 0-0"  # noqa: S101 - a contract of the caller
    return f"{attempt}-{n}"


def decode_entries(entries: Sequence[Any]) -> list[tuple[int, StreamItem]]:
    """Return the items of an ``XRANGE`` reply, each with its size in bytes."""
    decoded: list[tuple[int, StreamItem]] = []
    for _, fields in entries:
        payload = fields[FIELD]
        decoded.append((len(payload), decode_item(payload)))
    return decoded


def decode_announcement(
    packed: bytes, wanted: Callable[[JobId], bool]
) -> Iterator[tuple[JobId, int, StreamItem]]:
    """Yield job, size in bytes and item of each announced item whose job is ``wanted``."""
    # Compact JSON has no line break, so one line is one item.
    for line in packed.split(b"\n"):
        name, _, payload = line.partition(b" ")
        job_id = JobId(name.decode())
        if wanted(job_id):
            yield job_id, len(payload), decode_item(payload)


def _gapless(items: Sequence[StreamItem], after: int) -> Iterator[StreamItem]:
    """Yield the items of the newest epoch with consecutive numbers above ``after``.

    An attempt that found earlier items lost emits all of them again, so numbers may fall back.
    """
    wanted, newest = after + 1, max((item.epoch for item in items), default=1)
    for item in items:
        if item.n == wanted and item.epoch == newest:
            yield item
            wanted += 1


#: Readers that read from the store at once; the others wait.
PAGES_AT_ONCE: Final = 16
#: Pause between two attempts to subscribe, in seconds: the first, and the limit of doubling it.
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
#: How long ``start`` waits for the subscription before it returns without one, in seconds.
START_WAIT_S = 5.0
#: Seconds of silence after which the library checks a subscription.
_POLL_BUS_S: Final = 10.0


class RedisItemHub:
    """``domain.job.ports.ItemSource`` for the event loop that awaits ``start``.

    Args:
        client: Made by ``connect_async``; the hub closes it.

    Attributes:
        on_announced: Called for each announcement, of any job; must return at once.
    """

    def __init__(self, client: redis.asyncio.Redis, keys: Keys) -> None:
        self.on_announced: Callable[[], None] = lambda: None
        self._client = client
        self._keys = keys
        self._readers: dict[JobId, set[ItemReader]] = {}
        self._pages = asyncio.Semaphore(PAGES_AT_ONCE)
        self._subscribed = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None
        self._log = logging.getLogger(__name__)

    async def start(self) -> None:
        """Start listening; retry in the background while the broker is unavailable."""
        self._listening = asyncio.create_task(self._listen_always(), name="item-hub")
        with suppress(TimeoutError):
            await asyncio.wait_for(self._subscribed.wait(), START_WAIT_S)

    async def close(self) -> None:
        """Stop listening; pages cannot be read afterwards."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        await self._client.aclose()

    def register(self, job_id: JobId, reader: ItemReader) -> None:
        """Announce the items of a job to ``reader``."""
        self._readers.setdefault(job_id, set()).add(reader)

    def unregister(self, job_id: JobId, reader: ItemReader) -> None:
        """Announce nothing more to ``reader``; a second call does nothing."""
        readers = self._readers.get(job_id, set())
        readers.discard(reader)
        if not readers:
            self._readers.pop(job_id, None)

    async def read_page(self, job_id: JobId, cursor: tuple[int, int] | None) -> ItemPage:
        """Return the stored entries after ``cursor``, at most ``PAGE_ITEMS``."""
        start = "-" if cursor is None else "(" + entry_id(*cursor)
        async with self._pages:
            with broker_errors():
                entries: Any = await self._client.xrange(
                    self._keys.items(job_id), min=start, count=PAGE_ITEMS
                )
        return ItemPage(decode_entries(entries), is_last=len(entries) < PAGE_ITEMS)

    async def _listen_always(self) -> None:
        pause_s = RETRY_FIRST_S
        while True:
            try:
                await self._listen()
            except (redis.RedisError, OSError) as error:
                if self._subscribed.is_set():
                    self._log.warning("lost the bus, trying again: %s", error)
                    pause_s = RETRY_FIRST_S
                self._subscribed.clear()
                # The readers read the store now, and fail if the broker stays unavailable.
                self._lag_all()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _listen(self) -> None:
        async with self._client.pubsub() as subscription:
            await subscription.subscribe(self._keys.bus)
            while True:
                message: Any = await subscription.get_message(timeout=_POLL_BUS_S)
                if message is None:
                    continue
                if message["type"] == "message":
                    self._deliver(message["data"])
                elif message["type"] == "subscribe":
                    # The library subscribes again after it has reconnected; this message is the
                    # only sign of it.
                    self._subscribed.set()
                    self._lag_all()

    def _deliver(self, packed: bytes) -> None:
        self.on_announced()
        try:
            for job_id, size, item in decode_announcement(packed, self._readers.__contains__):
                for reader in self._readers[job_id]:
                    reader.announced(item, size)
        except (ValueError, KeyError, UnicodeDecodeError):
            self._log.exception("an announcement cannot be decoded")
            self._lag_all()

    def _lag_all(self) -> None:
        for readers in self._readers.values():
            for reader in readers:
                reader.lag()


#: Keys per DEL command.
KEYS_AT_ONCE: Final = 500
#: Longest wait until the append-only file is rewritten, in seconds.
REWRITE_MAX_S: Final = 60.0
_POLL_S: Final = 0.1


class RedisItemEraser:
    """Erases the items of ended jobs.

    Args:
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
            raise QueueUnavailable("the broker cannot rewrite its append-only file; see redis.log")

    def _starts_rewrite(self) -> bool:
        """Start a rewrite; return whether it was not refused, because another one has begun."""
        try:
            self._client.bgrewriteaof()
        except redis.ResponseError:
            return False
        return True
