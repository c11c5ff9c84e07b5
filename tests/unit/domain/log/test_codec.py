from __future__ import annotations

import json
import typing
from typing import Any

import pytest
from hypothesis import given

from domain.chat.items import Body, Finished, Progress, StreamItem, Text
from domain.chat.logprobs import Alternative, TokenLogprob
from domain.chat.request import canonical_json
from domain.engine.workers import AgentQueueState, TurnState
from domain.errors import LogNewer
from domain.events.event import Event
from domain.events.job import JobAttached, JobCancelled, JobSubmitted
from domain.log import codec
from domain.log.codec import (
    decode_event,
    decode_item,
    encode_event,
    encode_item,
    item_from_dict,
    item_to_dict,
    record_from_json,
    record_to_json,
)
from domain.values import JobId, Priority, StopReason, Timings, Usage, WaitingFor
from domain.webhook.delivery import Webhook, WebhookId, WebhookState
from tests.support.builders.job_events import completed, started, submitted
from tests.support.builders.job_histories import events, items


@given(events())
def test_every_event_comes_back_from_json_as_it_was(event: Event) -> None:
    name, version, data = encode_event(event)
    restored = decode_event(name, version, json.loads(canonical_json(data)))
    assert restored == event
    assert type(restored) is type(event)


@given(items())
def test_every_item_comes_back_from_bytes_as_it_was(item: StreamItem) -> None:
    assert decode_item(encode_item(item)) == item


def test_the_strategies_and_the_codec_know_every_type() -> None:
    assert set(codec._EVENT_CLASSES.values()) == set(typing.get_args(Event))
    assert set(codec._BODY_CLASSES.values()) == set(typing.get_args(Body))


def test_an_event_is_plain_json() -> None:
    name, version, data = encode_event(submitted(agent="a"))
    assert (name, version) == ("JobSubmitted", 1)
    assert data["priority"] == "interactive"
    assert type(data["priority"]) is str
    assert data["sampling"]["seed"] == 7


def test_enums_and_nested_values_are_decoded_to_their_types() -> None:
    event = decode_event(*encode_event(submitted()))
    assert isinstance(event, JobSubmitted)
    assert event.priority is Priority.INTERACTIVE
    assert event.sampling == submitted().sampling


LOGPROB = TokenLogprob(0, b"\xff", -0.5, (Alternative(b"a", -0.7),))


@pytest.mark.parametrize(
    "item",
    [
        StreamItem(n=0, attempt=1, body=Text(text="a", ids=(1, 2), logprobs=(LOGPROB,))),
        StreamItem(
            n=None,
            attempt=1,
            body=Progress(phase="queued", done=0, total=2, waiting_for=WaitingFor.MODEL),
        ),
        StreamItem(n=1, attempt=1, body=Progress(phase="prefill", done=0, total=2)),
        StreamItem(n=1, attempt=1, body=Progress(phase="queued", done=0, total=0, model="m")),
        StreamItem(
            n=2,
            attempt=1,
            body=Finished(stop_reason=StopReason.END_TURN, usage=Usage(prompt_tokens=1)),
        ),
    ],
)
def test_values_of_an_item_have_their_types_in_a_new_process(item: StreamItem) -> None:
    codec._dataclass_decoder.cache_clear()
    assert repr(decode_item(encode_item(item))) == repr(item)


@pytest.mark.parametrize(
    "event",
    [
        submitted(agent="a"),
        started(),
        completed(),
        JobCancelled(attempt=1, usage=Usage(), timings=Timings(queued_ms=1.5)),
        JobCancelled(attempt=1, usage=Usage()),
    ],
)
def test_values_of_an_event_have_their_types_in_a_new_process(event: Event) -> None:
    codec._dataclass_decoder.cache_clear()
    name, version, data = encode_event(event)
    assert repr(decode_event(name, version, json.loads(canonical_json(data)))) == repr(event)


def test_the_keys_of_the_body_stand_beside_those_of_the_item() -> None:
    item = StreamItem(n=3, attempt=1, body=Text(text="hé", ids=(1, 2)))
    assert item_to_dict(item) == {"n": 3, "a": 1, "kind": "text", "text": "hé", "ids": [1, 2]}
    assert encode_item(item) == '{"n":3,"a":1,"kind":"text","text":"hé","ids":[1,2]}'.encode()


def test_a_lone_surrogate_survives() -> None:
    item = StreamItem(n=0, attempt=1, body=Text(text="\ud83d", ids=(1,)))
    assert decode_item(encode_item(item)) == item


def test_a_key_that_a_newer_writer_added_is_ignored() -> None:
    name, version, data = encode_event(JobAttached(reason="r"))
    assert decode_event(name, version, data | {"added": 1}) == JobAttached(reason="r")
    item = StreamItem(n=0, attempt=1, body=Finished(stop_reason=StopReason.END_TURN, usage=Usage()))
    assert item_from_dict(item_to_dict(item) | {"added": 1}) == item


def test_a_field_that_an_older_writer_did_not_know_takes_its_default() -> None:
    name, version, data = encode_event(submitted())
    del data["deadline"], data["agent"]
    assert decode_event(name, version, data) == submitted()


@pytest.mark.parametrize(
    ("name", "data"), [("Nothing", {}), ("JobAttached", {}), ("JobFailed", {"error": "e"})]
)
def test_an_unknown_type_or_a_missing_field_is_refused(name: str, data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"unknown event type|missing"):
        decode_event(name, 1, data)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b'{"n":0,"a":1,"kind":"song"}', "unknown item kind 'song'"),
        (b'{"n":0,"a":1}', "unknown item kind None"),
        (b'{"n":0,"a":1,"kind":"text"}', "missing"),
    ],
)
def test_an_unknown_item_is_refused(payload: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode_item(payload)


@pytest.mark.parametrize(("name", "version"), [("JobAttached", 2), ("WorkerDraining", 2)])
def test_a_shape_of_a_newer_program_is_refused(name: str, version: int) -> None:
    with pytest.raises(LogNewer, match=f"{name} is of version {version}, written by a newer"):
        decode_event(name, version, {"reason": "r", "worker": "w"})


def test_the_epoch_of_an_item_is_written_from_the_second_on() -> None:
    item = StreamItem(n=0, attempt=1, epoch=2, body=Text(text="a", ids=(1,)))
    assert item_to_dict(item)["e"] == 2
    assert item_from_dict(item_to_dict(item)) == item


def test_a_record_holds_what_differs_from_its_defaults() -> None:
    record = Webhook(
        id=WebhookId("webhook-1"),
        subject="job-1",
        event="job.completed",
        url="http://a/",
        host="a:80",
        position=3,
        body='{"say":"Grüße"}'.encode(),
        created_at="",
        state=WebhookState.FAILED,
    )
    data = record_to_json(record)
    assert {"state", "body"} <= data.keys()
    assert not {"attempts", "next_at", "owner"} & data.keys()
    assert data["state"] == "failed"
    assert record_from_json(Webhook, json.loads(json.dumps(data))) == record
    with pytest.raises(ValueError, match="missing"):
        record_from_json(Webhook, {})


def test_a_record_has_records_in_a_tuple_and_ignores_fields_of_a_newer_program() -> None:
    line = AgentQueueState(priority=Priority.BATCH, agent="a", turns_ago=3)
    record = TurnState(slots=2, interactive_reserved=1, running=(JobId("job-1"),), lines=(line,))
    data = json.loads(json.dumps(record_to_json(record)))
    assert record_from_json(TurnState, data | {"of_a_newer_program": 1}) == record
