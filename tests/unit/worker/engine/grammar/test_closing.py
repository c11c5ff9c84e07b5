"""Answers that reach their limit of tokens, by the real library on a small vocabulary."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from domain.chat.generation import NO_CLAIM, PreparedPrompt
from domain.values import Sampling
from tests.support.models.byte_vocabulary import ENDS, TABLE, TOKENIZER
from worker.engine.grammar.closing import EndSearch
from worker.engine.grammar.constraints import Constraints, GrammarWriter
from worker.engine.grammar.grammar_probe import compiled
from worker.engine.grammar.guidance import GuidanceGrammars, grammars_for
from worker.engine.grammar.ports import Constraint
from worker.engine.output.detokenizer import ByteDetokenizer
from worker.engine.output.output_parser import ThinkTags
from worker.engine.output.tool_calls.reader import JsonCallStyle, ToolFormat

_CALLS = ToolFormat(start="<tool_call>", end="</tool_call>", json=JsonCallStyle.TAGGED)
_DRAFT = 5


@pytest.fixture(scope="module")
def grammars() -> GuidanceGrammars:
    made = grammars_for(TOKENIZER.to_str(), ENDS)
    assert made is not None
    return made


def _constraint(
    grammars: GuidanceGrammars, schema: dict[str, Any], max_tokens: int, **more: Any
) -> Constraint:
    made = Constraints(
        grammars,
        lambda: ByteDetokenizer(TABLE),
        lambda _: False,
        tags=ThinkTags("<think>", "</think>"),
        tool_format=_CALLS,
    ).constraint(
        PreparedPrompt(
            tokens=(20,),
            cached_tokens=0,
            cache_source="none",
            max_tokens=max_tokens,
            sampling=Sampling(),
            answer_schema=schema,
            **more,
        )
    )
    assert made is not None
    return made


def _shortest(grammars: GuidanceGrammars, schema: dict[str, Any]) -> int:
    """Return the tokens of the shortest answer that the search finds."""
    request = grammars.of(NO_CLAIM)
    writer = GrammarWriter(request.refusal, request.tag)
    grammar = writer.answer(writer.schemas.schema_rule(schema)[0])
    way = EndSearch(grammars.vocabulary).find(compiled(grammars.vocabulary, grammar), 500)
    assert way is not None
    return len(way)


def _shortest_found(grammars: GuidanceGrammars, schema: dict[str, Any]) -> int:
    """Return the same; the search gives up on long required texts in nested lists."""
    try:
        return _shortest(grammars, schema)
    except AssertionError:
        reject()


def _draw(rng: random.Random, constraint: Constraint) -> int:
    mask = constraint.mask()
    allowed = [
        token for token in range(len(TABLE)) if mask is None or mask[token // 8] >> token % 8 & 1
    ]
    plain = [token for token in allowed if token not in ENDS] if rng.random() < 0.9 else allowed
    return rng.choice(plain or allowed)


def _answer(constraint: Constraint, max_tokens: int, seed: int) -> list[int]:
    """Draw any allowed token, as a network at a very high temperature would."""
    rng, answer = random.Random(seed), list[int]()
    while len(answer) < max_tokens:
        token = constraint.within_limit(_draw(rng, constraint))
        if token in ENDS:
            break
        constraint.accept(token)
        answer.append(token)
    return answer


def _text(answer: list[int]) -> str:
    return b"".join(TABLE[token] for token in answer).decode()


_NAMES = st.text("abcxyz_-$ é", min_size=1, max_size=6)
_SCALARS = st.one_of(
    st.builds(lambda n: {"type": "string", "minLength": n}, st.integers(0, 9)),
    st.sampled_from(
        [
            {"type": "string"},
            {"type": "integer"},
            {"type": "number", "minimum": 100},
            {"type": "boolean"},
            {"type": ["string", "null"]},
            {"const": 'it\'s "so"'},
            {"type": "string", "pattern": "^[a-c]{1,3}-[0-9]$"},
            {"type": "string", "format": "date"},
        ]
    ),
    st.builds(lambda values: {"enum": values}, st.lists(_NAMES, min_size=1, max_size=4)),
)


def _object(properties: dict[str, Any], needed: int, *, is_open: bool) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(properties)[:needed],
        "additionalProperties": is_open,
    }


_SCHEMAS = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.builds(
            lambda items, least: {"type": "array", "items": items, "minItems": least},
            inner,
            st.integers(0, 3),
        ),
        st.builds(lambda choices: {"anyOf": choices}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(
            _object,
            st.dictionaries(_NAMES, inner, max_size=4),
            st.integers(0, 4),
            is_open=st.booleans(),
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(schema=_SCHEMAS, spare=st.integers(0, 40), seed=st.integers(0, 2**32))
def test_an_answer_with_room_for_the_shortest_one_is_whole_at_its_limit(
    grammars: GuidanceGrammars, schema: dict[str, Any], spare: int, seed: int
) -> None:
    max_tokens = _shortest_found(grammars, schema) + spare
    constraint = _constraint(grammars, schema, max_tokens)
    answer = _answer(constraint, max_tokens, seed)
    jsonschema_rs.validator_for(schema).validate(json.loads(_text(answer)))


@settings(max_examples=20, deadline=None)
@given(schema=_SCHEMAS, spare=st.integers(0, 40), seed=st.integers(0, 2**32))
def test_what_may_come_depends_on_the_tokens_before_alone(
    grammars: GuidanceGrammars, schema: dict[str, Any], spare: int, seed: int
) -> None:
    max_tokens = _shortest_found(grammars, schema) + spare
    constraint = _constraint(grammars, schema, max_tokens)
    rng, answer = random.Random(seed), list[int]()
    while len(answer) < max_tokens:
        drawn = _draw(rng, constraint)
        resumed = _constraint(grammars, schema, max_tokens)
        for token in answer:
            resumed.accept(token)
        token = constraint.within_limit(drawn)
        assert resumed.within_limit(drawn) == token
        # A draft is followed ahead, with the same ends.
        ahead = constraint.ahead()
        assert ahead is not None
        for _ in range(_DRAFT):
            later = ahead.within_limit(_draw(rng, ahead))
            if later in ENDS:
                break
            ahead.accept(later)
        assert constraint.within_limit(drawn) == token
        if token in ENDS:
            break
        constraint.accept(token)
        answer.append(token)


_POINT = _object(
    {"x": {"type": "integer"}, "names": {"type": "array", "items": {}}}, 2, is_open=False
)


def test_a_limit_below_the_shortest_answer_changes_nothing(grammars: GuidanceGrammars) -> None:
    short = _shortest(grammars, _POINT) - 1
    limited = _constraint(grammars, _POINT, short)
    wide = _constraint(grammars, _POINT, 10_000)
    assert _answer(limited, short, 3) == _answer(wide, short, 3)
    assert not limited.is_cut


def test_an_answer_far_from_its_limit_is_not_changed(grammars: GuidanceGrammars) -> None:
    schema = {"type": "object"}
    ids = TOKENIZER.encode('{"a": [[[[{"b": "' + "x" * 400 + '"}]]]]}').ids
    constraint = _constraint(grammars, schema, len(ids) + 9)
    for token in ids:
        assert constraint.within_limit(token) == token
        constraint.accept(token)
    assert not constraint.is_cut
    tight = _constraint(grammars, schema, len(ids) - 9)
    answer = []
    for token in ids[: len(ids) - 9]:
        answer.append(tight.within_limit(token))
        tight.accept(answer[-1])
    assert tight.is_cut
    # The last texts are cut, and all that is open is closed.
    assert json.loads(_text(answer))["a"]


def test_a_call_is_not_closed_by_the_limit(grammars: GuidanceGrammars) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "Say",
            "parameters": _object({"a": {"type": "string"}}, 1, is_open=False),
        },
    }
    text = '<tool_call>{"name": "Say", "arguments": {"a": "and so on and'
    ids = TOKENIZER.encode(text).ids
    constraint = _constraint(grammars, _POINT, 60, tools=(tool,))
    for token in ids:
        assert constraint.within_limit(token) == token
        constraint.accept(token)
    assert not constraint.is_cut
    assert not constraint.is_near_limit
