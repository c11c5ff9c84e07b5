"""The canonical request: its bytes and its digests."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from domain.chat.embedding import EmbeddingInputs
from domain.chat.generation import ThinkingLimit
from domain.chat.request import (
    ChatRequest,
    Message,
    RawPrompt,
    ToolCall,
    ToolChoice,
    canonical_json,
    unattributed,
)
from domain.values import SamplingWish, digest_of

_SCHEMA = {"type": "object"}
_TOOL = {"type": "function", "function": {"name": "read", "parameters": _SCHEMA}}
_LATER = {"type": "function", "function": {"name": "write", "parameters": _SCHEMA}}
_PLAIN = ChatRequest(
    model="m",
    messages=(Message(role="user", content="hi"),),
    max_tokens=8,
    sampling=SamplingWish(seed=3),
)
#: Every field has a value that no other field and no default has.
_FULL = ChatRequest(
    model="qwen",
    messages=(
        Message(role="system", content="be brief"),
        Message(
            role="assistant",
            content="look",
            reasoning="hm",
            tool_calls=(ToolCall(id="call-1", name="read", arguments={"path": "a"}),),
            origin="job-9",
        ),
        Message(role="tool", content="text of a", tool_call_id="call-1"),
    ),
    max_tokens=77,
    sampling=SamplingWish(temperature=0.5, top_p=0.9, top_k=4, min_p=0.1, seed=11),
    tools=(_TOOL,),
    stop=("END", "STOP"),
    thinking=True,
    deferred_tools=(_LATER,),
    tool_choice=ToolChoice(mode="tool", name="read", parallel=False, allowed=("read",)),
    narrowed={"read": {"type": "object", "required": ["path"]}},
    answer_schema={"type": "array"},
    is_strict=True,
    strict_tools=("write",),
    logprobs=2,
    effort="high",
    raw=RawPrompt(text="once", ids=(5, 6), suffix="after", is_echoed=True),
    thinking_limit=ThinkingLimit(tokens=12, share=0.25),
    embedding=EmbeddingInputs(texts=("a", (1, 2)), dimensions=64),
)


@pytest.mark.parametrize("request_", [_PLAIN, _FULL], ids=["plain", "full"])
def test_request_is_read_back_as_it_was(request_: ChatRequest) -> None:
    again = ChatRequest.from_bytes(request_.to_bytes())
    assert again == request_
    assert again.to_bytes() == request_.to_bytes()


def test_fields_that_a_request_lacks_have_defaults() -> None:
    first = {
        "model": "m",
        "messages": [
            {
                "role": "user",
                "content": "hi",
                "reasoning": "",
                "tool_calls": [],
                "tool_call_id": None,
            }
        ],
        "max_tokens": 8,
        "sampling": {"seed": 3},
        "tools": [],
        "stop": [],
        "thinking": False,
    }
    assert ChatRequest.from_bytes(json.dumps(first).encode()) == _PLAIN


def test_unused_fields_are_left_out() -> None:
    fields = json.loads(_PLAIN.to_bytes())
    assert {"raw", "strict_tools", "embedding"}.isdisjoint(fields)
    used = json.loads(_FULL.to_bytes())
    assert used["raw"]["ids"] == [5, 6]
    assert used["strict_tools"] == ["write"]
    assert used["embedding"] == {"texts": ["a", [1, 2]], "dimensions": 64}


def test_canonical_json_is_sorted_compact_utf_8_that_holds_lone_surrogates() -> None:
    assert canonical_json({"b": 1, "a": [True, None]}) == b'{"a":[true,null],"b":1}'
    assert canonical_json("é") == '"é"'.encode()
    assert canonical_json("\ud800") == b'"\xed\xa0\x80"'
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json(float("nan"))


class TestAsked:
    """What counts as the same request of the same agent."""

    def test_digest_is_that_of_dialect_agent_seed_and_request(self) -> None:
        asked = _PLAIN.asked(protocol="jobs", agent="a", seeded=True)
        assert asked == digest_of(b'["jobs","a",true]\n' + _PLAIN.to_bytes())

    def test_drawn_seed_is_not_compared(self) -> None:
        other = replace(_PLAIN, sampling=SamplingWish(seed=99))
        drawn = [one.asked(protocol="jobs", agent=None, seeded=False) for one in (_PLAIN, other)]
        chosen = [one.asked(protocol="jobs", agent=None, seeded=True) for one in (_PLAIN, other)]
        assert drawn[0] == drawn[1]
        assert chosen[0] != chosen[1]
        zero = replace(_PLAIN, sampling=SamplingWish(seed=0))
        assert drawn[0] == digest_of(b'["jobs",null,false]\n' + zero.to_bytes())

    def test_rest_of_the_sampling_is_compared(self) -> None:
        warm = replace(_PLAIN, sampling=SamplingWish(seed=3, temperature=0.5))
        asked = {one.asked(protocol="jobs", agent=None, seeded=False) for one in (_PLAIN, warm)}
        assert len(asked) == 2

    def test_origins_of_turns_are_not_compared(self) -> None:
        bare = replace(_FULL, messages=unattributed(_FULL.messages))
        assert [one.origin for one in bare.messages] == ["", "", ""]
        asked = {one.asked(protocol="jobs", agent=None, seeded=True) for one in (_FULL, bare)}
        assert len(asked) == 1


class TestCallableTools:
    """The tools that an answer may call."""

    def test_deferred_tools_count_and_a_narrowed_schema_replaces_the_shown_one(self) -> None:
        either = replace(_FULL, tool_choice=ToolChoice())
        narrowed = {"name": "read", "parameters": {"type": "object", "required": ["path"]}}
        assert either.callable_tools == ({"type": "function", "function": narrowed}, _LATER)
        assert either.tools == (_TOOL,), "the prompt shows the whole schema"

    @pytest.mark.parametrize(
        ("choice", "names"),
        [
            (ToolChoice(), ["read", "write"]),
            (ToolChoice(mode="any", allowed=("write",)), ["write"]),
            (ToolChoice(allowed=()), []),
            (ToolChoice(mode="none"), []),
            (ToolChoice(mode="none", allowed=("read",)), []),
        ],
    )
    def test_choice_selects_them(self, choice: ToolChoice, names: list[str]) -> None:
        found = replace(_FULL, tool_choice=choice).callable_tools
        assert [tool["function"]["name"] for tool in found] == names


@pytest.mark.parametrize(
    ("choice", "is_single"),
    [
        (ToolChoice(), False),
        (ToolChoice(parallel=False), True),
        (ToolChoice(mode="tool", name="read"), True),
        (ToolChoice(mode="any"), False),
    ],
)
def test_answer_is_over_after_one_call(choice: ToolChoice, *, is_single: bool) -> None:
    assert choice.is_single is is_single


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        (ThinkingLimit(), None),
        (ThinkingLimit(tokens=12), 12),
        (ThinkingLimit(share=0.25), 2),
        (ThinkingLimit(tokens=12, share=0.25), 2),
        (ThinkingLimit(tokens=1, share=0.25), 1),
        (ThinkingLimit(share=0.0), 0),
    ],
)
def test_lesser_limit_of_the_reasoning_counts(limit: ThinkingLimit, most: int | None) -> None:
    assert limit.within(10) == most
