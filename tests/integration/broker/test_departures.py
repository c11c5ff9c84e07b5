"""A worker whose connections are closed gives its jobs up; one that is only silent keeps them."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import redis

from ops.broker.client import Keys, connect
from ops.broker.departures import DEPARTED_AFTER_S, RESTORED_WITHIN_S, DepartedWorkers
from tests.support.polling import wait_until

#: Holds a connection, and then computes for ever without a command.
_WORKER = """
import sys
from ops.broker.client import connect
client = connect(sys.argv[1], name=sys.argv[2])
client.ping()
while True:
    pass
"""


class Site:
    """A worker ``other``, and one that looks for departed ones at a time of the test's choice."""

    def __init__(self, url: str, keys: Keys, client: redis.Redis) -> None:
        self.now_s = 0.0
        self.keys, self.client = keys, client
        self.other = connect(url, name=keys.connection("other"))
        self.departed = DepartedWorkers(client, keys, "own", now_s=lambda: self.now_s)
        client.zadd(keys.heartbeats, {"own": 10**12, "other": 10**12})
        client.sadd(keys.queues, "interactive")
        self.other.ping()

    @property
    def is_expired(self) -> bool:
        return self.client.zscore(self.keys.heartbeats, "other") == 0

    def end(self) -> None:
        """Close the connections of the other worker, as its end does."""
        self.other.close()
        name = self.keys.connection("other")
        wait_until(lambda: name not in {one["name"] for one in self.client.client_list()})

    def look_for(self, seconds: float) -> None:
        self.departed.look()
        self.now_s += seconds
        self.departed.look()


@pytest.fixture
def site(broker_url: str, keys: Keys, client: redis.Redis) -> Iterator[Site]:
    made = Site(broker_url, keys, client)
    yield made
    made.other.close()


def test_a_worker_that_has_ended_gives_its_jobs_up(site: Site) -> None:
    site.departed.look()
    site.end()
    site.look_for(DEPARTED_AFTER_S / 2)
    assert not site.is_expired
    site.now_s += DEPARTED_AFTER_S / 2
    site.departed.look()
    assert site.is_expired
    assert site.client.llen(site.keys.wakeup("interactive")) == 1


def test_a_worker_that_is_only_silent_keeps_its_jobs(site: Site) -> None:
    site.departed.look()
    site.look_for(3600)
    assert not site.is_expired


def test_a_worker_that_comes_back_keeps_its_jobs(site: Site) -> None:
    site.departed.look()
    site.end()
    site.departed.look()
    site.other.ping()
    site.look_for(DEPARTED_AFTER_S)
    site.end()
    site.departed.look()
    assert not site.is_expired


def test_a_worker_that_was_never_seen_keeps_its_jobs(site: Site) -> None:
    site.end()
    site.look_for(3600)
    assert not site.is_expired


def test_a_stopped_process_keeps_its_jobs_until_it_is_killed(site: Site, broker_url: str) -> None:
    site.other.close()
    name = site.keys.connection("other")
    with subprocess.Popen([sys.executable, "-c", _WORKER, broker_url, name]) as process:
        try:
            wait_until(lambda: name in {one["name"] for one in site.client.client_list()})
            process.send_signal(signal.SIGSTOP)
            site.departed.look()
            site.look_for(3600)
            assert not site.is_expired
        finally:
            process.kill()
        site.end()
        site.look_for(DEPARTED_AFTER_S)
        assert site.is_expired


def test_workers_must_be_seen_again_after_a_start_of_the_broker(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.departed.look()
    site.end()
    info = site.client.info
    monkeypatch.setattr(site.client, "info", lambda part: info(part) | {"run_id": "another"})
    site.look_for(3600)
    assert not site.is_expired


def test_a_worker_waits_until_the_others_have_restored_their_jobs(site: Site) -> None:
    calls: list[str] = []

    def restore_own() -> None:
        calls.append("own")
        site.client.sadd(site.keys.restored, "other")

    for _ in range(2):
        # The time stands still: only the other worker ends the wait, and nothing is restored twice.
        site.departed.restore(restore_own)
    assert calls == ["own"]
    site.client.delete(site.keys.restored)
    site.departed.restore(restore_own)
    assert calls == ["own", "own"]


def test_a_worker_waits_for_no_other_that_restores_nothing(site: Site) -> None:
    clock = itertools.count()
    departed = DepartedWorkers(site.client, site.keys, "own", now_s=lambda: float(next(clock)))
    departed.restore(lambda: None)
    assert next(clock) > RESTORED_WITHIN_S
    site.end()
    site.client.delete(site.keys.restored)
    site.departed.restore(lambda: None)  # the time stands still, and no worker is connected
    assert site.client.smembers(site.keys.restored) == {b"own"}
