"""What efforts and budgets of each dialect come to, and which requests mark what to keep."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.dialects.anthropic import parse as anthropic
from api.dialects.jobs import wire as native
from api.dialects.openai_chat import parse as openai_chat
from api.dialects.openai_responses import parse as responses
from api.generation import Efforts, RequestDefaults
from api.http.bodies import MAX_TOKENS_CEILING
from domain.chat.generation import ThinkingLimit
from domain.errors import InvalidRequest
from tests.support.fakes.time import SequentialIds

_IDS = SequentialIds()
_HI = [{"role": "user", "content": "hi"}]
_STANDARD = Efforts()
_ODD = Efforts(minimal=0.05, low=0.25, medium=0.75, answer=0.5)


def _anthropic(efforts: Efforts = _STANDARD, **more: Any) -> ThinkingLimit:
    body = {"model": "m", "max_tokens": 100, "messages": _HI} | more
    parsed = anthropic.parse(
        json.dumps(body).encode(), {}, RequestDefaults(ids=_IDS, max_tokens=1, efforts=efforts)
    )
    return parsed.chat.thinking_limit


def _marks(**more: Any) -> bool:
    body = {"model": "m", "max_tokens": 100, "messages": _HI} | more
    return anthropic.parse(
        json.dumps(body).encode(), {}, RequestDefaults(ids=_IDS, max_tokens=1)
    ).form.has_cache_control


def _chat(effort: str | None) -> ThinkingLimit:
    body = {"model": "m", "messages": _HI, "reasoning_effort": effort}
    raw = json.dumps(body).encode()
    return openai_chat.parse(raw, {}, RequestDefaults(ids=_IDS, max_tokens=9)).chat.thinking_limit


def _responses(effort: str | None) -> ThinkingLimit:
    body = {"model": "m", "input": "hi", "reasoning": {"effort": effort}}
    wire = responses.read_body(json.dumps(body).encode())
    asked = responses.requested_fields(wire, responses.input_items(wire))
    parsed = responses.parse_request(
        wire, asked, asked.items, {}, RequestDefaults(ids=_IDS, max_tokens=9)
    )
    return parsed.chat.thinking_limit


@pytest.mark.parametrize(
    ("effort", "share", "tokens"),
    [
        (None, 0.8, None),
        ("none", 0.8, 0),
        ("minimal", 0.1, None),
        ("low", 0.2, None),
        ("medium", 0.5, None),
        ("high", 0.8, None),
        ("xhigh", 0.8, None),
        ("max", 0.8, None),
        ("whatever", 0.8, None),
    ],
)
def test_an_effort_is_a_share_of_what_may_be_generated(
    effort: str | None, share: float, tokens: int | None
) -> None:
    limit = ThinkingLimit(tokens=tokens, share=share)
    assert _chat(effort) == _responses(effort) == limit
    if effort != "none":
        thinking = {"type": "adaptive"}
        assert _anthropic(thinking=thinking, output_config={"effort": effort}) == limit


def test_a_budget_and_an_effort_both_count() -> None:
    spec = {"type": "enabled", "budget_tokens": 30}
    limit = _anthropic(thinking=spec, output_config={"effort": "low"})
    assert limit == ThinkingLimit(tokens=30, share=0.2)
    assert (limit.within(100), limit.within(1000)) == (20, 30)


def test_the_budget_of_a_request_that_wants_no_thinking_or_decides_itself_is_none() -> None:
    assert _anthropic(thinking={"type": "disabled", "budget_tokens": 9}).tokens == 0
    assert _anthropic(thinking={"type": "adaptive", "budget_tokens": 9}).tokens is None
    assert _anthropic().within(100) == 80


def test_a_budget_beyond_all_limits_is_lowered_and_none_below_zero_is_taken() -> None:
    spec = {"type": "enabled", "budget_tokens": 10**30}
    assert _anthropic(thinking=spec).tokens == MAX_TOKENS_CEILING
    with pytest.raises(InvalidRequest) as refused:
        _anthropic(thinking={"type": "enabled", "budget_tokens": -1})
    assert refused.value.field == "thinking.budget_tokens"


def test_shares_are_those_of_the_settings_and_leave_the_answer_its_own() -> None:
    spec = {"type": "adaptive"}
    shares = [
        _anthropic(_ODD, thinking=spec, output_config={"effort": effort}).share
        for effort in ("minimal", "low", "medium", "high")
    ]
    assert shares == [0.05, 0.25, 0.5, 0.5]
    assert Efforts(answer=0).limit("high") == ThinkingLimit()
    assert Efforts(answer=0).limit("high").within(10) is None


def test_native_jobs_leave_room_for_the_answer() -> None:
    asked = {None: None, True: None, False: 0}
    for thinking, tokens in asked.items():
        raw = json.dumps({"prompt": "hi", "thinking": thinking}).encode()
        chat = native.parse(raw, {}, RequestDefaults(ids=_IDS, max_tokens=9, model="m")).chat
        assert chat.thinking_limit == ThinkingLimit(tokens=tokens, share=0.8)


_MARK = {"type": "ephemeral"}
_BLOCK = {"type": "text", "text": "hi"}


@pytest.mark.parametrize(
    "more",
    [
        {"cache_control": _MARK},
        {"system": [_BLOCK | {"cache_control": _MARK}]},
        {"tools": [{"name": "a", "input_schema": {}, "cache_control": _MARK}]},
        {"messages": [{"role": "user", "content": [_BLOCK, _BLOCK | {"cache_control": _MARK}]}]},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "toolu_1",
                            "content": [_BLOCK | {"cache_control": _MARK}],
                        }
                    ],
                }
            ]
        },
    ],
    ids=["request", "system", "tool", "message", "tool_result"],
)
def test_a_mark_is_seen_wherever_it_stands(more: dict[str, Any]) -> None:
    assert _marks(**more)


def test_what_only_looks_like_a_mark_is_none() -> None:
    call = {"type": "tool_use", "id": "t", "name": "a", "input": {"cache_control": _MARK}}
    turns = [*_HI, {"role": "assistant", "content": [call, _BLOCK | {"cache_control": None}]}]
    assert not _marks(messages=turns, system='"cache_control": {}')
    assert not _marks()
