"""Calls between tags are streamed while they are written, with the types of the tool's schema."""

from __future__ import annotations

from typing import Any

import pytest

from domain.chat.items import ToolInput
from tests.support.models.tool_calls import (
    GLM,
    LS,
    MINIMAX,
    PARIS,
    PYTHONIC,
    QWEN_XML,
    assembler_of,
    items_of,
    outline_of,
    tool,
)
from worker.engine.output.tool_calls.reader import ToolFormat


def test_a_text_between_marks_comes_while_it_is_written() -> None:
    output = (
        "<tool_call>\n<function=Bash>\n<parameter=command>\na long\n</para one\n</parameter>\n"
        "</function>\n</tool_call>"
    )
    items = items_of(assembler_of(list(output), QWEN_XML), range(len(output)))
    fragments = [item.fragment for item in items if isinstance(item, ToolInput)]
    assert "".join(fragments) == '{"command": "a long\\n</para one"}'
    assert fragments[:4] == ['{"command": ', '"', "a", " "]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("3", "integer", 3),
        ("3", "string", "3"),
        ("null", "string", "null"),
        (" True ", "boolean", True),
        ("None", ["integer", "null"], None),
        ("None", ["string", "null"], "None"),
        ("null", ["string", "null"], None),
        ("3.0", ["string", "integer"], "3.0"),
        ('{"a": "</parameter>"}', "object", {"a": "</parameter>"}),
        ("{'a': [1, None]}", "object", {"a": [1, None]}),
        ('{"a": ', "object", '{"a":'),
        ("[1] or so", "array", "[1] or so"),
        ('"quoted"', None, '"quoted"'),
        ("[1]", None, [1]),
        ("", "string", ""),
    ],
)
def test_the_schema_decides_the_type_of_a_text_between_tags(
    value: str, kind: Any, expected: Any
) -> None:
    tools = (tool("Set", **({"value": kind} if kind is not None else {})),)
    output = (
        f"<tool_call>\n<function=Set>\n<parameter=value>\n{value}\n</parameter>\n</function>\n"
        "</tool_call>"
    )
    assert outline_of(output, QWEN_XML, tools=tools) == [("Set", {"value": expected})]


@pytest.mark.parametrize(
    ("tool_format", "output", "expected"),
    [
        (
            QWEN_XML,
            "<tool_call>\n<function=Nope>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
            [("Nope", {"a": "1"})],
        ),
        (
            QWEN_XML,
            "<tool_call><function=Bash> so: <parameter=command>ls</parameter> so</tool_call>.",
            [LS, "."],
        ),
        (GLM, '<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}</tool_call>', [LS]),
        (
            MINIMAX,
            (
                '<minimax:tool_call>\n<invoke name="Bash">\n'
                '<parameter name="command">ls</parameter>\n</invoke>\n<invoke name="get_weather">\n'
                '<parameter name="city">Paris</parameter>\n</invoke>\n</minimax:tool_call> So.'
            ),
            [LS, PARIS, "So."],
        ),
        (
            MINIMAX,
            (
                '<minimax:tool_call><invoke name="Bash"><parameter name="command">ls</parameter>'
                '</invoke><invoke name="Nope"><parameter name="a">b</parameter></invoke>'
                "</minimax:tool_call>"
            ),
            [LS, ("Nope", {"a": "b"})],
        ),
        (
            PYTHONIC,
            "<|tool_call_start|>[Bash(command=\"echo '<|tool_call_end|>'\")]<|tool_call_end|>",
            [("Bash", {"command": "echo '<|tool_call_end|>'"})],
        ),
    ],
)
@pytest.mark.parametrize("by", [1, 10_000])
def test_slips_between_marks_are_understood(
    tool_format: ToolFormat, output: str, expected: list[Any], by: int
) -> None:
    assert outline_of(output, tool_format, by=by) == expected
