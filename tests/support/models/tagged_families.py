"""Families that write calls between marks, with tags that are tokens of the byte vocabulary."""

from __future__ import annotations

from typing import Any

from worker.engine.output.tool_calls.keyword_calls import numbered, parsed
from worker.engine.output.tool_calls.reader import JsonSpelling, ToolFormat
from worker.engine.output.tool_calls.tool_syntax import (
    GLM_LINES_MARKS,
    GLM_MARKS,
    LONGCAT_MARKS,
    MINIMAX_MARKS,
    PYTHON_MARKS,
    QWEN_MARKS,
)


def _no_parser(text: str, tools: object) -> Any:
    raise ValueError(text, tools)


_TAGS: Any = {"start": "<tool_call>", "end": "</tool_call>", "parse": _no_parser}
FAMILIES = {
    "qwen": ToolFormat(
        **_TAGS,
        naked=("<function=", "</function>"),
        opening="<tool_call>\n<function=",
        opening_named="<tool_call>\n<function=NAME>\n",
        marks=QWEN_MARKS,
    ),
    "glm": ToolFormat(
        **_TAGS, opening="<tool_call>", opening_named="<tool_call>NAME\n", marks=GLM_MARKS
    ),
    "glm_lines": ToolFormat(
        **_TAGS, opening="<tool_call>", opening_named="<tool_call>NAME\n", marks=GLM_LINES_MARKS
    ),
    "longcat": ToolFormat(
        **_TAGS, opening="<tool_call>", opening_named="<tool_call>NAME\n", marks=LONGCAT_MARKS
    ),
    "minimax": ToolFormat(
        **_TAGS,
        opening='<tool_call>\n<invoke name="',
        opening_named='<tool_call>\n<invoke name="NAME">\n',
        marks=MINIMAX_MARKS,
    ),
    "python": ToolFormat(
        start="<tool_call>",
        end="</tool_call>",
        parse=lambda text, _tools: parsed(text),
        opening="<tool_call>[",
        opening_named="<tool_call>[NAME(",
        marks=PYTHON_MARKS,
    ),
    "kimi": ToolFormat(
        start="<tool_call>",
        end="</tool_call>",
        parse=lambda text, _tools: numbered(text),
        opening="<tool_call><|tool_call_begin|>functions.",
        opening_named="<tool_call><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>",
        json=JsonSpelling.NUMBERED,
    ),
}
