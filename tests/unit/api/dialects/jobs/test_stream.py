from __future__ import annotations

import pytest
from hypothesis import given

from api.dialects.jobs.wire import Cursor, NativeEncoder, parse_cursor
from api.http.sse import encode
from domain.chat.items import Failed, Progress, StreamItem
from domain.errors import Draining, InvalidRequest
from domain.log.codec import item_from_dict
from tests.support.builders.item_streams import item_streams
from tests.support.clients.sse import events_in


@given(item_streams())
def test_items_travel_whole_and_only_numbered_ones_have_an_id(items: list[StreamItem]) -> None:
    encoder = NativeEncoder()
    events = events_in(encode([part for item in items for part in encoder.item(item)]))
    assert [item_from_dict(event.json) for event in events] == items
    assert [event.id for event in events] == [
        None if isinstance(item.body, Progress) else f"1-{item.n}" for item in items
    ]
    assert all(event.event == event.json["kind"] for event in events)


def test_failure_of_the_stream_has_no_number_and_may_be_retried() -> None:
    (event,) = events_in(encode(NativeEncoder().fail(Draining("later"))))
    assert (event.event, event.id) == ("failed", None)
    item = item_from_dict(event.json)
    assert item.body == Failed(error="draining", message="later", retryable=True)


@pytest.mark.parametrize(
    ("text", "cursor"),
    [
        (None, Cursor()),
        ("0", Cursor(0)),
        ("17", Cursor(17)),
        ("3-17", Cursor(17, attempt=3)),
        ("0-17", Cursor(17)),
    ],
)
def test_cursor_is_an_id_or_a_number(text: str | None, cursor: Cursor) -> None:
    assert parse_cursor(text, field="after") == cursor


@pytest.mark.parametrize("text", ["", "-1", "a", "1-2-3", "1-", "9" * 10, "1\n", "٣"])
def test_anything_else_is_no_cursor(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_cursor(text, field="after")
