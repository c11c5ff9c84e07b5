from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from api.http.sse import Comment, Frame, encode
from tests.support.clients.sse import events_in


def test_frame_has_id_event_and_data_lines_then_a_blank_line() -> None:
    piece = encode([Frame(id="1-0", event="text", data={"a": "é\n"})])
    assert piece == 'id: 1-0\nevent: text\ndata: {"a":"é\\n"}\n\n'.encode()


def test_comment_ends_without_a_blank_line() -> None:
    # With one, the SDKs' decoders hand on an empty event after any id.
    assert encode([Comment("ping")]) == b": ping\n"


@given(st.text(), st.text())
def test_no_text_can_break_out_of_its_frame(data: str, comment: str) -> None:
    piece = encode([Comment(comment), Frame(event=data, data=data), Frame(data={"x": data})])
    events = events_in(piece)
    assert len(events) == 2
    assert json.loads(events[1].data) == {"x": data}
