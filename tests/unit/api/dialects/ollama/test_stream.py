"""Answers of Ollama's generations: lines, and whole replies that equal them together."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from ollama import ChatResponse, GenerateResponse

from api.dialects.ollama.encode import GenerationKind, LineEncoder, ReplyForm
from api.dialects.ollama.routes import CHAT, GENERATE
from api.http.messages import Request
from api.http.sse import Line, encode
from domain.chat.items import (
    Failed,
    Finished,
    Progress,
    Started,
    StreamItem,
    Text,
    Thinking,
    ToolEnd,
    ToolInput,
    ToolStart,
)
from domain.chat.logprobs import Alternative, TokenLogprob
from domain.errors import Draining
from domain.values import StopReason, Usage
from tests.support.builders.item_streams import answer_of, item_streams
from tests.support.fakes.time import FakeClock

USAGE = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3)
END = Finished(stop_reason=StopReason.END_TURN, usage=USAGE)
DURATIONS = {"total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}
CALL = (
    ToolStart(id="toolu_0", name="look"),
    ToolInput(fragment='{"at": ', ids=(1,)),
    ToolInput(fragment='"x"}', ids=(2,)),
    ToolEnd(),
)


def form(kind: GenerationKind, *, is_load: bool = False) -> ReplyForm:
    request = Request(id="req-1", method="POST", path="/api/chat")
    return ReplyForm(kind=kind, model="m", request=request, clock=FakeClock(), is_load=is_load)


def lines(kind: GenerationKind, items: list[StreamItem]) -> list[dict[str, Any]]:
    encoder = LineEncoder(form(kind))
    parts = encoder.open()
    for item in items:
        parts += encoder.item(item)
    return [json.loads(line) for line in encode(parts).decode().split("\n")[:-1]]


def items_of(*bodies: Any) -> list[StreamItem]:
    return [StreamItem(n=n, attempt=1, body=body) for n, body in enumerate(bodies)]


def test_a_chat_is_a_line_for_each_output_and_a_last_one() -> None:
    bodies = (
        Started(prompt_tokens=10, cached_tokens=4),
        Progress(phase="prefill", done=1, total=2),
        Thinking(text="hm", ids=(1,)),
        Text(text="Hi", ids=(2,)),
        *CALL,
        END,
    )
    *pieces, last = lines(CHAT, items_of(*bodies))
    called = {"index": 0, "name": "look", "arguments": {"at": "x"}}
    assert [piece["message"] for piece in pieces] == [
        {"role": "assistant", "content": "", "thinking": "hm"},
        {"role": "assistant", "content": "Hi"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "toolu_0", "function": called}],
        },
    ]
    assert all(piece["model"] == "m" and piece["done"] is False for piece in pieces)
    assert all(set(piece) == {"model", "created_at", "message", "done"} for piece in pieces)
    assert last["message"] == {"role": "assistant", "content": ""}
    assert (last["done"], last["done_reason"]) == (True, "stop")
    assert (last["prompt_eval_count"], last["eval_count"]) == (10, 3)
    assert set(last) >= DURATIONS
    assert all(last[name] >= 0 for name in DURATIONS)
    for one in (*pieces, last):
        ChatResponse.model_validate(one)


def test_a_generation_has_its_text_at_the_top() -> None:
    bodies = (Thinking(text="hm", ids=(1,)), Text(text="Hi", ids=(2,)), END)
    thought, answered, last = lines(GENERATE, items_of(*bodies))
    assert (thought["response"], thought["thinking"]) == ("", "hm")
    assert answered["response"] == "Hi"
    assert last["response"] == ""
    for one in (thought, answered, last):
        GenerateResponse.model_validate(one)


@pytest.mark.parametrize(
    ("reason", "done"),
    [
        (StopReason.END_TURN, "stop"),
        (StopReason.STOP_SEQUENCE, "stop"),
        (StopReason.MAX_TOKENS, "length"),
        (StopReason.CONTEXT_WINDOW, "length"),
    ],
)
def test_the_end_has_a_reason_that_clients_know(reason: StopReason, done: str) -> None:
    (last,) = lines(CHAT, items_of(Finished(stop_reason=reason, usage=USAGE)))
    assert last["done_reason"] == done


def test_a_load_has_its_own_reason() -> None:
    encoder = LineEncoder(form(CHAT, is_load=True))
    ending = Finished(stop_reason=StopReason.MAX_TOKENS, usage=USAGE)
    (line,) = encoder.item(items_of(ending)[0])
    assert isinstance(line, Line)
    assert line.data["done_reason"] == "load"


def test_a_failure_is_the_last_line() -> None:
    failed = Failed(error="engine_failure", message="it broke", retryable=False)
    *_, last = lines(CHAT, items_of(Text(text="Hi", ids=(1,)), failed))
    assert last == {"error": "it broke"}
    (line,) = LineEncoder(form(CHAT)).fail(Draining("bye"))
    assert isinstance(line, Line)
    assert line.data == {"error": "bye"}


def test_a_ping_is_a_line_without_output() -> None:
    (line,) = LineEncoder(form(CHAT)).ping()
    assert isinstance(line, Line)
    assert ChatResponse.model_validate(line.data).message.content == ""
    assert line.data["done"] is False


def test_a_call_that_was_cut_is_left_out() -> None:
    cut = items_of(*CALL[:2], Finished(stop_reason=StopReason.MAX_TOKENS, usage=USAGE))
    (last,) = lines(CHAT, cut)
    assert last["done_reason"] == "length"
    assert "tool_calls" not in form(CHAT).whole(answer_of(cut))["message"]


def test_tokens_have_their_chances() -> None:
    alternatives = (Alternative(b"Hi", -0.5), Alternative(b"Ho", -1.5))
    chance = TokenLogprob(7, b"Hi", -0.5, alternatives)
    piece, last = lines(CHAT, items_of(Text(text="Hi", ids=(7,), logprobs=(chance,)), END))
    (found,) = ChatResponse.model_validate(piece).logprobs or ()
    assert (found.token, found.logprob) == ("Hi", -0.5)
    assert [one.token for one in found.top_logprobs or ()] == ["Hi", "Ho"]
    assert "logprobs" not in last


def test_line_ends_of_unicode_stand_in_no_line() -> None:
    """The Python client splits its lines there too."""
    text = "a\u2028b\u2029c\x85d\x0be\x1cf\r\ng"
    encoder = LineEncoder(form(CHAT))
    raw = encode(encoder.item(items_of(Text(text=text, ids=(1,)))[0])).decode()
    (line,) = raw.splitlines()
    assert json.loads(line)["message"]["content"] == text


@given(items=item_streams())
def test_lines_add_up_to_the_whole_reply(items: list[StreamItem]) -> None:
    answer = answer_of(items)
    *pieces, last = lines(CHAT, items)
    if "error" in last:
        return
    whole = form(CHAT).whole(answer)
    turns = [piece["message"] for piece in pieces]
    assert whole["message"]["content"] == "".join(turn["content"] for turn in turns)
    thoughts = "".join(turn.get("thinking", "") for turn in turns)
    assert whole["message"].get("thinking", "") == thoughts
    calls = [call for turn in turns for call in turn.get("tool_calls", ())]
    assert whole["message"].get("tool_calls", []) == calls
    same = set(whole) - DURATIONS - {"message", "logprobs"}
    assert {name: whole[name] for name in same} == {name: last[name] for name in same}
