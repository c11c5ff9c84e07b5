"""Requests that are prepared at the same time."""

from __future__ import annotations

import threading

import pytest

from tests.support.polling import scaled, wait_until
from worker.engine.scheduling.request_gate import RequestGate


class Preparation:
    """A thread that holds a payload until it is ended."""

    def __init__(self, gate: RequestGate, size: int) -> None:
        self.has_read = False
        self.is_in = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(gate, size))
        self._thread.start()

    def _run(self, gate: RequestGate, size: int) -> None:
        def read() -> bytes:
            self.has_read = True
            return bytes(size)

        with gate.read(read) as payload:
            assert len(payload) == size
            self.is_in.set()
            assert self._end.wait(scaled(60))

    def end(self) -> None:
        self._end.set()
        self._thread.join(scaled(60))


def test_small_requests_run_together_and_others_wait_for_room() -> None:
    gate = RequestGate(bytes_max=10)
    first, second = Preparation(gate, 4), Preparation(gate, 6)
    assert first.is_in.wait(scaled(60))
    assert second.is_in.wait(scaled(60))
    third = Preparation(gate, 1)
    wait_until(lambda: third.has_read)
    fourth = Preparation(gate, 1)
    assert not third.is_in.is_set()
    assert not fourth.has_read
    first.end()
    assert third.is_in.wait(scaled(60))
    assert fourth.is_in.wait(scaled(60))
    for one in (second, third, fourth):
        one.end()


def test_a_request_larger_than_the_room_is_prepared_alone() -> None:
    gate = RequestGate(bytes_max=10)
    small = Preparation(gate, 1)
    assert small.is_in.wait(scaled(60))
    large = Preparation(gate, 100)
    wait_until(lambda: large.has_read)
    assert not large.is_in.is_set()
    small.end()
    assert large.is_in.wait(scaled(60))
    large.end()


def test_a_failed_preparation_gives_its_room_back() -> None:
    gate = RequestGate(bytes_max=10)
    with pytest.raises(KeyError), gate.read(lambda: bytes(10)):
        _fail()
    with gate.read(lambda: bytes(10)) as payload:
        assert len(payload) == 10


def test_a_failed_read_takes_no_room() -> None:
    gate = RequestGate(bytes_max=10)
    with pytest.raises(KeyError), gate.read(_fail):
        pytest.fail("there is no payload")
    with gate.read(lambda: bytes(10)) as payload:
        assert len(payload) == 10


def _fail() -> bytes:
    raise KeyError
