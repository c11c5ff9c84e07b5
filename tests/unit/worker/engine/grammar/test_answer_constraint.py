"""What each part of an answer is held to, by the real library on a small vocabulary."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.chat.generation import NO_CLAIM, PreparedPrompt
from domain.errors import InvalidRequest
from domain.values import Sampling
from tests.support.models.byte_vocabulary import ENDS, TABLE, TOKENIZER
from worker.engine.grammar.constraints import Constraints
from worker.engine.grammar.guidance import GuidanceGrammars, grammars_for
from worker.engine.grammar.ports import Constraint, ConstraintLost, GrammarRefused
from worker.engine.output.detokenizer import ByteDetokenizer
from worker.engine.output.output_parser import ThinkTags
from worker.engine.output.tool_calls.reader import JsonCallStyle, ToolFormat

_OPENS = 2
_TAGS = ThinkTags("<think>", "</think>")
_HERMES = ToolFormat(start="<tool_call>", end="</tool_call>", json=JsonCallStyle.TAGGED)
_FORMATS = {
    "hermes": _HERMES,
    "plain_tags": ToolFormat(start="<call>", end="</call>", json=JsonCallStyle.TAGGED),
    "llama": ToolFormat(start="<|python_tag|>", end="", is_bare=True, json=JsonCallStyle.BARE),
    "mistral": ToolFormat(start="[TOOL_CALLS]", end="", json=JsonCallStyle.HEADED),
    "older_mistral": ToolFormat(start="[TOOL_CALLS]", end="", json=JsonCallStyle.LIST),
}
_XML = ToolFormat(start="<tool_call>", end="</tool_call>", parse=lambda _text, _tools: [])


def _tool(name: str, *required: str, **properties: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


_READ = _tool("Read", "path", path={"type": "string"}, lines={"type": "integer"})
_WAIT = _tool("Wait", "seconds", seconds={"type": "integer", "minimum": 1, "maximum": 9})
_ASKED = {"a": {"type": "integer"}}
_FORM = {"type": "object", "properties": _ASKED, "required": ["a"], "additionalProperties": False}


@pytest.fixture(scope="module")
def grammars() -> GuidanceGrammars:
    made = grammars_for(TOKENIZER.to_str(), ENDS)
    assert made is not None
    return made


def _constraint(
    grammars: GuidanceGrammars,
    tool_format: ToolFormat | None = None,
    *,
    tools: tuple[dict[str, Any], ...] = (),
    opens: bool = False,
    **more: Any,
) -> Constraint | None:
    made = Constraints(
        grammars,
        lambda: ByteDetokenizer(TABLE),
        lambda prompt: prompt[-1] == _OPENS,
        tags=_TAGS,
        tool_format=tool_format,
    )
    prompt = PreparedPrompt(
        tokens=(_OPENS if opens else 20,),
        cached_tokens=0,
        cache_source="none",
        max_tokens=100,
        sampling=Sampling(),
        tools=tools,
        **more,
    )
    return made.constraint(prompt)


def _may(constraint: Constraint, token: int) -> bool:
    mask = constraint.mask()
    return mask is None or bool(mask[token // 8] >> (token % 8) & 1)


def _allowed_part(constraint: Constraint | None, text: str) -> str:
    """Feed a text while its tokens are allowed; return the allowed part."""
    assert constraint is not None
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    for number, token in enumerate(ids):
        if not _may(constraint, token):
            return b"".join(TABLE[one] for one in ids[:number]).decode()
        constraint.accept(token)
    return text


def _ends(constraint: Constraint | None) -> bool:
    assert constraint is not None
    return _may(constraint, 0) and _may(constraint, 1)


def _is_free(constraint: Constraint | None) -> bool:
    return constraint is None or constraint.mask() is None


@pytest.mark.parametrize(
    ("family", "call"),
    [
        ("hermes", '<tool_call>\n{"name": "Wait", "arguments": {"seconds": 3}}\n</tool_call>'),
        ("plain_tags", '<call>{"name":"Wait","arguments":{"seconds":3}}</call>'),
        ("mistral", '[TOOL_CALLS]Wait[ARGS]{"seconds": 3}'),
        ("older_mistral", '[TOOL_CALLS] [{"name": "Wait", "arguments": {"seconds": 3}}]'),
        ("llama", '{"name": "Wait", "parameters": {"seconds": 3}}'),
        ("llama", '<|python_tag|>{"name": "Wait", "parameters": {"seconds": 3}}'),
    ],
)
def test_a_call_that_the_model_opens_is_held_to_its_tool(
    grammars: GuidanceGrammars, family: str, call: str
) -> None:
    tool_format = _FORMATS[family]
    asked: Any = {"tools": (_READ, _WAIT)}
    lead = "" if tool_format.is_bare else "I wait. "
    assert _allowed_part(_constraint(grammars, tool_format, **asked), lead + call) == lead + call
    for wrong, right in (("Wait", "Nope"), ("seconds", "path"), ("3", "33")):
        other = lead + call.replace(wrong, right)
        output = _allowed_part(_constraint(grammars, tool_format, **asked), other)
        assert lead + call[:4] <= output < other
    unfinished = _constraint(grammars, tool_format, **asked)
    _allowed_part(unfinished, lead + call[:-1])
    assert not _ends(unfinished)


def test_after_a_call_the_model_is_free_and_the_next_is_held_again(
    grammars: GuidanceGrammars,
) -> None:
    constraint = _constraint(grammars, _HERMES, tools=(_WAIT,))
    call = '<tool_call>{"name": "Wait", "arguments": {"seconds": 3}}</tool_call>'
    assert _allowed_part(constraint, f"So. {call}\n{call} done {{") == f"So. {call}\n{call} done {{"
    assert _is_free(constraint)
    assert _allowed_part(constraint, '<tool_call>{"no') == '<tool_call>{"n'


def test_what_is_no_call_is_free(grammars: GuidanceGrammars) -> None:
    llama = _FORMATS["llama"]
    for text in ('{"nick": 1', ' {"name" 7', '{"name": 7', "no {"):
        constraint = _constraint(grammars, llama, tools=(_WAIT,))
        assert _allowed_part(constraint, text) == text
        assert _is_free(constraint)
    thinking = _constraint(grammars, _HERMES, tools=(_WAIT,), opens=True)
    thought = "<tool_call> no </think>\n<think> <tool_call> no"
    assert _allowed_part(thinking, thought) == thought
    assert _is_free(thinking)
    assert _is_free(_constraint(grammars, _XML, tools=(_WAIT,)))
    assert _is_free(_constraint(grammars, _HERMES))


@pytest.mark.parametrize(
    ("family", "opened", "rest"),
    [
        ("hermes", '<tool_call>\n{"name": "', 'Wait", "arguments": {"seconds": 1}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "Wait", "arguments":', ' {"seconds": 1}}</tool_call>'),
        ("mistral", "[TOOL_CALLS]Wait[ARGS]", '{"seconds": 1}'),
        ("older_mistral", '[TOOL_CALLS] [{"name": "Wait", "arguments":', '{"seconds": 1}}]'),
        ("llama", '{"name": "Wait", "parameters":', ' {"seconds": 1}}'),
    ],
)
def test_a_call_that_the_prompt_opens_is_held_from_the_first_token_on(
    grammars: GuidanceGrammars, family: str, opened: str, rest: str
) -> None:
    asked: Any = {"tools": (_READ, _WAIT), "opened": opened}
    assert not _is_free(_constraint(grammars, _FORMATS[family], **asked))
    assert _allowed_part(_constraint(grammars, _FORMATS[family], **asked), rest) == rest
    constraint = _constraint(grammars, _FORMATS[family], **asked)
    assert not _ends(constraint)
    assert _allowed_part(constraint, rest.replace("seconds", "path")) != rest.replace(
        "seconds", "path"
    )


def test_an_answer_with_a_form_is_held_after_the_reasoning(grammars: GuidanceGrammars) -> None:
    constraint = _constraint(grammars, answer_schema=_FORM, opens=True)
    assert _allowed_part(constraint, "hm {</think>\n\n") == "hm {</think>\n\n"
    assert _allowed_part(constraint, '{"a": 1}') == '{"a": 1}'
    assert _ends(constraint)
    assert _allowed_part(constraint, " ") == ""
    constraint = _constraint(grammars, answer_schema=_FORM)
    assert _allowed_part(constraint, "Sure") == ""
    assert _allowed_part(constraint, '{"b"') == '{"'
    assert not _ends(constraint)


def test_a_model_that_may_reason_opens_the_section_itself(grammars: GuidanceGrammars) -> None:
    text = '<think>x</think>\n{"a": 1}'
    assert _allowed_part(_constraint(grammars, answer_schema=_FORM, thinking=True), text) == text
    assert _allowed_part(_constraint(grammars, answer_schema=_FORM), text) == ""


def test_a_form_leaves_room_for_calls(grammars: GuidanceGrammars) -> None:
    call = '<tool_call>\n{"name": "Wait", "arguments": {"seconds": 2}}\n</tool_call>'
    asked: Any = {"answer_schema": _FORM, "tools": (_WAIT,)}
    for text in (f"{call}\n{call}", '{"a": 2}'):
        constraint = _constraint(grammars, _HERMES, **asked)
        assert _allowed_part(constraint, text) == text
        assert _ends(constraint)
    assert _allowed_part(_constraint(grammars, _HERMES, **asked), "words") == ""
    xml = _constraint(grammars, _XML, **asked)
    assert _allowed_part(xml, "<tool_call><function=Wait>") == "<tool_call><function=Wait>"
    assert _is_free(xml)
    assert _allowed_part(_constraint(grammars, _XML, **asked), "words") == ""


def test_properties_come_in_the_order_of_the_required_ones(grammars: GuidanceGrammars) -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "integer"}, "reasons": {"type": "string"}},
        "required": ["reasons", "answer"],
    }
    text = '{"reasons": "so", "answer": 1}'
    assert _allowed_part(_constraint(grammars, answer_schema=schema), text) == text


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "uniqueItems": True},
        {"type": "string", "pattern": "(?=a)b"},
        {"$ref": "https://elsewhere/schema"},
        {"type": "nonsense"},
        {"$ref": "#"},
        {"enum": ["\ud800"]},
        {"required": [5]},
        {"type": "integer", "minimum": 5, "maximum": 1},
        {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 2}]},
    ],
)
def test_a_form_that_cannot_be_kept_is_an_error_or_the_nearest_that_can(
    grammars: GuidanceGrammars, schema: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest, match="cannot be kept"):
        _constraint(grammars, answer_schema=schema, is_strict=True)
    wider = _constraint(grammars, answer_schema=schema)
    assert not _is_free(wider)
    assert _allowed_part(wider, "words") == ""


@pytest.mark.parametrize(
    ("pattern", "cause"),
    [
        ("[", "unclosed character class"),
        ("(a", "unclosed group"),
        ("(?=a)b", "look-around, including look-ahead and look-behind, is not supported"),
        ("a\nerror: b[", "unclosed character class"),
    ],
)
def test_error_of_a_pattern_states_its_cause_and_nothing_of_the_parser(
    grammars: GuidanceGrammars, pattern: str, cause: str
) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}}
    with pytest.raises(InvalidRequest) as caught:
        _constraint(grammars, answer_schema=schema, is_strict=True)
    assert caught.value.message == (
        "the schema of the answer cannot be kept:"
        f" a pattern is not a valid regular expression: {cause}"
    )


def test_a_name_that_is_no_text_leaves_calls_free(grammars: GuidanceGrammars) -> None:
    assert _is_free(_constraint(grammars, _HERMES, tools=(_tool("\ud800"), _WAIT)))


def test_one_odd_tool_leaves_the_others_as_they_are(grammars: GuidanceGrammars) -> None:
    odd = _tool("Odd", x={"type": "string", "pattern": "(?=a)b"})
    opened = '<tool_call>{"name": "'
    asked: Any = {"tools": (odd, _WAIT), "opened": opened}
    # Only the expression is left out.
    text = 'Odd", "arguments": {"x": "anything"}}</tool_call>'
    assert _allowed_part(_constraint(grammars, _HERMES, **asked), text) == text
    wrong = 'Odd", "arguments": {"x": 5'
    assert _allowed_part(_constraint(grammars, _HERMES, **asked), wrong) == wrong[:-1]
    wrong = 'Wait", "arguments": {"anything"'
    assert _allowed_part(_constraint(grammars, _HERMES, **asked), wrong) == 'Wait", "arguments": {"'


_GRAMMARS = grammars_for(TOKENIZER.to_str(), ENDS)


@given(name=st.text(string.printable + "éß„語", min_size=1, max_size=8))
def test_any_name_can_be_called(name: str) -> None:
    assert _GRAMMARS is not None
    tools = (_tool(name),)
    quoted = json.dumps(name, ensure_ascii=False)
    text = f'<tool_call>{{"name": {quoted}, "arguments": {{}}}}</tool_call>'
    assert _allowed_part(_constraint(_GRAMMARS, _HERMES, tools=tools), text) == text
    text = f"[TOOL_CALLS]{name}[ARGS]{{}}"
    assert _allowed_part(_constraint(_GRAMMARS, _FORMATS["mistral"], tools=tools), text) == text


def test_what_is_over_is_over(grammars: GuidanceGrammars) -> None:
    constraint = _constraint(grammars, answer_schema=_FORM)
    assert _allowed_part(constraint, '{"a": 1}') == '{"a": 1}'
    assert constraint is not None
    constraint.accept(1)
    assert (constraint.is_over, constraint.mask(), constraint.accepted_count) == (True, None, 9)


def test_words_sampled_without_a_constraint_end_it(grammars: GuidanceGrammars) -> None:
    constraint = _constraint(grammars, answer_schema=_FORM)
    assert constraint is not None
    for token in TOKENIZER.encode("Sure, {").ids:
        constraint.accept(token)
    assert _is_free(constraint)


def test_garbage_is_refused_and_a_lost_matcher_raises(grammars: GuidanceGrammars) -> None:
    with pytest.raises(GrammarRefused):
        grammars.of(NO_CLAIM).matchers("start: nonsense (")
    matcher = grammars.of(NO_CLAIM).matchers('start: "a"')()
    assert not matcher.accept_text("b")
    with pytest.raises(ConstraintLost):
        matcher.mask()
    assert grammars_for("{}", ENDS) is None


def test_a_grammar_is_compiled_once(grammars: GuidanceGrammars) -> None:
    grammar = f"start: {json.dumps('once')}"
    new = grammars.of(NO_CLAIM).matchers(grammar)
    one, other = new(), new()
    assert one.accept_text("on")
    assert other.accept_text("once")
    assert other.is_over
    assert not one.is_over


_WORDS = (
    "<think>hm</think>I wait.",
    '<tool_call>\n{"name": "Wait", "arguments": {"seconds": 3}}\n</tool_call>',
    '{"a": 12}',
    "<tool_call>",
    "x",
)


@given(
    texts=st.lists(st.sampled_from(_WORDS), min_size=1, max_size=3),
    cut=st.integers(0, 40),
    schema=st.sampled_from([None, _FORM]),
)
def test_looking_ahead_shows_the_masks_to_come_and_changes_nothing(
    grammars: GuidanceGrammars, texts: list[str], cut: int, schema: dict[str, Any] | None
) -> None:
    asked: Any = {"tools": (_READ, _WAIT), "answer_schema": schema}
    one, other = (_constraint(grammars, _HERMES, **asked) for _ in range(2))
    assert one is not None
    assert other is not None
    ids = TOKENIZER.encode("".join(texts), add_special_tokens=False).ids
    for token in ids[:cut]:
        if not _may(one, token):
            return
        one.accept(token)
        other.accept(token)
    ahead = one.ahead()
    assert ahead is not None
    masks = [ahead.mask()]
    for token in ids[cut:]:
        if not _may(ahead, token):
            break
        ahead.accept(token)
        masks.append(ahead.mask())
    for constraint in (one, other):
        assert constraint.mask() == masks[0]
        for token, mask in zip(ids[cut:], masks[1:], strict=False):
            constraint.accept(token)
            assert constraint.mask() == mask
