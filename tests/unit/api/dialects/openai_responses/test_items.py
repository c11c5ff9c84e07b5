from __future__ import annotations

import json
from typing import Any

from api.dialects.encoding import sign_reasoning
from api.dialects.openai_responses.parse import item_turns, listed_items, read_body, stored_items
from domain.chat.request import Message, ToolCall
from domain.values import JobId

_HEX = "ab" * 16
_JOB = JobId(f"job-{_HEX}")


def _turns(*items: dict[str, Any]) -> list[Message]:
    wire = read_body(json.dumps({"model": "m", "input": items}).encode())
    return item_turns(stored_items(wire.input))


def test_items_of_one_answer_are_one_turn_that_knows_its_origin() -> None:
    turns = _turns(
        {"type": "reasoning", "id": f"rs_{_HEX}_0", "summary": [],
         "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "id": f"msg_{_HEX}_0", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "Look:", "annotations": []}]},
        {"type": "function_call", "call_id": f"toolu_{_HEX}_0", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": f"toolu_{_HEX}_1", "name": "g",
         "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": f"toolu_{_HEX}_0", "output": "one"},
        {"type": "function_call_output", "call_id": f"toolu_{_HEX}_1",
         "output": [{"type": "input_text", "text": "two"}]},
    )  # fmt: skip
    assert turns == [
        Message(
            role="assistant",
            content="Look:",
            reasoning="Hm.",
            tool_calls=(
                ToolCall(id=f"toolu_{_HEX}_0", name="f", arguments={}),
                ToolCall(id=f"toolu_{_HEX}_1", name="g", arguments={"a": 1}),
            ),
            origin=_JOB,
        ),
        Message(role="tool", content="one", tool_call_id=f"toolu_{_HEX}_0"),
        Message(role="tool", content="two", tool_call_id=f"toolu_{_HEX}_1"),
    ]


def test_reasoning_comes_back_in_its_signature() -> None:
    (turn,) = _turns(
        {"type": "reasoning", "encrypted_content": sign_reasoning(_JOB, 0, "Hm.", carried=True)},
        {"role": "assistant", "content": "Hello"},
    )
    assert turn == Message(role="assistant", content="Hello", reasoning="Hm.", origin=_JOB)


def test_answers_of_two_jobs_stay_apart() -> None:
    other = "cd" * 16
    turns = _turns(
        {"role": "assistant", "type": "message", "id": f"msg_{_HEX}_0", "content": "One"},
        {"role": "assistant", "type": "message", "id": f"msg_{other}_0", "content": "Two"},
    )
    assert [turn.origin for turn in turns] == [_JOB, f"job-{other}"]


def test_generated_ids_name_no_answer() -> None:
    wire = read_body(
        json.dumps(
            {"model": "m", "input": [{"role": "assistant", "content": "Hello"}, {"role": "user"}]}
        ).encode()
    )
    listed = listed_items(stored_items(wire.input), _HEX)
    assert [item["id"] for item in listed] == [f"msg_{_HEX}_i0", f"msg_{_HEX}_i1"]
    assert item_turns(listed)[0].origin == ""


def test_text_is_a_question() -> None:
    wire = read_body(b'{"model": "m", "input": "hi"}')
    assert item_turns(stored_items(wire.input)) == [Message(role="user", content="hi")]
