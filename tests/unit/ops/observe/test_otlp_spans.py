"""The export of spans never blocks, is bounded, and logs one line for a bad receiver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from structlog.testing import capture_logs

from domain.log.trace import new_trace
from ops.observe import otlp
from ops.observe.otlp import OtlpSpans
from ops.observe.span import Span
from tests.support.polling import scaled

PATIENCE_S = 60.0


class Receiver(SpanExporter):
    """Takes batches while it is open; ``fails`` makes it refuse them."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.fails = False
        self.raises = False
        self.is_shut = False
        self.taken: list[str] = []
        self.batches = 0
        self._changed = threading.Condition()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        assert self.open.wait(scaled(PATIENCE_S))
        with self._changed:
            self.batches += 1
            if not (self.fails or self.raises):
                self.taken += [one.name for one in spans]
            self._changed.notify_all()
        if self.raises:
            raise RuntimeError("a defect")
        return SpanExportResult.FAILURE if self.fails else SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self.is_shut = True
        self.open.set()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, scaled(PATIENCE_S))


def span(name: str = "x") -> Span:
    trace = new_trace(sampled=True)
    return Span(name=name, context=trace, parent_id=None, start_ns=1, end_ns=2)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SCHEDULE_DELAY", 1), ("MAX_QUEUE_SIZE", 5), ("MAX_EXPORT_BATCH_SIZE", 5)):
        monkeypatch.setenv(f"OTEL_BSP_{name}", str(value))


@contextmanager
def opened(receiver: Receiver, *, ratio: float = 1.0) -> Iterator[OtlpSpans]:
    logger = structlog.stdlib.get_logger()
    made = OtlpSpans(receiver, logger, part="api", version="1", sample_ratio=ratio)
    try:
        yield made
    finally:
        made.close()


def test_spans_arrive_in_their_order() -> None:
    receiver = Receiver()
    with capture_logs() as lines, opened(receiver) as spans:
        for number in range(10):
            spans.put(span(str(number)))
            receiver.wait_for(lambda number=number: len(receiver.taken) == number + 1)  # type: ignore[misc]
    assert receiver.taken == [str(number) for number in range(10)]
    assert lines == []


def test_a_receiver_that_hangs_costs_the_oldest_that_do_not_fit() -> None:
    receiver = Receiver()
    receiver.open.clear()
    with capture_logs() as lines, opened(receiver) as spans:
        spans.put(span("first"))
        assert receiver.entered.wait(scaled(PATIENCE_S))
        for number in range(20):
            spans.put(span(str(number)))
        receiver.open.set()
    assert receiver.taken == ["first", "15", "16", "17", "18", "19"]
    assert [(line["event"], line["spans"]) for line in lines] == [("spans_dropped", 15)]


def test_the_end_interrupts_a_receiver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "CLOSE_S", 0.01)
    receiver = Receiver()
    receiver.open.clear()
    with opened(receiver) as spans:
        spans.put(span())
        assert receiver.entered.wait(scaled(PATIENCE_S))
    assert receiver.is_shut


@pytest.mark.parametrize("raises", [False, True])
def test_a_bad_receiver_costs_one_line_and_another_when_it_is_back(*, raises: bool) -> None:
    receiver = Receiver()
    receiver.raises, receiver.fails = raises, not raises
    with capture_logs() as lines, opened(receiver) as spans:
        for count in range(1, 4):
            spans.put(span())
            receiver.wait_for(lambda count=count: receiver.batches == count)  # type: ignore[misc]
        receiver.raises = receiver.fails = False
        spans.put(span("back"))
        receiver.wait_for(lambda: bool(receiver.taken))
    events = [line["event"] for line in lines]
    assert events == ["traces_not_exported", "traces_exported_again", "spans_dropped"]
    assert lines[1]["spans_dropped"] == lines[2]["spans"] == 3


def test_what_waits_is_exported_at_the_end_and_later_spans_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    receiver = Receiver()
    with opened(receiver) as spans:
        spans.put(span("last"))
    spans.put(span("late"))
    assert receiver.taken == ["last"]


@given(st.integers(1, 2**128 - 1))
def test_a_ratio_of_one_samples_all_and_of_zero_none(number: int) -> None:
    trace_id = f"{number:032x}"
    receiver = Receiver()
    with opened(receiver) as every, opened(receiver, ratio=0.0) as none:
        assert every.samples(trace_id)
        assert not none.samples(trace_id)


def test_a_ratio_samples_that_part_of_the_traces() -> None:
    with opened(Receiver(), ratio=0.25) as spans:
        ids = [f"{number << 48:032x}" for number in range(256)]
        assert sum(map(spans.samples, ids)) == 64
