"""``BlockPlaces``, on the fake, on fakeredis and on both brokers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
import redis

from domain.engine.workers import WorkerPulse
from domain.errors import QueueUnavailable
from domain.kv.hashing import BlockHash
from domain.kv.places import BlockPlaces, FoundBlocks
from domain.values import JobId, ModelCard, WorkerId
from ops.broker.client import BrokerClient, Keys, connect
from ops.broker.control import ControlListener
from ops.broker.worker_requests import BlockAnswers, RedisBlockPlaces
from tests.support.fakes.broker import FakeBlockPlaces, FakeWorkerPulses
from tests.support.polling import scaled
from tests.support.processes.brokers import client_of

WAIT_S = 30.0
CARD = ModelCard(
    id="m", fingerprint="f", context_length=9, description="", created_at="2026-01-01T00:00:00Z"
)
NAMES = [BlockHash(bytes([n]) * 32) for n in range(1, 5)]


@dataclass
class Blocks:
    """The blocks of a worker."""

    memory: set[BlockHash]
    disk: set[BlockHash]

    def find_blocks(self, names: Sequence[BlockHash]) -> tuple[list[bool], list[bool]]:
        return [name in self.memory for name in names], [name in self.disk for name in names]

    def forget_blocks(self, names: Sequence[BlockHash]) -> None:
        self.memory.difference_update(names)
        self.disk.difference_update(names)


def _workers() -> dict[WorkerId, Blocks]:
    return {
        WorkerId("w-1"): Blocks({NAMES[0]}, {NAMES[0], NAMES[1]}),
        WorkerId("w-2"): Blocks(set(), {NAMES[2]}),
    }


def _pulse(worker: WorkerId, card: ModelCard | None = CARD) -> WorkerPulse:
    return WorkerPulse(worker=worker, pid=1, state="ready" if card else "loading", model=card)


@pytest.fixture(params=["fake", "fakeredis", "valkey", "redis"])
def places(request: pytest.FixtureRequest, keys: Keys) -> Iterator[BlockPlaces]:
    workers = _workers()
    if request.param == "fake":
        fake = FakeBlockPlaces()
        fake.memory = {worker: blocks.memory for worker, blocks in workers.items()}
        fake.disk = {worker: blocks.disk for worker, blocks in workers.items()}
        yield fake
        return
    client = client_of(request, request.param)
    pulses = FakeWorkerPulses()
    pulses.beat(_pulse(WorkerId("loading"), None))
    with ExitStack() as stack:
        stack.callback(client.close)
        for worker, blocks in workers.items():
            pulses.beat(_pulse(worker))
            answers = BlockAnswers(client, keys, worker=worker, blocks=blocks)
            _listen(stack, client, keys, answers)
        yield RedisBlockPlaces(client, keys, pulses, timeout_s=WAIT_S)


def _listen(stack: ExitStack, client: BrokerClient, keys: Keys, answers: BlockAnswers) -> None:
    listens = threading.Event()
    cancelled: list[JobId] = []
    listener = ControlListener(
        client,
        keys,
        on_cancel=cancelled.append,
        on_listening=listens.set,
        on_blocks=answers.receive,
    )
    stack.enter_context(listener)
    assert listens.wait(scaled(WAIT_S))


def _by_worker(found: Sequence[FoundBlocks]) -> list[FoundBlocks]:
    return sorted(found, key=lambda one: one.worker)


def test_every_worker_names_what_it_has(places: BlockPlaces) -> None:
    assert _by_worker(places.find(NAMES)) == [
        FoundBlocks(
            worker=WorkerId("w-1"),
            in_memory=(True, False, False, False),
            on_disk=(True, True, False, False),
        ),
        FoundBlocks(
            worker=WorkerId("w-2"),
            in_memory=(False, False, False, False),
            on_disk=(False, False, True, False),
        ),
    ]
    assert places.find([]) == ()


def test_forgotten_blocks_are_nowhere(places: BlockPlaces) -> None:
    assert places.forget(NAMES[:3]) == 2
    found = places.find(NAMES)
    assert not any(flag for one in found for flag in (*one.in_memory, *one.on_disk))
    assert places.forget([]) == 0


def test_a_silent_worker_is_left_out(valkey_url: str, keys: Keys) -> None:
    client = connect(valkey_url)
    pulses = FakeWorkerPulses()
    pulses.beat(_pulse(WorkerId("silent")))
    with ExitStack() as stack:
        stack.callback(client.close)
        assert RedisBlockPlaces(client, keys, pulses, timeout_s=0.05).find(NAMES) == ()
        pulses.fade()
        assert RedisBlockPlaces(client, keys, pulses, timeout_s=WAIT_S).find(NAMES) == ()


def test_a_message_that_cannot_be_parsed_is_refused(valkey_url: str, keys: Keys) -> None:
    client = connect(valkey_url)
    with ExitStack() as stack:
        stack.callback(client.close)
        blocks = Blocks(set(), set())
        answers = BlockAnswers(client, keys, worker=WorkerId("w"), blocks=blocks)
        for names in ("zz", "00", "00" * 32 * 5000):
            with pytest.raises(ValueError, match=r".+"):
                answers.receive({"do": "find", "reply": "r", "names": names})


def test_broker_that_is_away_is_named(keys: Keys) -> None:
    client: redis.Redis = connect("redis://127.0.0.1:1")
    pulses = FakeWorkerPulses()
    pulses.beat(_pulse(WorkerId("w")))
    with ExitStack() as stack:
        stack.callback(client.close)
        with pytest.raises(QueueUnavailable):
            RedisBlockPlaces(client, keys, pulses).find(NAMES)
