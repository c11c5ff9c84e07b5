"""Harmony turns hold one call each, followed by its result, and no text is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from domain.chat.request import Message, ToolCall
from worker.engine.mlx.prompt.harmony import one_call_each, tool_of

_IDS = st.sampled_from("abcd")


def _assistant(ids: list[str], text: str) -> Message:
    calls = tuple(ToolCall(id=one, name="f", arguments={}) for one in ids)
    return Message(role="assistant", content=text, tool_calls=calls)


_TURNS = st.lists(
    st.one_of(
        st.builds(lambda text: Message(role="user", content=text), st.text("xy", max_size=2)),
        st.builds(_assistant, st.lists(_IDS, unique=True, max_size=3), st.text("xy", max_size=2)),
        st.builds(
            lambda one, text: Message(role="tool", content=text, tool_call_id=one),
            _IDS,
            st.text("rs", max_size=2),
        ),
    ),
    max_size=8,
)


@given(messages=_TURNS)
def test_any_conversation_keeps_its_calls_and_texts_in_a_form_that_the_template_takes(
    messages: list[Message],
) -> None:
    turns = one_call_each(messages)
    called = [call.id for message in messages for call in message.tool_calls]
    assert [call.id for turn in turns for call in turn.tool_calls] == called
    assert all(len(turn.tool_calls) <= 1 for turn in turns)
    texts = sorted(message.content for message in messages if message.content)
    assert sorted(turn.content for turn in turns if turn.content) == texts
    last: Message | None = None
    for turn in turns:
        if turn.role == "tool":
            # The template names a result after the call before it.
            assert last is not None
            assert [call.id for call in last.tool_calls] == [turn.tool_call_id]
        else:
            last = turn


def test_a_default_beside_a_choice_is_a_text_and_a_description_is_there() -> None:
    choice = {"enum": [1, 2], "default": 2}
    plain = {"type": "integer", "default": 2}
    parameters = {"type": "object", "properties": {"a": choice, "b": plain, "c": True}}
    made = tool_of({"type": "function", "function": {"name": "f", "parameters": parameters}})
    assert made["function"]["description"] == ""
    assert made["function"]["parameters"]["properties"] == {
        "a": {"enum": [1, 2], "default": "2"},
        "b": plain,
        "c": True,
    }
    bare = {"type": "function", "function": {"name": "f"}}
    assert tool_of(bare)["function"] == {"name": "f", "description": ""}
