"""The fields that decide how tokens are drawn, in each dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.dialects import openai_completions
from api.dialects.anthropic.parse import parse as parse_messages
from api.dialects.jobs.wire import parse as parse_job
from api.dialects.openai_chat.parse import parse as parse_chat
from api.dialects.parsing import RequestParser
from api.generation import RequestDefaults
from domain.errors import InvalidRequest
from domain.values import Sampling, SamplingWish
from tests.support.fakes.time import SequentialIds

MESSAGES = [{"role": "user", "content": "hello"}]
DEFAULTS = RequestDefaults(ids=SequentialIds(), max_tokens=5, model="served")
DIALECTS: dict[str, tuple[RequestParser, dict[str, Any]]] = {
    "chat": (parse_chat, {"model": "m", "messages": MESSAGES}),
    "text": (openai_completions.parse, {"model": "m", "prompt": "hello"}),
    "messages": (parse_messages, {"model": "m", "max_tokens": 5, "messages": MESSAGES}),
    "jobs": (parse_job, {"messages": MESSAGES}),
}
GIVEN: dict[str, Any] = {
    "presence_penalty": 0.5,
    "frequency_penalty": -1,
    "repetition_penalty": 1.1,
    "repetition_context_size": 20,
    "logit_bias": {"50": -100, "7": 2.5},
    "xtc_probability": 0.5,
    "xtc_threshold": 0.1,
    "min_p": 0.05,
}


def wish(dialect: str, **given: Any) -> SamplingWish:
    parse, body = DIALECTS[dialect]
    return parse(json.dumps({**body, **given}).encode(), {}, DEFAULTS).chat.sampling


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_takes_every_field(dialect: str) -> None:
    expected = {**GIVEN, "logit_bias": ((7, 2.5), (50, -100.0))}
    found = wish(dialect, **GIVEN)
    assert found.given() == expected
    again = SamplingWish.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    sampling = found.resolve(Sampling(top_k=3))
    assert (sampling.top_k, sampling.has_penalties) == (3, True)


def test_the_names_of_llama_cpp_mean_the_same() -> None:
    assert wish("chat", repeat_penalty=1.2, repeat_last_n=-1).given() == {
        "repetition_penalty": 1.2,
        "repetition_context_size": 0,
    }
    assert wish("chat", repeat_penalty=1.2, repeat_last_n=0).given()["repetition_penalty"] == 1.0
    assert wish("chat", repeat_last_n=64).given() == {"repetition_context_size": 64}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("repetition_context_size", -1),
        ("repeat_last_n", -2),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"word": 1}),
        ("logit_bias", {str(one): 1 for one in range(1025)}),
        ("xtc_probability", 1.5),
        ("xtc_threshold", 0.6),
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_value_out_of_range_is_refused_by_name(dialect: str, field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        wish(dialect, **{field: value})
    assert (refused.value.field or "").startswith(field)


@pytest.mark.parametrize("wanted", [True, False])
def test_thinking_is_switched_by_each_of_its_names(*, wanted: bool) -> None:
    for given in (
        {"enable_thinking": wanted},
        {"chat_template_kwargs": {"enable_thinking": wanted}},
        {"reasoning": {"enabled": wanted}},
        {"think": wanted},
    ):
        body = {"model": "m", "messages": MESSAGES, "reasoning_effort": "high", **given}
        chat = parse_chat(json.dumps(body).encode(), {}, DEFAULTS).chat
        assert chat.thinking is wanted
        assert (chat.thinking_limit.tokens == 0) is not wanted


@pytest.mark.parametrize(
    ("given", "thinking", "effort", "tokens"),
    [
        ({"reasoning": {"effort": "low"}}, True, "low", None),
        ({"reasoning": {"effort": "none"}}, False, "none", 0),
        ({"reasoning": {"max_tokens": 3}}, True, None, 3),
        ({"reasoning": {"enabled": True, "exclude": False}}, True, None, None),
        ({"reasoning": {}, "include_reasoning": True}, False, None, None),
        ({"reasoning_effort": "high", "reasoning": {"effort": "low"}}, True, "high", None),
        ({"think": "medium"}, True, "medium", None),
    ],
    ids=str,
)
def test_the_effort_has_further_names(
    given: dict[str, Any], effort: str | None, tokens: int | None, *, thinking: bool
) -> None:
    body = {"model": "m", "messages": MESSAGES, **given}
    chat = parse_chat(json.dumps(body).encode(), {}, DEFAULTS).chat
    assert (chat.thinking, chat.effort, chat.thinking_limit.tokens) == (thinking, effort, tokens)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"reasoning": {"exclude": True}}, "reasoning.exclude"),
        ({"reasoning": {"max_tokens": 0}}, "reasoning.max_tokens"),
        ({"include_reasoning": False}, "include_reasoning"),
        ({"think": "a lot"}, "think"),
    ],
    ids=str,
)
def test_reasoning_that_cannot_be_followed_is_refused_by_name(
    given: dict[str, Any], field: str
) -> None:
    body = {"model": "m", "messages": MESSAGES, **given}
    with pytest.raises(InvalidRequest) as refused:
        parse_chat(json.dumps(body).encode(), {}, DEFAULTS)
    assert refused.value.field == field


def test_a_template_variable_without_effect_is_refused_by_name() -> None:
    body = {"model": "m", "messages": MESSAGES, "chat_template_kwargs": {"colour": 1}}
    with pytest.raises(InvalidRequest) as refused:
        parse_chat(json.dumps(body).encode(), {}, DEFAULTS)
    assert "colour" in (refused.value.field or "")
