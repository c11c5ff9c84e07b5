from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import CorruptLog
from domain.events.event import Event
from domain.log.record import GENESIS_HASH, LogHead, RecordedEvent, chain_hash_of_text, verify_link
from domain.values import EventId, StreamName
from ops.log.row_codec import data_text, link
from tests.support.builders.job_events import draft, submitted, worker_event
from tests.support.builders.job_histories import events

GENESIS = LogHead(position=0, hash=GENESIS_HASH)


def _linked(event: Event, before: LogHead = GENESIS) -> RecordedEvent:
    return link(
        draft(event, event_id="e1"),
        stream=StreamName("job-1"),
        version=1,
        before=before,
        recorded_at="2026-01-01T00:00:00.000000Z",
    )


def test_the_hash_is_sha256_of_the_canonical_json_of_all_other_fields() -> None:
    event = _linked(worker_event("w-é"))
    written_out = (
        '{"causation_id":null,"correlation_id":"req-1","data":{"worker":"w-é"},"event_id":"e1",'
        f'"position":1,"prev_hash":"{GENESIS_HASH}","recorded_at":"2026-01-01T00:00:00.000000Z",'
        '"schema_version":1,"stream":"job-1","type":"WorkerDraining","version":1}'
    )
    assert event.hash == hashlib.sha256(written_out.encode()).hexdigest()


@given(st.lists(events(), min_size=1, max_size=5))
def test_linked_events_verify_and_lead_to_the_last_head(chain: list[Event]) -> None:
    head = GENESIS
    for event in chain:
        recorded = _linked(event, head)
        stored = replace(recorded, data=json.loads(json.dumps(recorded.data)))
        head = verify_link(stored, head)
        assert head.hash == recorded.hash
    assert head.position == len(chain)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("position", 2),
        ("stream", "job-2"),
        ("version", 2),
        ("type", "JobFailed"),
        ("schema_version", 77),
        ("data", {}),
        ("event_id", "e2"),
        ("correlation_id", "other"),
        ("causation_id", "e0"),
        ("recorded_at", "2026-01-01T00:00:00.000001Z"),
        ("prev_hash", "1" * 64),
        ("hash", "1" * 64),
    ],
)
def test_a_change_of_any_field_breaks_the_link(field: str, value: Any) -> None:
    event = replace(_linked(submitted()), **{field: value})
    with pytest.raises(CorruptLog) as caught:
        verify_link(event, GENESIS)
    assert caught.value.position == event.position
    assert str(event.position) in caught.value.message


def test_the_list_of_fields_above_is_complete() -> None:
    marks = test_a_change_of_any_field_breaks_the_link.pytestmark
    assert {name for name, _ in marks[0].args[1]} == _linked(worker_event()).envelope().keys()


def test_an_event_whose_own_hash_was_made_to_fit_breaks_the_next_link() -> None:
    first = _linked(submitted())
    second = _linked(worker_event(), LogHead(position=1, hash=first.hash))
    forged = replace(first, correlation_id="forged")
    forged = replace(forged, hash=forged.computed_hash())

    head = verify_link(forged, GENESIS)
    with pytest.raises(CorruptLog, match="position 2: prev_hash"):
        verify_link(second, head)


def test_a_left_out_event_is_a_gap() -> None:
    second = _linked(worker_event(), LogHead(position=1, hash=GENESIS_HASH))
    with pytest.raises(CorruptLog, match="expected position 1"):
        verify_link(second, GENESIS)


def test_a_value_that_json_cannot_hold_is_not_recorded() -> None:
    event = submitted()
    with pytest.raises(ValueError, match="JSON"):
        _linked(replace(event, sampling=replace(event.sampling, temperature=float("nan"))))


@given(events())
def test_the_hash_of_the_stored_text_is_the_hash_of_the_event(event: Event) -> None:
    recorded = _linked(event)
    values = list(recorded.envelope().values())[:-1]
    values[5] = data_text(recorded)
    if json.loads(values[5]) == recorded.data and "\\ud" not in values[5]:
        assert chain_hash_of_text(values) == recorded.hash


def test_the_hash_of_the_stored_text_covers_the_cause() -> None:
    caused = replace(draft(worker_event(), event_id="e2"), causation_id=EventId("e1"))
    stream, at = StreamName("job-1"), "2026-01-01T00:00:00.000000Z"
    recorded = link(caused, stream=stream, version=1, before=GENESIS, recorded_at=at)
    values = list(recorded.envelope().values())[:-1]
    values[5] = data_text(recorded)
    assert chain_hash_of_text(values) == recorded.hash == recorded.computed_hash()
    assert (
        recorded.hash
        != link(
            draft(worker_event(), event_id="e2"),
            stream=stream,
            version=1,
            before=GENESIS,
            recorded_at=at,
        ).hash
    )


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, "1"), (0, 1.0), (1, b"job-1"), (2, "1"), (4, 1.5), (6, None), (8, 7), (9, 7), (10, None)],
)
def test_a_field_of_another_type_has_no_hash(place: int, value: Any) -> None:
    recorded = _linked(worker_event())
    values = list(recorded.envelope().values())[:-1]
    values[5] = data_text(recorded)
    values[place] = value
    with pytest.raises((TypeError, ValueError)):
        chain_hash_of_text(values)
