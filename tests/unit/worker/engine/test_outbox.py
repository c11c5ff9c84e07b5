"""When items leave: the first and the last at once, those between them together."""

from __future__ import annotations

import pytest

from domain.chat.generation import GenerationTask, PreparedPrompt
from domain.chat.items import Text
from domain.errors import EngineFailure
from domain.values import JobId, Sampling, StopReason
from tests.support.models.engine_probe import CollectingSink
from worker.engine.emitter import Outbox
from worker.engine.output.output_parser import SectionParser
from worker.engine.ports import Admission
from worker.engine.sequence import Handle, Sequence, SequenceTimes
from worker.engine.text_assembler import TextAssembler

INTERVAL_S = 0.02


class _Characters:
    def feed(self, token: int) -> str:
        return chr(token)

    def flush(self) -> str:
        return ""

    def copied(self) -> _Characters:
        return self


@pytest.fixture
def sink() -> CollectingSink:
    return CollectingSink()


@pytest.fixture
def delivered() -> list[Sequence]:
    return []


@pytest.fixture
def outbox(sink: CollectingSink, delivered: list[Sequence]) -> Outbox:
    return Outbox(sink, lambda sequence, _: delivered.append(sequence), interval_s=INTERVAL_S)


def _sequence(name: str) -> Sequence:
    prompt = PreparedPrompt(
        tokens=(1,), cached_tokens=0, cache_source="none", max_tokens=99, sampling=Sampling()
    )
    sequence = Sequence(
        task=GenerationTask(
            job_id=JobId(name), attempt=1, prompt=prompt, emitted=(), first_item=1, stop=()
        ),
        assembler=TextAssembler(_Characters(), SectionParser(None, (), thinking=False)),
        handle=Handle(lambda: None, lambda: None),
        times=SequenceTimes(0.0),
        admission=Admission(tokens=(1,), first_index=0, max_new_tokens=99, sampling=Sampling()),
        context_length=1000,
    )
    sequence.replay_earlier_tokens()
    return sequence


def _add_text(outbox: Outbox, sequence: Sequence, text: str) -> None:
    outbox.add(sequence, sequence.number(Text(text=text, ids=(1,))))


def test_a_first_item_goes_out_at_once_and_those_after_it_together(
    outbox: Outbox, sink: CollectingSink
) -> None:
    sequence = _sequence("job-a")
    for at, text in ((0.000, "a"), (0.005, "b"), (0.010, "c")):
        _add_text(outbox, sequence, text)
        assert outbox.flush(at) == []
    assert [item.n for item in sink.numbered("job-a")] == [1]
    assert outbox.wait_s(0.010) == pytest.approx(INTERVAL_S - 0.010)

    outbox.flush(INTERVAL_S)
    assert [item.n for item in sink.numbered("job-a")] == [1, 2, 3]
    assert (sink.publishes, outbox.wait_s(INTERVAL_S)) == (2, None)


def test_the_first_item_of_another_takes_along_what_waits(
    outbox: Outbox, sink: CollectingSink
) -> None:
    one, other = _sequence("job-a"), _sequence("job-b")
    _add_text(outbox, one, "a")
    outbox.flush(0.0)
    _add_text(outbox, one, "b")
    _add_text(outbox, other, "x")
    outbox.flush(0.001)
    assert len(sink.numbered("job-a")) == 2
    assert len(sink.numbered("job-b")) == 1


def test_an_end_goes_out_at_once(
    outbox: Outbox, sink: CollectingSink, delivered: list[Sequence]
) -> None:
    sequence = _sequence("job-a")
    _add_text(outbox, sequence, "a")
    outbox.flush(0.0)
    _add_text(outbox, sequence, "b")
    outbox.end(sequence, sequence.outcome(0.001, StopReason.END_TURN))
    outbox.flush(0.001)
    assert len(sink.numbered("job-a")) == 2
    assert delivered == [sequence]


def test_without_an_interval_every_flush_publishes(sink: CollectingSink) -> None:
    outbox, sequence = Outbox(sink, lambda *_: None), _sequence("job-a")
    for _ in range(3):
        _add_text(outbox, sequence, "a")
        outbox.flush(0.0)
    assert sink.publishes == 3


def test_broken_sink_is_a_fault_of_the_generation_and_no_outage() -> None:
    class Broken:
        def publish(self, items: object) -> None:
            del items
            message = "cannot be encoded"
            raise ValueError(message)

    outbox, sequence = Outbox(Broken(), lambda *_: None), _sequence("job-a")
    _add_text(outbox, sequence, "a")
    ((failed, failure),) = outbox.flush(0.0)
    assert (failed, failure.error, failure.retryable) == (sequence, EngineFailure.code, True)
    assert outbox.is_empty()
