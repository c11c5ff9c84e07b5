"""Stream items in Redis: one script per publish, one stream per job.

An entry's id is ``{attempt}-{n}``. Redis refuses an id that is not above the last one, so a newer
attempt excludes the older ones, and a repeated write changes nothing. The script announces only
items that it has stored, so every announced item can be read from the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import redis

from domain.chat.items import StreamItem
from domain.log.codec import decode_item, encode_item
from domain.values import JobId
from ops.adapters.redis.client import Keys, broker_errors

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
        client: Made by ``connect``.
        keys: Key names.
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
