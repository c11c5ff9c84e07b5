from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from api.dialects.openai_chat.completions import (
    CompletionEncoder,
    CompletionEnvelope,
    CompletionKind,
    assemble,
    total_usage,
)
from api.dialects.openai_chat.parse import ChatKind
from api.dialects.openai_completions import TextKind
from api.generation import ChoiceItem, RequestDefaults
from api.http.sse import Part, encode
from domain.chat.items import StreamItem
from domain.chat.request import ChatRequest, RawPrompt
from domain.errors import InvalidRequest
from domain.values import SEED_MAX, JobId, Usage
from tests.support.builders.item_streams import answer_of, item_streams
from tests.support.clients.sse import events_in
from tests.support.fakes.time import SequentialIds

_CHUNKS: dict[str, type[BaseModel]] = {"openai-chat": ChatCompletionChunk}
_WHOLES: dict[str, type[BaseModel]] = {
    "openai-chat": ChatCompletion,
    "openai-completions": Completion,
}


def _parsed(kind: type[CompletionKind] = TextKind, **fields: Any) -> Any:
    requested = (
        {"prompt": "Once"} if kind is TextKind else {"messages": [{"role": "user", "content": "a"}]}
    )
    body = json.dumps({"model": "m"} | requested | fields).encode()
    return kind.parse(body, {}, RequestDefaults(ids=SequentialIds(), max_tokens=16))


@pytest.mark.parametrize(
    ("prompt", "raws"),
    [
        ("Once", [RawPrompt(text="Once")]),
        ("", [RawPrompt()]),
        (["Once"], [RawPrompt(text="Once")]),
        (["a", "b"], [RawPrompt(text="a"), RawPrompt(text="b")]),
        ([5, 6], [RawPrompt(ids=(5, 6))]),
        ([[5, 6], [7]], [RawPrompt(ids=(5, 6)), RawPrompt(ids=(7,))]),
    ],
)
def test_prompts_are_taken_as_they_stand(prompt: Any, raws: list[RawPrompt]) -> None:
    parsed = _parsed(prompt=prompt, stop="END")
    assert [chat.raw for chat in parsed.chats] == raws
    assert all(chat.messages == () for chat in parsed.chats)
    assert (parsed.chat.max_tokens, parsed.chat.stop) == (16, ("END",))


def test_answers_to_each_prompt_stand_together_and_have_seeds_in_a_row() -> None:
    parsed = _parsed(prompt=["a", "b"], n=3, seed=SEED_MAX - 1, echo=True)
    assert parsed.answers_each == 3
    assert [(chat.raw.text, chat.sampling.seed) for chat in parsed.chats] == [
        (text, seed) for text in "ab" for seed in (SEED_MAX - 1, SEED_MAX, 0)
    ]
    assert all(chat.raw.is_echoed for chat in parsed.chats)


def test_first_of_several_answers_is_the_one_of_a_single_answer() -> None:
    one, several = _parsed(ChatKind, seed=7), _parsed(ChatKind, seed=7, n=2)
    assert several.chats[0] == one.chat
    assert several.chats[1].sampling.seed == 8


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n": 9}, "n"),
        ({"n": 0}, "n"),
        ({"n": 8, "prompt": ["a"] * 17}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"echo": True, "suffix": "end"}, "echo"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": [[]]}, "prompt.0"),
        ({"prompt": [-1]}, "prompt.0"),
        ({"prompt": ["a", 5]}, "prompt.1"),
        ({"prompt": [5, "a"]}, "prompt.1"),
        ({"prompt": None}, "prompt"),
    ],
)
def test_what_is_not_done_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _parsed(**fields)
    assert caught.value.field == field


def test_many_wrong_elements_make_one_fault() -> None:
    with pytest.raises(InvalidRequest) as caught:
        _parsed(prompt=[True] * 250_000)
    assert caught.value.field is not None


def test_raw_prompts_survive_the_log_and_messages_keep_their_bytes() -> None:
    raw = _parsed(prompt=[[5, 6]], suffix="end", n=2).chats[1]
    assert ChatRequest.from_bytes(raw.to_bytes()) == raw
    turn = _parsed(ChatKind).chat
    assert b'"raw"' not in turn.to_bytes()
    assert ChatRequest.from_bytes(turn.to_bytes()) == turn


@pytest.mark.parametrize("kind", [TextKind, ChatKind])
@given(data=st.data())
def test_any_streams_together_equal_the_whole(
    kind: type[CompletionKind], data: st.DataObject
) -> None:
    streams = data.draw(st.lists(item_streams(), min_size=1, max_size=4))
    jobs = tuple(JobId(f"job-{number:032x}") for number in range(len(streams)))
    envelope = CompletionEnvelope(
        kind=kind, jobs=jobs, model="m", created=17, answers_each=len(jobs)
    )
    encoder = CompletionEncoder(envelope, include_usage=True, request_id="req_1")
    parts: list[Part] = encoder.open()
    for item in data.draw(_interleaved(streams)):
        parts += encoder.item(item)
    *chunks, usage, done = events_in(encode(parts))
    assert done.data == "[DONE]"
    whole = assemble(envelope, [answer_of(items) for items in streams])
    assert _WHOLES[kind.protocol].model_validate(whole, strict=True)
    assert usage.json["usage"] == whole["usage"]
    bodies = [chunk.json for chunk in chunks]
    for chunk in bodies:
        assert chunk["id"] == whole["id"]
        if kind.protocol in _CHUNKS:
            _CHUNKS[kind.protocol].model_validate(chunk, strict=True)
    for index, choice in enumerate(whole["choices"]):
        mine = [c for chunk in bodies for c in chunk["choices"] if c["index"] == index]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
        assert all(one["finish_reason"] is None for one in mine[:-1])
        text = "".join(one.get("text") or one.get("delta", {}).get("content", "") for one in mine)
        assert text == (choice.get("text") or choice.get("message", {}).get("content") or "")


@st.composite
def _interleaved(draw: st.DrawFn, streams: list[list[StreamItem]]) -> list[ChoiceItem]:
    order = draw(st.permutations([n for n, items in enumerate(streams) for _ in items]))
    rests = [iter(items) for items in streams]
    return [ChoiceItem(number, next(rests[number])) for number in order]


def test_each_prompt_is_counted_once() -> None:
    usages = [
        Usage(prompt_tokens=10, cached_tokens=9, completion_tokens=1),
        Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=2),
        Usage(prompt_tokens=7, cached_tokens=0, completion_tokens=3),
        Usage(prompt_tokens=7, cached_tokens=6, completion_tokens=4),
    ]
    assert total_usage(usages, 2) == Usage(prompt_tokens=17, cached_tokens=4, completion_tokens=10)
