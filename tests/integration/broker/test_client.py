"""Connections of a client that many threads use."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import redis

from ops.broker.client import BLOCK_MAX_S, COMMANDS_AT_ONCE, Keys, connect
from tests.support.polling import WITHIN_S, scaled, wait_until

#: Milliseconds of work in the server, so that the commands of all threads meet there.
_SLOW = "local sum = 0 for n = 1, 1000000 do sum = sum + n % 7 end return 1"
THREADS = 40


def test_a_burst_of_threads_leaves_few_connections(client: redis.Redis) -> None:
    start = threading.Barrier(THREADS)

    def run(_: int) -> int:
        start.wait(scaled(WITHIN_S))
        return int(client.eval(_SLOW, 0))

    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(run, range(THREADS))) == THREADS
    assert _connections(client) <= COMMANDS_AT_ONCE


def test_commands_that_wait_hold_up_no_others(client: redis.Redis, keys: Keys) -> None:
    before, key, count = _connections(client), keys.release("burst"), COMMANDS_AT_ONCE + 4
    with ThreadPoolExecutor(count) as pool:
        waiting = [pool.submit(client.blpop, [key], timeout=BLOCK_MAX_S) for _ in range(count)]
        wait_until(lambda: _connections(client) >= before + count)
        assert client.ping()
        assert not any(one.done() for one in waiting), "they wait, and the ping did not"
        client.rpush(key, *range(count))
        assert {one.result(scaled(WITHIN_S)) is not None for one in waiting} == {True}


def test_closed_client_leaves_no_connection(client: redis.Redis, broker_url: str) -> None:
    before = _connections(client)
    other = connect(broker_url)
    other.ping()
    other.blpop(["nothing"], timeout=0.01)
    assert _connections(client) == before + 2
    other.close()
    wait_until(lambda: _connections(client) == before)


def _connections(client: redis.Redis) -> int:
    return len(client.client_list())
