from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from domain.chat.items import ToolEnd, ToolInput, ToolStart
from tests.support.models.tool_calls import (
    FORMATS,
    GLM,
    HERMES,
    LLAMA,
    LS,
    MISTRAL,
    PARIS,
    PYTHONIC,
    QWEN_XML,
    assembler_of,
    items_of,
    outline_of,
)
from worker.engine.output.tool_calls.reader import ToolFormat


@pytest.mark.parametrize(
    ("tool_format", "output", "expected"),
    [
        (
            HERMES,
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
            [PARIS],
        ),
        (
            HERMES,
            ('Let me look.\n\n<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n'
            '</tool_call>\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n'
            "</tool_call>"),
            ["Let me look.", LS, PARIS],
        ),
        (HERMES, '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>',
         [PARIS]),
        (HERMES, '<tool_call>{"name": "f"}</tool_call> Done.', [("f", {}), "Done."]),
        (HERMES, '<tool_call>{"name": "f", "arguments": null}</tool_call>', [("f", {})]),
        (
            HERMES,
            '<tool_call>{"name": "Bash", "arguments": "{\\"command\\": \\"ls\\"}"}</tool_call>',
            [LS],
        ),
        (HERMES, '<tool_call>{"name": "Bash", "arguments": {"command": "ls"}</tool_call>.',
         [LS, "."]),
        (HERMES, '<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}}</tool_call>', [LS]),
        (HERMES, '<tool_call>{"name": "no_such", "arguments": {"a": 1}}</tool_call>',
         [("no_such", {"a": 1})]),
        (
            HERMES,
            ('<tool_call>{"name": "Bash", "arguments": {"command": "echo \'</tool_call>\'"}}'
            "</tool_call>"),
            [("Bash", {"command": "echo '</tool_call>'"})],
        ),
        (HERMES, '<tool_call>{"name": "Bash", "arguments": {"command": "a\nb"}}</tool_call>',
         [("Bash", {"command": "a\nb"})]),
        (HERMES, '<think>hm</think><tool_call>{"name": "f"}</tool_call>',
         [{"thinking": "hm"}, ("f", {})]),
        (
            MISTRAL,
            ('Ok.[TOOL_CALLS] [{"name": "Bash", "arguments": {"command": "ls"}, "id": "123456789"},'
            ' {"name": "get_weather", "arguments": {"city": "Paris"}}]'),
            ["Ok.", LS, PARIS],
        ),
        (
            MISTRAL,
            ('[TOOL_CALLS]Bash[ARGS]{"command": "ls"}[TOOL_CALLS]get_weather[CALL_ID]a1[ARGS]'
            '{"city": "Paris"}'),
            [LS, PARIS],
        ),
        (LLAMA, '{"name": "Bash", "parameters": {"command": "ls"}}', [LS]),
        (LLAMA, ('<|python_tag|>{"name": "Bash", "parameters": {"command": "ls"}}; '
         '{"name": "get_weather", "parameters": {"city": "Paris"}}'), [LS, PARIS]),
        (LLAMA, '{"name": "Ann", "parameters": {"age": 7}}',
         ['{"name": "Ann", "parameters": {"age": 7}}']),
        (LLAMA, '{"answer": 42}', ['{"answer": 42}']),
        (LLAMA, '<|python_tag|>print("hi")\nx', ['<|python_tag|>print("hi")\nx']),
        (
            QWEN_XML,
            ("Now:\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
            "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"),
            ["Now:", ("get_weather", {"city": "Paris", "days": 3})],
        ),
        (
            QWEN_XML,
            ("<tool_call>\n<function=Bash>\n<parameter=command>\ncat </tool_call> x\n</parameter>\n"
            "</function>\n</tool_call>"),
            [("Bash", {"command": "cat </tool_call> x"})],
        ),
        (
            QWEN_XML,
            "<function=Bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>",
            [LS],
        ),
        (
            GLM,
            ("<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
            "</tool_call><tool_call>Bash<arg_key>command</arg_key><arg_value>ls</arg_value>"
            "</tool_call>"),
            [PARIS, LS],
        ),
        (
            PYTHONIC,
            '<|tool_call_start|>[Bash(command="ls"), get_weather(city="Paris")]<|tool_call_end|>ok',
            [LS, PARIS, "ok"],
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by", [1, 7, 10_000])
def test_calls_are_read_as_the_family_writes_them(
    tool_format: ToolFormat, output: str, expected: list[Any], by: int
) -> None:
    assert outline_of(output, tool_format, by=by) == expected


@pytest.mark.parametrize(
    ("tool_format", "output"),
    [
        (HERMES, "Write <tool_call> before JSON and </tool_call> behind it."),
        (HERMES, '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
        (HERMES, "<tool_call></tool_call>"),
        (HERMES, '<tool_call>{"arguments": {"city": "Paris"}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "Bash", "arguments": [1]}</tool_call>'),
        (HERMES, '<tool_call>{"name": "Bash", "arguments": tru}</tool_call> then more'),
        (HERMES, '<tool_call>{"name": "Bash"'),
        (MISTRAL, "[TOOL_CALLS] are written so: name[ARGS]{}"),
        (QWEN_XML, "<tool_call>\nno function\n</tool_call>\nMore."),
        (QWEN_XML, "Use <function= to begin."),
        (GLM, "<tool_call>some garbage here</tool_call>"),
        (PYTHONIC, "<|tool_call_start|>garbage(<|tool_call_end|>"),
    ],
)
@pytest.mark.parametrize("by", [1, 10_000])
def test_garbage_is_text_and_nothing_of_it_is_lost(
    tool_format: ToolFormat, output: str, by: int
) -> None:
    assert outline_of(output, tool_format, by=by) == [output]


def test_garbage_after_the_name_closes_the_call_with_invalid_arguments() -> None:
    output = '<tool_call>{"name": "Bash", "arguments": {"command": "rm" oops}}</tool_call>'
    assert outline_of(output, HERMES) == [("Bash", '{"command": "rm" '), "oops}}</tool_call>"]


@pytest.mark.parametrize(
    ("tool_format", "output", "expected"),
    [
        (HERMES, '<tool_call>{"name": "Bash", "arguments": {"comm', [["Bash", '{"comm']]),
        (
            HERMES,
            '<tool_call>{"name": "Bash", "arguments": {"command": "ls"}',
            [("Bash", {"command": "ls"})],
        ),
        (
            QWEN_XML,
            "<tool_call>\n<function=Bash>\n<parameter=command>\nrm -rf /tmp",
            [["Bash", '{"command": "rm -rf /tmp']],
        ),
        (
            GLM,
            "<tool_call>Bash<arg_key>command</arg_key><arg_value>ls</arg_value>",
            [["Bash", '{"command": "ls"']],
        ),
    ],
)
def test_a_cut_call_is_never_emitted_as_complete(
    tool_format: ToolFormat, output: str, expected: list[Any]
) -> None:
    assert outline_of(output, tool_format, cut=True) == expected


def test_a_call_whose_end_tag_was_the_end_of_the_turn_is_whole() -> None:
    output = "<tool_call>Bash<arg_key>command</arg_key><arg_value>ls</arg_value>"
    assert outline_of(output, GLM) == [LS]


def test_arguments_come_while_they_are_written() -> None:
    output = '<tool_call>{"name": "Bash", "arguments": {"command": "a long one"}}</tool_call>'
    tokens = list(output)
    items = items_of(assembler_of(tokens, HERMES), range(len(tokens)))
    fragments = [item.fragment for item in items if isinstance(item, ToolInput)]
    assert len(fragments) > 15
    assert isinstance(items[0], ToolStart)
    # The first fragment comes right behind the name, not with the end of the call.
    assert fragments[0] == '{"'


def test_ids_of_calls_are_made_of_the_job_and_their_place() -> None:
    output = '<tool_call>{"name": "f"}</tool_call>' * 2
    items = items_of(assembler_of([output], HERMES), [0])
    ids = [item.id for item in items if isinstance(item, ToolStart)]
    assert ids == [f"toolu_{'ab' * 16}_0", f"toolu_{'ab' * 16}_1"]


def test_a_call_that_the_prompt_began_is_the_answers() -> None:
    opened = '<tool_call>\n{"name": "Bash", "arguments":'
    assert outline_of(' {"command": "ls"}}\n</tool_call>', HERMES, opened=opened) == [LS]


def test_a_single_call_ends_the_answer() -> None:
    output = '<tool_call>{"name": "f"}</tool_call> and <tool_call>{"name": "g"}</tool_call>'
    assert outline_of(output, HERMES, is_single=True) == [("f", {})]


def test_stop_texts_count_outside_calls_alone() -> None:
    call = '<tool_call>{"name": "Bash", "arguments": {"command": "STOP"}}</tool_call>'
    assert outline_of(call + " a STOP b", HERMES, stop=["STOP"]) == [
        ("Bash", {"command": "STOP"}),
        "a ",
    ]
    assert outline_of("<tool_call>a STOP b", HERMES, stop=["STOP"]) == ["<tool_call>a "]


def test_white_space_next_to_calls_is_dropped_and_elsewhere_kept() -> None:
    call = '<tool_call>{"name": "f"}</tool_call>'
    assert outline_of(f" a  b \n{call} \n {call}\n c \n", HERMES) == [
        " a  b", ("f", {}), ("f", {}), "c \n",
    ]  # fmt: skip


PIECES = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", '{"name": "Bash", "arguments": {', '"command": "ls', '"}}',
        '{"name": "f"}', "[TOOL_CALLS]", "f[ARGS]{", "}", "]", '"', "\\", "1e", "<function=Bash>",
        "<parameter=command>", "</parameter>", "</function>", "<arg_key>command</arg_key>",
        "<arg_value>", "</arg_value>", "STOP", " ", "\n", "a", "<think>", "</think>", "<",
        "<|python_tag|>", "<|tool_call_start|>", "[Bash(command='ls')]", "<|tool_call_end|>", "é",
        "<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="Bash">', "</invoke>",
        '<parameter name="command">', "Bash", '{"a": "',
    ]
)  # fmt: skip
OUTPUT = st.lists(PIECES, max_size=14).map("".join)


@st.composite
def _cut(draw: st.DrawFn) -> list[str]:
    output = draw(OUTPUT)
    cuts = sorted(draw(st.sets(st.integers(0, len(output)), max_size=12)))
    return [output[a:b] for a, b in pairwise([0, *cuts, len(output)])]


@given(tokens=_cut(), tool_format=st.sampled_from(FORMATS), cut=st.booleans())
def test_what_is_read_does_not_depend_on_how_the_text_was_cut(
    tokens: list[str], tool_format: ToolFormat, *, cut: bool
) -> None:
    def whole(tokens: Sequence[str]) -> Any:
        assembler = assembler_of(tokens, tool_format, stop=("STOP",))
        items_of(assembler, range(len(tokens)), cut=cut)
        return assembler.text, assembler.thinking, assembler.calls, assembler.stop_sequence

    assert whole(tokens) == whole(list("".join(tokens)))


@given(tokens=_cut(), tool_format=st.sampled_from(FORMATS), data=st.data(), single=st.booleans())
def test_a_resumed_assembler_emits_exactly_the_remaining_items(
    tokens: list[str], tool_format: ToolFormat, data: st.DataObject, *, single: bool
) -> None:
    first, second, resumed = (
        assembler_of(tokens, tool_format, stop=("STOP",), is_single=single) for _ in range(3)
    )
    ids = range(len(tokens))
    fed, whole = items_of(first, ids, flush=False), items_of(second, ids)
    k = data.draw(st.integers(0, len(fed)))
    emitted = [token for item in whole[:k] for token in item.ids]
    assert items_of(resumed, emitted, flush=False) == whole[:k]
    assert items_of(resumed, ids[len(emitted) :]) == whole[k:]


@given(tokens=_cut(), tool_format=st.sampled_from(FORMATS))
def test_items_of_calls_nest_and_their_arguments_begin_valid_json(
    tokens: list[str], tool_format: ToolFormat
) -> None:
    is_open, arguments = False, ""
    for item in items_of(assembler_of(tokens, tool_format), range(len(tokens))):
        if isinstance(item, ToolStart):
            assert not is_open
            is_open, arguments = True, ""
        elif isinstance(item, ToolInput):
            assert is_open
            arguments += item.fragment
            # What the SDK does with every fragment; it raises on what can become no JSON.
            from_json(arguments, allow_partial=True)
        else:
            assert is_open == isinstance(item, ToolEnd)
            is_open = False
