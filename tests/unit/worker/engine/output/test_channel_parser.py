"""Answers of several framed messages: Harmony (gpt-oss) and Muse Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tool_parsers import muse_spark
from pydantic_core import from_json

from domain.chat.items import Text, Thinking, ToolEnd, ToolInput, ToolStart
from tests.support.models.tool_calls import JOB, TOOLS, Item, items_of
from worker.engine.output.channel_parser import HARMONY, MUSE_SPARK, ChannelFormat, ChannelParser
from worker.engine.output.detokenizer import ByteDetokenizer
from worker.engine.output.tool_calls.reader import CallRules, ToolFormat
from worker.engine.ports import TokenLikelihood
from worker.engine.text_assembler import LogprobTracker, TextAssembler

#: Harmony's headers make calls; Muse Spark puts tags into the message.
_FORMATS: dict[ChannelFormat, ToolFormat] = {
    HARMONY: ToolFormat(start="<|channel|>commentary to=functions.", end="<|call|>"),
    MUSE_SPARK: ToolFormat(
        start=muse_spark.tool_call_start,
        end=muse_spark.tool_call_end,
        parse=lambda text, tools: muse_spark.parse_tool_call(text, [*tools]),
    ),
}


def _assembler(
    tokens: Sequence[str],
    form: ChannelFormat = HARMONY,
    *,
    stop: Sequence[str] = (),
    may_call: bool = True,
    **options: Any,
) -> TextAssembler:
    rules = CallRules(format=_FORMATS[form], tools=TOOLS) if may_call else None
    table = [token.encode("utf-8", "replace") for token in tokens]
    parser = ChannelParser(form, stop, calls=rules)
    return TextAssembler(ByteDetokenizer(table), parser, job_id=JOB, **options)


def _outline(
    output: str, form: ChannelFormat = HARMONY, *, by: int = 1, cut: bool = False, **options: Any
) -> list[Any]:
    tokens = [output[n : n + by] for n in range(0, len(output), by)]
    return _short(items_of(_assembler(tokens, form, **options), range(len(tokens)), cut=cut))


def _short(items: Sequence[Item]) -> list[Any]:
    """Texts as they are, reasoning in a list, calls as name and arguments."""
    short: list[Any] = []
    for item in items:
        match item:
            case Text(text=text) if short and isinstance(short[-1], str):
                short[-1] += text
            case Text(text=text):
                short.append(text)
            case Thinking(text=text) if short and isinstance(short[-1], list):
                short[-1][0] += text
            case Thinking(text=text):
                short.append([text])
            case ToolStart(name=name):
                short.append((name, ""))
            case ToolInput(fragment=fragment):
                short[-1] = (short[-1][0], short[-1][1] + fragment)
            case ToolEnd():
                short[-1] = (short[-1][0], _value(short[-1][1]))
    return short


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


_ANALYSIS = "<|channel|>analysis<|message|>Hm, tea.<|end|>"
_FINAL = "<|channel|>final<|message|>It is four."
_CALL = '<|channel|>commentary to=functions.Bash <|constrain|>json<|message|>{"command": "ls"}'
_LS = ("Bash", {"command": "ls"})
_NEXT = "<|start|>assistant"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (_FINAL, ["It is four."]),
        (f"{_ANALYSIS}{_NEXT}{_FINAL}", [["Hm, tea."], "It is four."]),
        (f"{_ANALYSIS}{_NEXT}{_FINAL}<|return|>", [["Hm, tea."], "It is four."]),
        (f"{_ANALYSIS}{_NEXT}{_CALL}", [["Hm, tea."], _LS]),
        (f"{_ANALYSIS}{_NEXT}{_CALL}<|call|>", [["Hm, tea."], _LS]),
        # A preamble, then the call; two messages of one kind are two paragraphs.
        (f"<|channel|>commentary<|message|>I look.<|end|>{_NEXT}{_CALL}", ["I look.", _LS]),
        (f"{_ANALYSIS}{_NEXT}{_ANALYSIS}{_NEXT}{_FINAL}",
         [["Hm, tea.\n\nHm, tea."], "It is four."]),
        (f"<|channel|>commentary<|message|>Plan.<|end|>{_NEXT}{_FINAL}",
         ["Plan.\n\nIt is four."]),
        # Calls at once, and an answer behind a call.
        (f"{_CALL}<|end|>{_NEXT}{_CALL}<|call|>", [_LS, _LS]),
        (f"{_CALL}<|call|>{_NEXT}{_FINAL}", [_LS, "It is four."]),
        # The recipient in the role, and the ways in which the rest is written.
        (' to=functions.Bash<|channel|>commentary json<|message|>{"command": "ls"}', [_LS]),
        ((f'{_ANALYSIS}{_NEXT} to=functions.Bash<|channel|>commentary <|constrain|>json<|message|>'
         '{"command": "ls"}<|call|>'), [["Hm, tea."], _LS]),
        ('<|channel|>commentary to=functions.Bash<|constrain|>json<|message|>{"command": "ls"}',
         [_LS]),
        (('<|channel|>commentary to=functions.Bash<|channel|>commentary json<|message|>'
         '{"command": "ls"}'), [_LS]),
        ('<|channel|>analysis to=functions.Bash code<|message|>{"command": "ls"}', [_LS]),
        ('<|channel|>commentary to=Bash<|message|>{"command": "ls"}', [_LS]),
        ('<|channel|>commentary to=functions.no_such <|message|>{"a": 1}',
         [("no_such", {"a": 1})]),
        ("<|channel|>commentary to=functions.Bash <|message|><|call|>", [("Bash", {})]),
        ("<|channel|>commentary to=functions.Bash <|message|>", [("Bash", {})]),
        (f"{_CALL}}}\n<|call|>", [_LS]),
        # A marker inside a string belongs to the string.
        ('<|channel|>commentary to=functions.Bash <|message|>{"command": "echo <|end|><|call|>"}',
         [("Bash", {"command": "echo <|end|><|call|>"})]),
        ('<|channel|>commentary to=functions.Bash <|message|>{"command": "a\nb"}<|call|>',
         [("Bash", {"command": "a\nb"})]),
        # Built-in tools of the vendor that the request does not offer.
        ("<|channel|>analysis to=python code<|message|>print(1)<|call|>", [["python print(1)"]]),
        # A tool result that the model makes up is text.
        ((f"{_CALL}<|call|><|start|>functions.Bash to=assistant<|channel|>commentary"
         "<|message|>a.txt<|end|>"), [_LS, "a.txt"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by", [1, 7, 10_000])
def test_headers_decide_the_section_of_messages(output: str, expected: list[Any], by: int) -> None:
    assert _outline(output, by=by) == expected


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("Plain words.", ["Plain words."]),
        ("to be or not", ["to be or not"]),
        ("json is a format", ["json is a format"]),
        ("<|channel|>mood<|message|>Four.", ["Four."]),
        ("<|message|>Four.", ["Four."]),
        # No mark before the message: what follows a channel that is known belongs to it.
        ("<|channel|>final It is four, I think.", ["It is four, I think."]),
        ("<|channel|>final\nIt is four.", ["It is four."]),
        ("<|channel|>analysis I should count to four<|end|>" + _NEXT + _FINAL,
         [["I should count to four"], "It is four."]),
        ("<|channel|>It is four, I think.<|message|>Yes.",
         ["It is four, I think.\n\nYes."]),
        ("<|channel|>Hello<|end|>", ["Hello"]),
        # Headers that are repeated, or lead nowhere.
        (f"{_NEXT}{_NEXT}{_FINAL}", ["It is four."]),
        (f"<|channel|>analysis{_FINAL}", ["It is four."]),
        (f"<|channel|>analysis{_NEXT}{_FINAL}", ["It is four."]),
        (f"<|channel|>final<|message|><|message|>a<|constrain|>b{_NEXT}{_ANALYSIS}",
         ["a\n\nb", ["Hm, tea."]]),
        (f"<|end|><|end|>{_FINAL}<|end|>\n<|start|>\n", ["It is four."]),
        ("<|channel|>final<|message|>a<|end|> and b", ["a\n\nand b"]),
        (f"<|channel|>final<|message|>a{_ANALYSIS}", ["a", ["Hm, tea."]]),
        ("<|start|>user<|message|>And you?<|end|>", ["And you?"]),
        # What should be a call and is none.
        ("<|channel|>commentary to=functions.Bash <|message|>ls -l<|call|>",
         ["functions.Bash ls -l"]),
        ("<|channel|>commentary to=functions.Bash <|message|>[1]<|end|>",
         ["functions.Bash [1]"]),
        ('<|channel|>commentary to=functions.Bash <|message|>{"command": "rm" oops}<|end|>',
         [("Bash", '{"command": "rm" '), "oops}"]),
        ("<|channel|>commentary to=functions.Bash<|end|>", ["to=functions.Bash"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by", [1, 10_000])
def test_broken_frames_lose_nothing_and_show_no_mark(
    output: str, expected: list[Any], by: int
) -> None:
    outline = _outline(output, by=by)
    assert [part.strip() if isinstance(part, str) else part for part in outline] == expected


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (_CALL[:-3], [("Bash", '{"command": "l')]),
        (f"{_ANALYSIS}{_NEXT}<|channel|>comm", [["Hm, tea."]]),
        (f"{_ANALYSIS}<|start|>assis", [["Hm, tea."]]),
        ("<|channel|>commentary to=functions.Ba", [" to=functions.Ba"]),
        ("<|channel|>commentary to=functions.Bash <|message|>", ["functions.Bash "]),
        ("<|channel|>analysis<|message|>Hm, t", [["Hm, t"]]),
    ],
)
def test_a_cut_message_is_never_emitted_as_complete(output: str, expected: list[Any]) -> None:
    outline = _outline(output, cut=True)
    assert [part.lstrip() if isinstance(part, str) else part for part in outline] == [
        part.lstrip() if isinstance(part, str) else part for part in expected
    ]


def test_without_tools_a_call_is_text() -> None:
    assert _outline(f"{_CALL}<|call|>", may_call=False) == ['functions.Bash {"command": "ls"}']


def test_arguments_come_while_they_are_written() -> None:
    tokens = list(_CALL)
    items = items_of(_assembler(tokens), range(len(tokens)))
    assert isinstance(items[0], ToolStart)
    fragments = [item.fragment for item in items if isinstance(item, ToolInput)]
    assert "".join(fragments) == '{"command": "ls"}'
    # The item with the name delays the next one by a token; the others follow at once.
    assert max(map(len, fragments)) <= 2


def test_a_call_that_the_prompt_began_is_the_answers() -> None:
    named, arguments = "Bash <|constrain|>json<|message|>", '{"command": "ls"}'
    any_call = "<|channel|>commentary to=functions."
    assert _outline(named + arguments, opened=any_call) == [_LS]
    assert _outline(arguments, opened=any_call + named) == [_LS]


def test_a_single_call_ends_the_answer() -> None:
    assert _outline(f"{_CALL}<|end|>{_NEXT}{_CALL}", is_single=True) == [_LS]


def test_stop_texts_count_in_the_answer_alone() -> None:
    output = f"<|channel|>analysis<|message|>STOP<|end|>{_NEXT}{_CALL.replace('ls', 'STOP')}<|end|>"
    answer = f"{_NEXT}<|channel|>final<|message|>a STOP b"
    assert _outline(output + answer, stop=["STOP"]) == [
        ["STOP"],
        ("Bash", {"command": "STOP"}),
        "a ",
    ]


def test_only_tokens_of_the_answer_have_logprobs() -> None:
    tokens = ["<|channel|>", "analysis", "<|message|>", "Hm", "<|end|>", "<|start|>", "assistant",
              "<|channel|>", "commentary", "<|message|>", "a", "<|end|>", "<|start|>", "assistant",
              "<|channel|>", "final", "<|message|>", "b", " c"]  # fmt: skip
    tracker = LogprobTracker(lambda token: tokens[token].encode())
    assembler = _assembler(tokens, tracker=tracker)
    for token in range(len(tokens)):
        assembler.feed(token, TokenLikelihood(-0.5, ()))
    assembler.flush()
    assert assembler.text == "a\n\nb c"
    assert [value.token for value in assembler.logprobs or ()] == [b"a", b"b", b" c"]


_ATEM = (
    '<atem:function_calls><atem:invoke name="Bash"><atem:parameter name="command">ls'
    "</atem:parameter></atem:invoke></atem:function_calls>"
)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Four.<|eot|>",
         [["Hm."], "Four."]),
        ((f" to=self<|message|>Hm.<|eom|><|start|>assistant to=Bash<|message|>{_ATEM}<|eom|>"
         f"<|start|>assistant to=Bash<|message|>{_ATEM}<|eot|>"), [["Hm."], _LS, _LS]),
        (f"to=commentary<|message|>I look. {_ATEM}", ["I look. ", _LS]),
        ("to=user<|message|>Write <atem:function_calls> so.",
         ["Write <atem:function_calls> so."]),
        ("Four.", ["Four."]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by", [1, 10_000])
def test_muse_spark_names_the_recipient_in_the_header(
    output: str, expected: list[Any], by: int
) -> None:
    assert _outline(output, MUSE_SPARK, by=by) == expected


def test_a_call_of_muse_spark_that_the_prompt_began_is_the_answers() -> None:
    opened = ' to=Bash<|message|><atem:function_calls>\n<atem:invoke name="Bash">\n'
    rest = _ATEM.partition('<atem:invoke name="Bash">')[2]
    assert _outline(rest, MUSE_SPARK, opened=opened) == [_LS]


def test_a_recipient_after_an_invalid_header_is_text() -> None:
    output = "<|channel|> to=self"
    for tokens in ([output], list(output)):
        assembler = _assembler(tokens, MUSE_SPARK)
        items_of(assembler, range(len(tokens)), cut=False)
        assert (assembler.text, assembler.thinking) == (output, "")


_PIECES = st.sampled_from(
    [
        *HARMONY.markers, *MUSE_SPARK.markers, "assistant", "analysis", "final", "commentary",
        "user", " to=functions.Bash", " to=self", " to=user", "json", " ", "\n", "a", "é", "STOP",
        "<|", '{"command": "ls', '"}', "{", "}", '"', "\\", "1e", _ANALYSIS, _CALL, _FINAL, _ATEM,
        "<atem:function_calls>", "</atem:function_calls>",
    ]
)  # fmt: skip
_OUTPUT = st.lists(_PIECES, max_size=14).map("".join)
_FORM = st.sampled_from(list(_FORMATS))


@st.composite
def _cut(draw: st.DrawFn) -> list[str]:
    output = draw(_OUTPUT)
    cuts = sorted(draw(st.sets(st.integers(0, len(output)), max_size=12)))
    return [output[a:b] for a, b in pairwise([0, *cuts, len(output)])]


@given(tokens=_cut(), form=_FORM, cut=st.booleans(), may_call=st.booleans())
def test_what_is_read_does_not_depend_on_how_the_text_was_cut(
    tokens: list[str], form: ChannelFormat, *, cut: bool, may_call: bool
) -> None:
    def whole(tokens: Sequence[str]) -> Any:
        assembler = _assembler(tokens, form, stop=("STOP",), may_call=may_call)
        items_of(assembler, range(len(tokens)), cut=cut)
        return assembler.text, assembler.thinking, assembler.calls, assembler.stop_sequence

    assert whole(tokens) == whole(list("".join(tokens)))


@given(tokens=_cut(), form=_FORM, data=st.data(), single=st.booleans())
def test_a_resumed_assembler_emits_exactly_the_remaining_items(
    tokens: list[str], form: ChannelFormat, data: st.DataObject, *, single: bool
) -> None:
    first, second, resumed = (
        _assembler(tokens, form, stop=("STOP",), is_single=single) for _ in range(3)
    )
    ids = range(len(tokens))
    fed, whole = items_of(first, ids, flush=False), items_of(second, ids)
    k = data.draw(st.integers(0, len(fed)))
    emitted = [token for item in whole[:k] for token in item.ids]
    assert items_of(resumed, emitted, flush=False) == whole[:k]
    assert items_of(resumed, ids[len(emitted) :]) == whole[k:]


@given(tokens=_cut(), form=_FORM)
def test_items_of_calls_nest_and_their_arguments_begin_valid_json(
    tokens: list[str], form: ChannelFormat
) -> None:
    is_open, arguments = False, ""
    for item in items_of(_assembler(tokens, form), range(len(tokens))):
        if isinstance(item, ToolStart):
            assert not is_open
            is_open, arguments = True, ""
        elif isinstance(item, ToolInput):
            assert is_open
            arguments += item.fragment
            from_json(arguments, allow_partial=True)
        else:
            assert is_open == isinstance(item, ToolEnd)
            is_open = False


_WORDS = "\u00fc, \u00fc"


@given(
    st.lists(
        st.sampled_from(
            [*HARMONY.markers, _WORDS, "final", "analysis", " to=functions.f ", "{", "}"]
        )
    )
)
def test_no_marker_is_emitted_and_no_word_is_lost(pieces: list[str]) -> None:
    assembler = _assembler(pieces)
    items_of(assembler, range(len(pieces)))
    emitted = assembler.text + assembler.thinking
    assert not any(marker in emitted for marker in HARMONY.markers)
    assert emitted.count(_WORDS) == pieces.count(_WORDS)
