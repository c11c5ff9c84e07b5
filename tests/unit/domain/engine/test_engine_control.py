"""Changes by operators through the log: concurrent writers, lost signals, a log that is away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from domain.engine.control import ENGINE_STREAM, AdmissionState
from domain.engine.operate import EngineControls
from domain.engine.workers import ControlTopic
from domain.errors import Draining, InvalidRequest, LogUnavailable
from domain.events.worker import EngineEvent, EngineTuned
from domain.log.record import Append, Draft, RecordedEvent
from domain.values import Digest, EventId, StreamName
from tests.support.fakes.broker import FakeControlSignals
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.outage import Outage
from tests.support.fakes.time import SequentialIds

BY = "request-1"


class _RacedLog(InMemoryEventLog):
    """Another process appends right before the next append."""

    def __init__(self) -> None:
        super().__init__()
        self.raced_by: EngineEvent | None = None

    def append(
        self,
        stream: StreamName,
        drafts: Sequence[Draft],
        *,
        expected_version: int,
        payloads: Mapping[Digest, bytes] | None = None,
        also: Append | None = None,
    ) -> tuple[RecordedEvent, ...]:
        if self.raced_by is not None:
            event, self.raced_by = self.raced_by, None
            draft = Draft(event_id=EventId("other"), event=event, correlation_id="other")
            super().append(stream, [draft], expected_version=expected_version)
        return super().append(
            stream, drafts, expected_version=expected_version, payloads=payloads, also=also
        )


def _controls(log: InMemoryEventLog, signals: FakeControlSignals | None = None) -> EngineControls:
    return EngineControls(log=log, ids=SequentialIds(), signals=signals or FakeControlSignals())


def test_change_is_seen_by_every_reader_of_the_log() -> None:
    log, signals = InMemoryEventLog(), FakeControlSignals()
    here, there = _controls(log, signals), _controls(log)
    assert there.current().tuned == EngineTuned()
    here.tune(lambda now: replace(now, max_batch_size=2), correlation_id=BY)
    here.tune(lambda now: replace(now, batch_window_ms=0.0), correlation_id=BY)
    assert there.current().tuned == EngineTuned(max_batch_size=2, batch_window_ms=0)
    assert signals.topics == [ControlTopic.ENGINE] * 2
    assert [event.correlation_id for event in log.load(ENGINE_STREAM)] == [BY] * 2


def test_change_that_changes_nothing_appends_nothing() -> None:
    log, signals = InMemoryEventLog(), FakeControlSignals()
    controls = _controls(log, signals)
    controls.tune(lambda now: now, correlation_id=BY)
    controls.set_admission(AdmissionState.OPEN, correlation_id=BY)
    assert log.load(ENGINE_STREAM) == ()
    assert signals.topics == []


def test_concurrent_changes_of_two_values_both_hold() -> None:
    log = _RacedLog()
    controls = _controls(log)
    log.raced_by = EngineTuned(batch_window_ms=50, max_batch_size=None, gap_max_ms=None)
    after = controls.tune(lambda now: replace(now, max_batch_size=2), correlation_id=BY)
    assert after.tuned == EngineTuned(batch_window_ms=50, max_batch_size=2)


def test_change_holds_although_no_worker_gets_the_signal() -> None:
    outage = Outage()
    controls = _controls(InMemoryEventLog(), FakeControlSignals(outage))
    outage.down = True
    paused = controls.set_admission(AdmissionState.PAUSED, reason="backup", correlation_id=BY)
    assert (paused.admission, paused.reason) == (AdmissionState.PAUSED, "backup")


def test_pause_has_the_instant_and_the_request_that_caused_it() -> None:
    log = InMemoryEventLog()
    paused = _controls(log).set_admission(AdmissionState.PAUSED, correlation_id=BY)
    (recorded,) = log.load(ENGINE_STREAM)
    assert paused.since == recorded.recorded_at
    assert recorded.correlation_id == BY


def test_new_jobs_are_refused_while_the_service_drains_only() -> None:
    controls = _controls(InMemoryEventLog())
    for state in (AdmissionState.OPEN, AdmissionState.PAUSED):
        controls.set_admission(state, correlation_id=BY)
        controls.require_admission()
    controls.set_admission(AdmissionState.DRAINING, correlation_id=BY)
    with pytest.raises(Draining, match="resume"):
        controls.require_admission()


def test_refused_value_appends_nothing() -> None:
    log = InMemoryEventLog()
    with pytest.raises(InvalidRequest):
        _controls(log).tune(lambda now: replace(now, max_batch_size=0), correlation_id=BY)
    assert log.load(ENGINE_STREAM) == ()


def test_log_that_is_away_is_named_so() -> None:
    log = InMemoryEventLog()
    controls = _controls(log)
    log.unavailable = True
    with pytest.raises(LogUnavailable):
        controls.set_admission(AdmissionState.PAUSED, correlation_id=BY)
