"""Readers lose nothing, whatever happens to the bus or to themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.asyncio.connection import AbstractConnection

from api.streaming import feed as job_feed
from api.streaming.feed import BUFFER_BYTES_MAX, BUFFER_ITEMS_MAX
from domain.chat.items import Finished, StreamItem, Text
from domain.errors import QueueUnavailable
from domain.values import JobId, StopReason, Usage
from ops.broker import items as redis_items
from ops.broker.client import Keys, connect, connect_async
from ops.broker.items import RedisItemHub, RedisItemSink
from ops.broker.private_redis import PrivateRedis
from tests.support.builders.feeds import NEVER_S, FeedOfItems, ItemsOfJob
from tests.support.day_and_night import by_day
from tests.support.polling import eventually, scaled, wait_until
from tests.support.processes.brokers import redis_server

JOB = JobId("job-1")
WITHIN_S = 300.0


def text(n: int) -> StreamItem:
    return StreamItem(n=n, attempt=1, body=Text(text=f"word {n} ", ids=(n,)))


def end(n: int) -> StreamItem:
    body = Finished(stop_reason=StopReason.END_TURN, usage=Usage())
    return StreamItem(n=n, attempt=1, body=body)


def run(check: Callable[[], object]) -> None:
    asyncio.run(asyncio.wait_for(check(), scaled(WITHIN_S)))  # type: ignore[arg-type]  # a coroutine function


@asynccontextmanager
async def started_feed(
    url: str, keys: Keys, *, look_s: float = NEVER_S
) -> AsyncIterator[FeedOfItems]:
    hub = RedisItemHub(connect_async(url), keys)
    await hub.start()
    try:
        yield FeedOfItems(hub, look_s=look_s)
    finally:
        await hub.close()


def hub_of(feed: FeedOfItems) -> RedisItemHub:
    assert isinstance(feed.source, RedisItemHub)
    return feed.source


@pytest.fixture
def sink(client: redis.Redis, keys: Keys) -> RedisItemSink:
    return RedisItemSink(client, keys, items_max=200_000, ttl_s=60)


def publish_many(sink: RedisItemSink, count: int, *, per_call: int = 50) -> None:
    for first in range(0, count, per_call):
        sink.publish([(JOB, text(n)) for n in range(first, min(first + per_call, count))])
    sink.publish([(JOB, end(count))])


async def numbers(reader: ItemsOfJob) -> list[int | None]:
    return [item.n async for item in reader]


def test_killed_subscriptions_cost_neither_an_item_nor_the_order(
    redis_url: str, keys: Keys
) -> None:
    publisher, killer = connect(redis_url), connect(redis_url)
    sink = RedisItemSink(publisher, keys, items_max=200_000, ttl_s=60)
    count = 4000
    kills = 0

    def kill_subscription() -> None:
        # A lost subscription needs its time to come back; before, there is nothing to kill.
        nonlocal kills
        wait_until(lambda: killer.client_kill_filter(_type="pubsub") > 0)
        kills += 1

    def publish_and_kill() -> None:
        for n in range(count):
            sink.publish([(JOB, text(n))])
            if n % 200 == 100:
                kill_subscription()
        sink.publish([(JOB, end(count))])

    async def check() -> None:
        async with started_feed(redis_url, keys) as feed:
            readers = [feed.follow(JOB) for _ in range(5)]
            published = asyncio.create_task(asyncio.to_thread(publish_and_kill))
            for got in await asyncio.gather(*(numbers(reader) for reader in readers)):
                assert got == list(range(count + 1))
            await published
            assert kills == count // 200

    run(check)
    publisher.close()
    killer.close()


@pytest.mark.parametrize(
    "broker_url", ["valkey", pytest.param("redis", marks=pytest.mark.nightly)], indirect=True
)
def test_reader_that_stops_for_many_items_gets_them_all_and_memory_stays_bounded(
    broker_url: str, keys: Keys, sink: RedisItemSink
) -> None:
    count = by_day(20_000, night=50_000)  # the buffer holds 1,024

    async def check() -> None:
        async with started_feed(broker_url, keys) as feed:
            sleeper, awake = feed.follow(JOB), feed.follow(JOB)
            sink.publish([(JOB, text(0))])
            assert (await anext(sleeper)).n == 0
            published = asyncio.create_task(
                asyncio.to_thread(publish_many, sink, count, per_call=200)
            )
            assert await numbers(awake) == list(range(count + 1))
            await published
            assert len(sleeper.job._merge.items) <= BUFFER_ITEMS_MAX
            assert sleeper.job._merge._bytes <= BUFFER_BYTES_MAX
            assert await numbers(sleeper) == list(range(1, count + 1))

    run(check)


def test_hub_decodes_nothing_for_jobs_without_a_reader(
    broker_url: str, keys: Keys, client: redis.Redis, sink: RedisItemSink
) -> None:
    async def check() -> None:
        async with started_feed(broker_url, keys) as feed:
            reader = feed.follow(JOB)
            # An item that could not be decoded shows that it is not tried.
            client.publish(keys.bus, "job-2 no item")
            sink.publish([(JOB, text(0)), (JOB, end(1))])
            assert await numbers(reader) == [0, 1]

    run(check)


def test_foreign_words_on_the_bus_are_survived(
    broker_url: str, keys: Keys, client: redis.Redis, sink: RedisItemSink
) -> None:
    async def check() -> None:
        async with started_feed(broker_url, keys) as feed:
            reader = feed.follow(JOB)
            for words in (b"\xff\xfe", f"{JOB} {{}}".encode(), f"{JOB} [1]".encode(), b""):
                client.publish(keys.bus, words)
            sink.publish([(JOB, text(0)), (JOB, end(1))])
            assert await numbers(reader) == [0, 1]

    run(check)


def test_announcement_lost_in_silence_is_found_by_looking_again(
    broker_url: str, keys: Keys, client: redis.Redis
) -> None:
    # Stored under our keys, announced on a bus that nobody hears.
    mute = Keys(f"{keys.prefix}-mute")
    sink = RedisItemSink(client, mute, items_max=1000, ttl_s=60)

    async def check() -> None:
        async with started_feed(broker_url, keys) as feed:
            reader = feed.follow(JOB)
            waiting = asyncio.create_task(numbers(reader))
            sink.publish([(JOB, text(0)), (JOB, end(1))])
            client.copy(mute.items(JOB), keys.items(JOB))
            assert await waiting == [0, 1]

    run(check)


def test_answer_that_lost_items_for_good_ends_in_an_error_and_does_not_hang(
    broker_url: str, keys: Keys, client: redis.Redis, sink: RedisItemSink
) -> None:
    async def check() -> None:
        sink.publish([(JOB, text(0)), (JOB, text(1))])
        client.delete(keys.items(JOB))
        sink.publish([(JOB, text(2)), (JOB, end(3))])
        async with started_feed(broker_url, keys) as feed:
            with pytest.raises(QueueUnavailable, match="lost items"):
                await numbers(feed.follow(JOB))

    run(check)


def test_closed_readers_leave_nothing_behind(broker_url: str, keys: Keys) -> None:
    async def check() -> None:
        async with started_feed(broker_url, keys) as feed:
            readers = [feed.follow(JobId(f"job-{n}")) for n in range(20)]
            for reader in readers:
                await reader.aclose()
                await reader.aclose()
            assert not hub_of(feed)._readers

    run(check)


@pytest.fixture
def own_redis(tmp_path: Path, short_tmp: Path) -> Iterator[PrivateRedis]:
    server = PrivateRedis(
        redis_server(), directory=tmp_path / "redis", socket=short_tmp / "own.sock"
    )
    server.start()
    yield server
    server.stop()


def test_broker_that_dies_and_comes_back_in_mid_stream_is_only_a_pause(
    own_redis: PrivateRedis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How long a broker may be away is another test's; here it comes back, however late.
    monkeypatch.setattr(job_feed, "UNREACHABLE_MAX_S", WITHIN_S)
    client = connect(own_redis.url)
    sink = RedisItemSink(client, keys, items_max=1000, ttl_s=60)

    async def check() -> None:
        async with started_feed(own_redis.url, keys) as feed:
            reader = feed.follow(JOB)
            sink.publish([(JOB, text(0)), (JOB, text(1))])
            assert [(await anext(reader)).n, (await anext(reader)).n] == [0, 1]
            rest = asyncio.create_task(numbers(reader))
            await asyncio.to_thread(own_redis.stop)
            await asyncio.to_thread(own_redis.start)
            sink.publish([(JOB, text(2)), (JOB, end(3))])
            assert await rest == [2, 3]

    run(check)
    client.close()


def test_broker_that_stays_away_is_named_so(
    own_redis: PrivateRedis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_feed, "UNREACHABLE_MAX_S", 0.3)

    async def check() -> None:
        async with started_feed(own_redis.url, keys) as feed:
            waiting = asyncio.create_task(numbers(feed.follow(JOB)))
            await eventually(lambda: hub_of(feed)._readers)
            await asyncio.to_thread(own_redis.stop)
            with pytest.raises(QueueUnavailable):
                await waiting
            assert not hub_of(feed)._subscribed.is_set()

    run(check)


def test_hub_that_starts_before_its_broker_finds_it_later(
    tmp_path: Path, short_tmp: Path, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_items, "START_WAIT_S", 0.1)
    server = PrivateRedis(
        redis_server(), directory=tmp_path / "late", socket=short_tmp / "late.sock"
    )

    async def check() -> None:
        async with started_feed(server.url, keys) as feed:
            reader = feed.follow(JOB)
            waiting = asyncio.create_task(numbers(reader))
            await eventually(lambda: hub_of(feed)._readers)
            # Here, not in a thread of its own: Linux ends the server with the thread that began it.
            server.start()
            client = connect(server.url)
            RedisItemSink(client, keys, items_max=1000, ttl_s=60).publish([(JOB, end(0))])
            client.close()
            assert await waiting == [0]

    run(check)
    server.stop()


def test_reader_that_is_cancelled_just_as_its_question_is_sent_ends(
    broker_url: str, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = AbstractConnection._send_packed_command

    async def check() -> None:
        async with started_feed(broker_url, keys) as feed:
            reader = feed.follow(JOB)
            waiting = asyncio.create_task(anext(reader))

            async def send_and_cancel(connection: AbstractConnection, command: Any) -> None:
                await send(connection, command)
                waiting.cancel()

            monkeypatch.setattr(AbstractConnection, "_send_packed_command", send_and_cancel)
            await asyncio.wait([waiting])
            monkeypatch.undo()
            assert waiting.cancelled()

    run(check)
