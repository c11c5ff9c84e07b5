"""Kimi K3 puts its reasoning, its answer and its calls into elements of a message."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tool_parsers import kimi_k3

from domain.chat.items import Text, Thinking, ToolEnd, ToolInput, ToolStart
from tests.support.models.tool_calls import JOB, TOOLS, items_of
from worker.engine.output.detokenizer import ByteDetokenizer
from worker.engine.output.output_parser import SectionParser, ThinkTags
from worker.engine.output.tool_calls.reader import CallRules, ToolFormat
from worker.engine.text_assembler import TextAssembler

_FORMAT = ToolFormat(
    start=kimi_k3.tool_call_start,
    end=kimi_k3.tool_call_end,
    parse=lambda text, tools: kimi_k3.parse_tool_call(text, [*tools]),
    argument_tags=("<|open|>argument ", "<|close|>argument<|sep|>"),
)
#: What mlx-lm calls the structural markers of such a vocabulary.
_DROPPED = ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>")
_TAGS = ThinkTags("<|open|>think<|sep|>", "<|close|>think<|sep|>")


def _assembler(
    tokens: Sequence[str], *, thinking: bool = False, may_call: bool = True, opened: str = ""
) -> TextAssembler:
    rules = CallRules(format=_FORMAT, tools=TOOLS) if may_call else None
    parser = SectionParser(_TAGS, ("STOP",), thinking=thinking, calls=rules, dropped=_DROPPED)
    table = [token.encode() for token in tokens]
    return TextAssembler(ByteDetokenizer(table), parser, job_id=JOB, opened=opened)


def _whole(output: str, *, cut: bool = False, by: int = 1, **options: Any) -> Any:
    tokens = [output[n : n + by] for n in range(0, len(output), by)]
    assembler = _assembler(tokens, **options)
    items_of(assembler, range(len(tokens)), cut=cut)
    calls = [(call.name, call.arguments) for call in assembler.calls]
    return assembler.thinking, assembler.text, calls


_CALL = (
    '<|open|>call tool="Bash" index="1"<|sep|><|open|>argument key="command" type="string"<|sep|>'
    "LS<|close|>argument<|sep|><|close|>call<|sep|>"
)
_TWO = f"<|open|>tools<|sep|>{_CALL}{_CALL.replace('LS', 'pwd')}<|close|>tools<|sep|>"
_END = "<|close|>message<|sep|>"


@pytest.mark.parametrize("by", [1, 9, 10_000])
def test_elements_are_separated_and_their_markers_dropped(by: int) -> None:
    thought = "Hm.<|close|>think<|sep|><|open|>response<|sep|>"
    answer = f"It is four.<|close|>response<|sep|>{_END}"
    assert _whole(answer, by=by) == ("", "It is four.", [])
    assert _whole(thought + answer, by=by, thinking=True) == ("Hm.", "It is four.", [])
    calls = [("Bash", '{"command": "LS"}'), ("Bash", '{"command": "pwd"}')]
    output = f"{thought}I look.<|close|>response<|sep|>{_TWO}{_END}"
    assert _whole(output, by=by, thinking=True) == ("Hm.", "I look.", calls)
    assert _whole(f"<|open|>think<|sep|>{output}", by=by) == ("Hm.", "I look.", calls)


def test_a_call_that_the_prompt_began_is_the_answers() -> None:
    opened, tag, rest = _TWO.partition("<|sep|><|open|>argument")
    opened = f"<|close|>response<|sep|>{opened}<|sep|>"
    assert _whole(tag.removeprefix("<|sep|>") + rest, opened=opened)[2][0] == (
        "Bash",
        '{"command": "LS"}',
    )


def test_a_mark_inside_an_argument_is_part_of_it_and_garbage_is_text() -> None:
    output = _TWO.replace("LS", "echo <|close|>tools<|sep|>")
    assert _whole(output)[2][0] == ("Bash", '{"command": "echo <|close|>tools<|sep|>"}')
    garbage = "<|open|>tools<|sep|>ls<|close|>tools<|sep|>"
    assert _whole(garbage + _END) == ("", garbage, [])


_PIECES = st.sampled_from(
    [*_DROPPED, _TAGS.start, _TAGS.end, _FORMAT.start, _FORMAT.end, _CALL, "a", " ", "\n", "STOP",
     "<|open|>", "<|sep|>", "<|"]
)  # fmt: skip


@st.composite
def _cut(draw: st.DrawFn) -> list[str]:
    output = "".join(draw(st.lists(_PIECES, max_size=12)))
    cuts = sorted(draw(st.sets(st.integers(0, len(output)), max_size=12)))
    return [output[a:b] for a, b in pairwise([0, *cuts, len(output)])]


@given(tokens=_cut(), cut=st.booleans(), thinking=st.booleans(), may_call=st.booleans())
def test_what_is_read_does_not_depend_on_how_the_text_was_cut(
    tokens: list[str], *, cut: bool, thinking: bool, may_call: bool
) -> None:
    def whole(tokens: Sequence[str]) -> Any:
        assembler = _assembler(tokens, thinking=thinking, may_call=may_call)
        items_of(assembler, range(len(tokens)), cut=cut)
        return assembler.text, assembler.thinking, assembler.calls, assembler.stop_sequence

    assert whole(tokens) == whole(list("".join(tokens)))


@given(tokens=_cut(), data=st.data())
def test_a_resumed_assembler_emits_exactly_the_remaining_items(
    tokens: list[str], data: st.DataObject
) -> None:
    ids = range(len(tokens))
    fed, whole = items_of(_assembler(tokens), ids, flush=False), items_of(_assembler(tokens), ids)
    k = data.draw(st.integers(0, len(fed)))
    emitted = [token for item in whole[:k] for token in item.ids]
    resumed = _assembler(tokens)
    assert items_of(resumed, emitted, flush=False) == whole[:k]
    assert items_of(resumed, ids[len(emitted) :]) == whole[k:]
    kinds = (Text, Thinking, ToolStart, ToolInput, ToolEnd)
    assert all(isinstance(item, kinds) for item in whole)
