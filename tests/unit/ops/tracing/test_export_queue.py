"""The queue of spans: it never blocks, it is bounded, and a bad receiver costs one log line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from domain.log.trace import new_trace
from ops.tracing.export_queue import SpanQueue
from ops.tracing.span import Span
from tests.support.polling import scaled

PATIENCE_S = 60.0


class Receiver:
    """Takes batches while it is open; ``fails`` makes it refuse them."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.fails = False
        self.raises = False
        self.taken: list[Span] = []
        self.batches = 0
        self._changed = threading.Condition()

    def send(self, spans: Sequence[Span]) -> bool:
        self.entered.set()
        assert self.open.wait(scaled(PATIENCE_S))
        with self._changed:
            self.batches += 1
            if not (self.fails or self.raises):
                self.taken += spans
            self._changed.notify_all()
        if self.raises:
            raise RuntimeError("a defect")
        return not self.fails

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, scaled(PATIENCE_S))


def span(name: str = "x") -> Span:
    trace = new_trace(sampled=True)
    return Span(name=name, context=trace, parent_id=None, start_ns=1, end_ns=2)


@contextmanager
def queue(receiver: Receiver, *, spans_max: int = 100, ratio: float = 1.0) -> Iterator[SpanQueue]:
    logger = structlog.stdlib.get_logger()
    made = SpanQueue(receiver.send, logger, sample_ratio=ratio, spans_max=spans_max, linger_s=0.001)
    try:
        yield made
    finally:
        receiver.open.set()
        made.close()


def test_spans_arrive_in_their_order() -> None:
    receiver = Receiver()
    with queue(receiver) as spans:
        for number in range(10):
            spans.put(span(str(number)))
        receiver.wait_for(lambda: len(receiver.taken) == 10)
    assert [one.name for one in receiver.taken] == [str(number) for number in range(10)]
    assert spans.dropped == 0


def test_a_receiver_that_hangs_blocks_nobody_and_costs_what_does_not_fit() -> None:
    receiver = Receiver()
    receiver.open.clear()
    with queue(receiver, spans_max=5) as spans:
        spans.put(span("first"))
        assert receiver.entered.wait(PATIENCE_S)
        for number in range(20):
            spans.put(span(str(number)))
        assert spans.dropped == 15
    assert [one.name for one in receiver.taken] == ["first", "0", "1", "2", "3", "4"]


@pytest.mark.parametrize("raises", [False, True])
def test_a_bad_receiver_costs_one_line_and_another_when_it_is_back(*, raises: bool) -> None:
    receiver = Receiver()
    receiver.raises, receiver.fails = raises, not raises
    with capture_logs() as lines, queue(receiver) as spans:
        for count in range(1, 4):
            spans.put(span())
            receiver.wait_for(lambda count=count: receiver.batches == count)  # type: ignore[misc]
        receiver.raises = receiver.fails = False
        spans.put(span("back"))
        receiver.wait_for(lambda: bool(receiver.taken))
    events = [line["event"] for line in lines]
    assert events == ["traces_not_exported", "traces_exported_again", "spans_dropped"]
    assert lines[1]["spans_dropped"] == lines[2]["spans"] == 3


def test_what_waits_is_exported_at_the_end_and_later_spans_are_dropped() -> None:
    receiver = Receiver()
    with queue(receiver) as spans:
        spans.put(span("last"))
    spans.put(span("late"))
    assert [one.name for one in receiver.taken] == ["last"]
    assert spans.dropped == 1


@given(st.integers(1, 2**128 - 1))
def test_a_ratio_of_one_samples_all_and_of_zero_none(number: int) -> None:
    trace_id = f"{number:032x}"
    receiver = Receiver()
    with queue(receiver) as every, queue(receiver, ratio=0.0) as none:
        assert every.samples(trace_id)
        assert not none.samples(trace_id)


def test_a_ratio_samples_that_part_of_the_traces() -> None:
    with queue(Receiver(), ratio=0.25) as spans:
        ids = [f"{number << 48:032x}" for number in range(256)]
        assert sum(map(spans.samples, ids)) == 64
