"""Calls between marks: what the grammar lets through, read again, matches the tool's schema."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.chat.generation import EmittedCall, PreparedPrompt
from domain.errors import InvalidRequest
from domain.values import Sampling
from tests.support.models.byte_vocabulary import ENDS, TABLE, TOKENIZER
from tests.support.models.tagged_families import FAMILIES
from worker.engine.grammar.constraints import Constraints
from worker.engine.grammar.guidance import GuidanceGrammars, grammars_for
from worker.engine.grammar.ports import Constraint
from worker.engine.output.detokenizer import ByteDetokenizer
from worker.engine.output.output_parser import SectionParser
from worker.engine.output.tool_calls.reader import CallRules, JsonCallStyle, ToolFormat
from worker.engine.text_assembler import TextAssembler

#: The longest walk; what has not ended by then counts as cut.
_TOKENS_MAX = 700


def _grammars() -> GuidanceGrammars:
    made = grammars_for(TOKENIZER.to_str(), ENDS)
    assert made is not None
    return made


_GRAMMARS = _grammars()


def _tool(schema: Any, name: str = "Try") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def _constraint(
    family: ToolFormat, *tools: dict[str, Any], opened: str = "", strict: tuple[str, ...] = ()
) -> Constraint:
    made = Constraints(
        _GRAMMARS,
        lambda: ByteDetokenizer(TABLE),
        lambda _prompt: False,
        tags=None,
        tool_format=family,
    )
    prompt = PreparedPrompt(
        tokens=(20,),
        cached_tokens=0,
        cache_source="none",
        max_tokens=100,
        sampling=Sampling(),
        tools=tools,
        opened=opened,
        strict_tools=strict,
    )
    constraint = made.constraint(prompt)
    assert constraint is not None
    return constraint


def _allowed(constraint: Constraint) -> list[int] | None:
    mask = constraint.mask()
    if mask is None:
        return None
    return [n for n in range(len(TABLE)) if mask[n // 8] >> (n % 8) & 1]


def _read(
    family: ToolFormat, tools: Iterable[dict[str, Any]], ids: Iterable[int], opened: str = ""
) -> tuple[str, tuple[EmittedCall, ...]]:
    rules = CallRules(format=family, tools=tuple(tools))
    parser = SectionParser(None, (), thinking=False, calls=rules)
    assembler = TextAssembler(ByteDetokenizer(TABLE), parser, opened=opened)
    for token in ids:
        assembler.feed(token)
    assembler.flush(cut=True)
    return assembler.text, assembler.calls


def _allowed_part(constraint: Constraint, text: str) -> str:
    """Feed a text while its tokens are allowed; return the allowed part."""
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    for number, token in enumerate(ids):
        allowed = _allowed(constraint)
        if allowed is not None and token not in allowed:
            return b"".join(TABLE[one] for one in ids[:number]).decode()
        constraint.accept(token)
    return text


_NAMES = st.text("abcXYZ_019-", min_size=1, max_size=4).filter(lambda name: name[0] not in "-019")
_WORDS = st.one_of(
    st.text("ab<>/\n \"'\\é{[1", max_size=4),
    st.sampled_from(["null", "true", "7", "-1.5", "{}", "</parameter>", "None"]),
)
_TEXTS = st.one_of(
    st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 4)),
    st.builds(
        lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
        st.integers(1, 3),
        st.integers(0, 3),
    ),
    st.builds(lambda values: {"enum": values}, st.lists(_WORDS, min_size=1, max_size=4)),
    st.sampled_from(
        [
            {"type": "string", "pattern": "^[a-c]{1,3}-\\d$"},
            {"type": "string", "pattern": "^(x|/y)$|^é{2}$"},
            {"type": "string", "format": "date"},
            {"type": "string", "format": "uuid"},
            {"$ref": "#/$defs/shared"},
        ]
    ),
)
_OTHERS = st.one_of(
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        st.integers(-50, 50),
        st.integers(0, 900),
    ),
    st.sampled_from(
        [
            {"type": "boolean"},
            {"type": "null"},
            {"const": False},
            {"enum": [1, None, True]},
            {"type": ["integer", "null"], "maximum": 99, "minimum": 0},
        ]
    ),
)
_MIXED = st.one_of(
    st.builds(lambda one, other: {"anyOf": [one, other]}, _TEXTS, _OTHERS),
    st.sampled_from(
        [
            {"enum": ["a", "1", 1, None, "null"]},
            {"type": ["string", "null"], "maxLength": 3},
            {"type": ["string", "boolean"], "maxLength": 5},
            {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "array", "maxItems": 2,
             "items": {"type": "integer", "minimum": 0, "maximum": 9}}]},
        ]
    ),
)  # fmt: skip
_VALUES = st.one_of(
    _TEXTS,
    _OTHERS,
    _MIXED,
    st.sampled_from(
        [
            # Grammars do not count so far, and the tokens of a test do not reach so far.
            {"type": "string", "maxLength": 900},
            {"anyOf": [{"type": "string", "minLength": 3, "maxLength": 900}, {"type": "null"}]},
            {"type": "string", "minLength": 1},
            {},
        ]
    ),
    st.builds(
        lambda items, most: {"type": "array", "items": items, "maxItems": most},
        st.one_of(_TEXTS, _OTHERS),
        st.integers(0, 2),
    ),
    st.builds(
        lambda name, inner: {
            "type": "object",
            "properties": {name: inner},
            "required": [name],
            "additionalProperties": False,
        },
        _NAMES,
        st.one_of(_TEXTS, _OTHERS),
    ),
)


@st.composite
def _schemas(draw: st.DrawFn) -> dict[str, Any]:
    properties = draw(st.dictionaries(_NAMES, _VALUES, max_size=4))
    required = st.lists(st.sampled_from(sorted(properties)), unique=True) if properties else None
    return {
        "type": "object",
        "properties": properties,
        "required": [] if required is None else draw(required),
        "additionalProperties": draw(st.sampled_from([False, False, {"type": "boolean"}])),
        "$defs": {"shared": {"type": "string", "maxLength": 2}},
    }


@settings(deadline=None, max_examples=60)
@given(
    family=st.sampled_from(sorted(FAMILIES)),
    schema=_schemas(),
    named=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_whatever_is_drawn_the_arguments_match(
    family: str, schema: dict[str, Any], seed: int, *, named: bool
) -> None:
    tool_format, draw = FAMILIES[family], random.Random(seed)
    tool = _tool(schema)
    opened = (tool_format.opening_named if named else tool_format.opening).replace("NAME", "Try")
    constraint, ids = _constraint(tool_format, tool, opened=opened), list[int]()
    while (allowed := _allowed(constraint)) is not None and len(ids) < _TOKENS_MAX:
        assert allowed
        ids.append(draw.choice(allowed))
        constraint.accept(ids[-1])
    text, calls = _read(tool_format, [tool], ids, opened)
    if allowed is None:
        assert not text.strip()
        assert calls
        assert calls[0].is_complete
    for call in calls:
        assert call.name == "Try"
        if call.is_complete:
            jsonschema_rs.validator_for(schema).validate(json.loads(call.arguments))


_READ = _tool(
    {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1},
            "all": {"type": "boolean"},
            "edits": {"type": "array", "items": {"type": "string"}},
            "tag": {"type": ["string", "null"]},
        },
        "required": ["path", "limit"],
        "additionalProperties": False,
    },
    "Read",
)
_WAIT = _tool({"type": "object", "properties": {}, "additionalProperties": False}, "Wait")
_CALLS = {
    "qwen": (
        "<tool_call>\n<function=Read>\n<parameter=limit>\n3\n</parameter>\n<parameter=all>\nTrue\n"
        "</parameter>\n<parameter=path>\n\n a</tool_call>\n\n</parameter>\n<parameter=edits>\n"
        '["</parameter>"]\n</parameter>\n<parameter=tag>\nnull\n</parameter>\n</function>\n'
        "</tool_call>"
    ),
    "glm": (
        "<tool_call>Read<arg_key>limit</arg_key><arg_value>3</arg_value><arg_key>all</arg_key>"
        "<arg_value>true</arg_value><arg_key>path</arg_key><arg_value>\n a</tool_call>\n"
        '</arg_value><arg_key>edits</arg_key><arg_value>["</parameter>"]</arg_value>'
        "<arg_key>tag</arg_key><arg_value>null</arg_value></tool_call>"
    ),
    "minimax": (
        '<tool_call>\n<invoke name="Read">\n<parameter name="limit">3</parameter>\n'
        '<parameter name="all">true</parameter>\n<parameter name="path">\n a</tool_call>\n'
        '</parameter>\n<parameter name="edits">["</parameter>"]</parameter>\n'
        '<parameter name="tag">null</parameter>\n</invoke>\n</tool_call>'
    ),
    "minicpm": (
        '<function name="Read"><param name="limit">3</param><param name="all">true</param>'
        '<param name="path"><![CDATA[\n a</tool_call>\n]]></param>'
        '<param name="edits">["</parameter>"]</param><param name="tag">null</param></function>'
    ),
    "gemma": (
        '<tool_call>call:Read{limit:3,all:true,path:<|"|>\n a</tool_call>\n<|"|>,'
        'edits:[<|"|></parameter><|"|>],tag:null}</tool_call>'
    ),
    "python": (
        '<tool_call>[Read(limit=3, all=True, path="\\n a</tool_call>\\n", '
        'edits=["</parameter>"], tag=None)]</tool_call>'
    ),
}
_ARGUMENTS = {
    "limit": 3,
    "all": True,
    "path": "\n a</tool_call>\n",
    "edits": ["</parameter>"],
    "tag": None,
}


@pytest.mark.parametrize("family", sorted(_CALLS))
def test_a_call_may_give_its_arguments_in_any_order_and_is_read_as_it_was_meant(
    family: str,
) -> None:
    tool_format, call = FAMILIES[family], _CALLS[family]
    # The tag inside the argument is text there, not the token of that name.
    ids = [token for piece in _cut_at_tags(call) for token in piece]
    constraint = _constraint(tool_format, _READ, _WAIT)
    for token in ids:
        allowed = _allowed(constraint)
        assert allowed is None or token in allowed
        constraint.accept(token)
    assert _allowed(constraint) is None
    text, calls = _read(tool_format, [_READ, _WAIT], ids)
    assert text == ""
    assert [(one.name, json.loads(one.arguments)) for one in calls] == [("Read", _ARGUMENTS)]


def _cut_at_tags(call: str) -> Iterable[list[int]]:
    before, inside, behind = call.partition(" a</tool_call>")
    yield TOKENIZER.encode(before, add_special_tokens=False).ids
    for char in inside:
        yield TOKENIZER.encode(char, add_special_tokens=False).ids
    yield TOKENIZER.encode(behind, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("output", "allowed"),
    [
        ("<function=Nope>", "<function="),
        ("<function=Read>\n</function>", "<function=Read>\n<"),
        ("<function=Read>\n<parameter=other>", "<function=Read>\n<parameter="),
        ("<function=Read>\n<parameter=limit>\n0", "<function=Read>\n<parameter=limit>\n"),
        ("<function=Wait>\n<parameter=", "<function=Wait>\n<"),
    ],
)
def test_what_the_schema_forbids_cannot_be_written(output: str, allowed: str) -> None:
    lead = "So. <tool_call>\n"
    constraint = _constraint(FAMILIES["qwen"], _READ, _WAIT)
    assert _allowed_part(constraint, lead + output) == lead + allowed


def test_an_argument_is_given_once() -> None:
    given_once = "<tool_call><function=Read>\n<parameter=path>\na\n</parameter>\n"
    constraint = _constraint(FAMILIES["qwen"], _READ)
    assert _allowed_part(constraint, f"{given_once}<parameter=path>") == f"{given_once}<parameter="


def test_a_call_without_the_tag_before_it_is_held_too() -> None:
    output = "<function=Wait>\n</function>\n</tool_call> so"
    assert _allowed_part(_constraint(FAMILIES["qwen"], _READ, _WAIT), output) == output
    assert _allowed_part(_constraint(FAMILIES["qwen"], _READ), output) == "<function="
    _, calls = _read(FAMILIES["qwen"], [_WAIT], TOKENIZER.encode(output).ids)
    assert [one.arguments for one in calls] == ["{}"]


def test_many_arguments_come_in_the_order_of_the_schema() -> None:
    names = [f"p{n:02d}" for n in range(70)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "boolean"} for name in names},
        "required": ["p05"],
        "additionalProperties": False,
    }
    parts = "".join(f"<parameter={name}>\ntrue\n</parameter>\n" for name in ("p05", "p01", "p69"))
    output = f"<tool_call>\n<function=Try>\n{parts}</function>\n</tool_call>"
    assert _allowed_part(_constraint(FAMILIES["qwen"], _tool(schema)), output) == output


@pytest.mark.parametrize(
    "inner",
    [
        {"type": "string", "pattern": "(?=a)b"},
        {"type": "string", "format": "ipv6"},
        {"not": {"const": "a"}},
        {"type": "string", "minLength": "no number"},
        {"oneOf": [{"type": "string"}, {"maxLength": 2}]},
        {"type": "array", "uniqueItems": True},
        {"type": "string", "pattern": "a", "maxLength": 5000},
        {"const": "</parameter>"},
        {"type": "string", "pattern": "(("},
    ],
)
def test_what_cannot_be_kept_is_left_out_for_that_argument_alone(inner: dict[str, Any]) -> None:
    schema = {
        "type": "object",
        "properties": {"odd": inner, "n": {"type": "integer", "minimum": 5, "maximum": 6}},
        "required": ["odd", "n"],
    }
    is_array = inner.get("type") == "array"
    odd = f"<parameter=odd>\n{'[1, 1]' if is_array else 'any text'}\n</parameter>\n"
    lead = f"<tool_call>\n<function=Try>\n{odd}<parameter=n>\n"
    assert _allowed_part(_constraint(FAMILIES["qwen"], _tool(schema)), f"{lead}7") == lead


@pytest.mark.parametrize("family", ["qwen", "glm", "kimi", "hermes"])
def test_a_strict_tool_that_cannot_be_kept_is_refused_by_its_name_and_the_keyword(
    family: str,
) -> None:
    hermes = ToolFormat(start="<tool_call>", end="</tool_call>", json=JsonCallStyle.TAGGED)
    tool_format = {**FAMILIES, "hermes": hermes}[family]
    schema = {"type": "object", "properties": {"n": {"type": "array", "uniqueItems": True}}}
    odd = _tool(schema, "Odd")
    with pytest.raises(InvalidRequest, match=r"tool Odd is strict.*uniqueItems") as caught:
        _constraint(tool_format, _READ, odd, strict=("Odd", "Read"))
    assert caught.value.field == "tools"
    # Kept, or not asked to be.
    _constraint(tool_format, _READ, odd, strict=("Read",))


_NESTED = _tool(
    {
        "type": "object",
        "properties": {
            "edits": {
                "type": "array",
                "minItems": 1,
                "maxItems": 3,
                "items": {
                    "type": "object",
                    "properties": {
                        "text": {"type": "string"},
                        "at": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                        "kind": {"enum": ["add", "remove"]},
                        "tree": {"$ref": "#/$defs/tree"},
                    },
                    "required": ["text", "kind"],
                    "additionalProperties": False,
                },
            },
        },
        "required": ["edits"],
        "additionalProperties": False,
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {"in": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
                "additionalProperties": False,
            }
        },
    },
    "Edit",
)


def test_values_within_values_have_bare_names_and_marked_strings() -> None:
    lead = "<tool_call>call:Edit{edits:["
    first = '{kind:<|"|>add<|"|>,text:<|"|>{"a": [},<|"|>,at:null,tree:{in:[{},{in:[]}]}}'
    whole = f'{lead}{first},{{text:<|"|><|"|>,kind:<|"|>remove<|"|>}}]}}</tool_call>'
    assert _allowed_part(_constraint(FAMILIES["gemma"], _NESTED, strict=("Edit",)), whole) == whole
    _, (call,) = _read(FAMILIES["gemma"], [_NESTED], TOKENIZER.encode(whole).ids)
    tree: dict[str, Any] = {"in": [{}, {"in": []}]}
    assert json.loads(call.arguments) == {
        "edits": [
            {"kind": "add", "text": '{"a": [},', "at": None, "tree": tree},
            {"text": "", "kind": "remove"},
        ]
    }
    for wrong, allowed in (
        ("]", ""),
        ('{kind:<|"|>move', '{kind:<|"|>'),
        ('{text:"', "{text:"),
        ('{"text"', "{"),
        ("{at:1}", "{at:1"),
    ):
        constraint = _constraint(FAMILIES["gemma"], _NESTED)
        assert _allowed_part(constraint, lead + wrong) == lead + allowed


def test_any_object_may_be_an_argument() -> None:
    tool = _tool({"type": "object", "properties": {"any": {}, "map": {"type": "object"}}})
    text = '<tool_call>call:Try{map:{a:1,b:{c:[<|"|>x<|"|>,-2.5e3]}},any:[[],true]}</tool_call>'
    assert _allowed_part(_constraint(FAMILIES["gemma"], tool), text) == text
    _, (call,) = _read(FAMILIES["gemma"], [tool], TOKENIZER.encode(text).ids)
    assert json.loads(call.arguments) == {
        "map": {"a": 1, "b": {"c": ["x", -2500.0]}},
        "any": [[], True],
    }
