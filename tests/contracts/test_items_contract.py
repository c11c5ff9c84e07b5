"""``ItemSink``, ``ItemBacklog``, and a feed of ``ItemSource``, on the fake and on both brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import pytest

from domain.chat.items import Failed, Finished, Progress, Started, StreamItem, Text
from domain.job.ports import ItemBacklog, ItemSink
from domain.values import JobId, StopReason, Usage
from ops.broker.client import Keys, connect, connect_async
from ops.broker.items import RedisItemBacklog, RedisItemHub, RedisItemSink
from tests.support.builders.feeds import FeedOfItems
from tests.support.fakes.broker import FakeItems
from tests.support.polling import eventually, let_tasks_run, scaled

JOB = JobId("job-1")
WITHIN_S = 60.0


@dataclass
class Wire:
    sink: ItemSink
    backlog: ItemBacklog
    source: FeedOfItems

    def publish(self, *items: StreamItem, job: JobId = JOB) -> None:
        self.sink.publish([(job, item) for item in items])


Open = Callable[[], Awaitable[Wire]]
Check = Callable[[Wire], Awaitable[None]]
RunOnWire = Callable[[Check], None]


@pytest.fixture(params=["fake", "valkey", "redis"])
def run_on_wire(request: pytest.FixtureRequest, keys: Keys) -> RunOnWire:
    kind = request.param
    url = "" if kind == "fake" else str(request.getfixturevalue(f"{kind}_url"))

    async def run(check: Check) -> None:
        async with AsyncExitStack() as stack:
            wire = _fake() if kind == "fake" else await _real(url, keys, stack)
            await asyncio.wait_for(check(wire), scaled(WITHIN_S))

    return lambda check: asyncio.run(run(check))


def _fake() -> Wire:
    items = FakeItems()
    return Wire(items, items, FeedOfItems(items))


async def _real(url: str, keys: Keys, stack: AsyncExitStack) -> Wire:
    client = connect(url)
    stack.callback(client.close)
    hub = RedisItemHub(connect_async(url), keys)
    await hub.start()
    stack.push_async_callback(hub.close)
    sink = RedisItemSink(client, keys, items_max=1000, ttl_s=60)
    return Wire(sink, RedisItemBacklog(client, keys), FeedOfItems(hub))


def text(n: int, attempt: int = 1, words: str = "") -> StreamItem:
    return StreamItem(n=n, attempt=attempt, body=Text(text=words or f"<{n}>\n", ids=(n,)))


def end(n: int, attempt: int = 1) -> StreamItem:
    return StreamItem(
        n=n, attempt=attempt, body=Finished(stop_reason=StopReason.END_TURN, usage=Usage())
    )


def numbers(items: Any) -> list[int | None]:
    return [item.n for item in items]


async def everything(source: FeedOfItems, *, after: int = -1) -> list[StreamItem]:
    return [item async for item in source.follow(JOB, after=after)]


def test_published_items_are_read_back_as_they_were(run_on_wire: RunOnWire) -> None:
    items = (
        StreamItem(n=0, attempt=1, body=Started(prompt_tokens=3, cached_tokens=0)),
        text(1, words="line\nbreak \x00 \u2028 \U0001f600 \ud800"),
        StreamItem(n=2, attempt=1, body=Failed(error="failure", message="ä", retryable=True)),
    )

    async def check(wire: Wire) -> None:
        reader = wire.source.follow(JOB)
        wire.publish(*items)
        assert wire.backlog.read(JOB) == items
        assert wire.backlog.read(JOB, after=1) == items[2:]
        assert [item async for item in reader] == list(items)

    run_on_wire(check)


def test_nothing_published_reads_as_nothing(run_on_wire: RunOnWire) -> None:
    async def check(wire: Wire) -> None:
        wire.sink.publish([])
        assert wire.backlog.read(JOB) == ()

    run_on_wire(check)


def test_broker_that_takes_writes_is_writable_and_stores_nothing_for_it(
    run_on_wire: RunOnWire,
) -> None:
    async def check(wire: Wire) -> None:
        wire.backlog.require_writable()
        assert wire.backlog.read(JOB) == ()

    run_on_wire(check)


def test_items_of_many_jobs_go_out_together_and_arrive_apart(run_on_wire: RunOnWire) -> None:
    async def check(wire: Wire) -> None:
        other = JobId("job-2")
        mine, theirs = wire.source.follow(JOB), wire.source.follow(other)
        wire.sink.publish([(JOB, text(0)), (other, text(0)), (JOB, end(1)), (other, end(1))])
        assert numbers([item async for item in mine]) == [0, 1]
        assert numbers([item async for item in theirs]) == [0, 1]

    run_on_wire(check)


def test_repeated_number_of_one_attempt_is_dropped_and_its_neighbours_are_kept(
    run_on_wire: RunOnWire,
) -> None:
    async def check(wire: Wire) -> None:
        wire.publish(text(0), text(1))
        wire.publish(text(1, words="again"), text(2))
        assert wire.backlog.read(JOB) == (text(0), text(1), text(2))

    run_on_wire(check)


def test_number_emitted_again_by_a_newer_attempt_counts_once(run_on_wire: RunOnWire) -> None:
    async def check(wire: Wire) -> None:
        reader = wire.source.follow(JOB)
        wire.publish(text(0), text(1))
        wire.publish(text(1, 2), text(2, 2), end(3, 2))
        assert wire.backlog.read(JOB) == (text(0), text(1), text(2, 2), end(3, 2))
        assert [item async for item in reader] == [text(0), text(1), text(2, 2), end(3, 2)]

    run_on_wire(check)


def test_items_of_an_older_attempt_are_neither_stored_nor_announced(run_on_wire: RunOnWire) -> None:
    async def check(wire: Wire) -> None:
        reader = wire.source.follow(JOB)
        wire.publish(text(0), text(1, 2))
        wire.publish(text(2, words="zombie"), end(3))
        wire.publish(text(2, 2), end(3, 2))
        assert [item async for item in reader] == [text(0), text(1, 2), text(2, 2), end(3, 2)]
        assert wire.backlog.read(JOB) == (text(0), text(1, 2), text(2, 2), end(3, 2))

    run_on_wire(check)


def test_transient_item_reaches_a_waiting_reader_and_is_not_stored(run_on_wire: RunOnWire) -> None:
    progress = StreamItem(n=None, attempt=1, body=Progress(phase="prefill", done=1, total=2))

    async def check(wire: Wire) -> None:
        reader = wire.source.follow(JOB)
        wire.publish(text(0))
        assert await anext(reader) == text(0)
        waiting = asyncio.ensure_future(anext(reader))

        # It is not stored, so it is published until the waiting reader receives it.
        def has_come() -> bool:
            wire.publish(progress)
            return waiting.done()

        await eventually(has_come)
        assert await waiting == progress
        assert wire.backlog.read(JOB) == (text(0),)
        await reader.aclose()

    run_on_wire(check)


@pytest.mark.parametrize("after", [-1, 0, 4, 9])
def test_late_reader_gets_what_is_above_its_number(run_on_wire: RunOnWire, after: int) -> None:
    async def check(wire: Wire) -> None:
        wire.publish(*(text(n) for n in range(9)), end(9))
        if after == 9:
            assert wire.backlog.read(JOB, after=after) == ()
            return
        wanted = list(range(after + 1, 10))
        assert numbers(await everything(wire.source, after=after)) == wanted
        assert numbers(wire.backlog.read(JOB, after=after)) == wanted

    run_on_wire(check)


def test_reader_that_joins_between_two_items_misses_none(run_on_wire: RunOnWire) -> None:
    async def check(wire: Wire) -> None:
        readers = []
        for n in range(20):
            readers.append(wire.source.follow(JOB))
            wire.publish(text(n))
        wire.publish(end(20))
        for reader in readers:
            assert numbers([item async for item in reader]) == list(range(21))

    run_on_wire(check)


def test_more_items_than_a_page_are_read_in_order(run_on_wire: RunOnWire) -> None:
    async def check(wire: Wire) -> None:
        for first in range(0, 700, 100):
            wire.publish(*(text(n) for n in range(first, first + 100)))
        wire.publish(end(700))
        assert numbers(wire.backlog.read(JOB)) == list(range(701))
        assert numbers(await everything(wire.source)) == list(range(701))

    run_on_wire(check)


def test_closed_reader_gets_nothing_more(run_on_wire: RunOnWire) -> None:
    async def check(wire: Wire) -> None:
        closed, reader = wire.source.follow(JOB), wire.source.follow(JOB)
        await closed.aclose()
        wire.publish(text(0), end(1))
        assert numbers([item async for item in reader]) == [0, 1]
        assert await closed.job.batch(0) == []

    run_on_wire(check)


def test_cancelled_wait_loses_no_item(run_on_wire: RunOnWire) -> None:
    async def check(wire: Wire) -> None:
        reader = wire.source.follow(JOB)
        wire.publish(text(0))
        assert await anext(reader) == text(0)
        waiting = asyncio.ensure_future(anext(reader))
        await let_tasks_run()
        waiting.cancel()
        await asyncio.wait([waiting])
        wire.publish(text(1), end(2))
        assert numbers([item async for item in reader]) == [1, 2]

    run_on_wire(check)


def test_epoch_that_begins_replaces_the_one_before(run_on_wire: RunOnWire) -> None:
    def of_second(item: StreamItem) -> StreamItem:
        return replace(item, attempt=2, epoch=2)

    async def check(wire: Wire) -> None:
        reader = wire.source.follow(JOB)
        late = wire.source.follow(JOB, after=1)
        wire.publish(text(0), text(1))
        assert numbers([await anext(reader), await anext(reader)]) == [0, 1]
        wire.publish(of_second(text(0)), of_second(text(1)), of_second(end(2)))
        expected = [of_second(text(0)), of_second(text(1)), of_second(end(2))]
        assert [item async for item in reader] == expected
        assert [item async for item in late] == expected
        assert wire.backlog.read(JOB) == tuple(expected)
        resumed = wire.source.follow(JOB, after=0, epoch=2)
        assert [item async for item in resumed] == expected[1:]

    run_on_wire(check)


def test_forgotten_items_leave_room_for_a_new_beginning(run_on_wire: RunOnWire) -> None:
    async def check(wire: Wire) -> None:
        early = wire.source.follow(JOB)
        wire.publish(text(0), text(1), end(2))
        assert numbers([item async for item in early]) == [0, 1, 2]
        wire.backlog.forget(JOB, through=1)
        assert wire.backlog.read(JOB) == ()
        wire.backlog.forget(JOB, through=1)
        wire.publish(text(0), end(7))
        assert wire.backlog.read(JOB) == ()
        reader = wire.source.follow(JOB)
        wire.publish(text(0, attempt=2), end(1, attempt=2))
        assert [item async for item in reader] == [text(0, attempt=2), end(1, attempt=2)]

    run_on_wire(check)
