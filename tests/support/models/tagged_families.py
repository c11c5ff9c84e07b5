"""Families that write calls between tags; the tags are tokens of the byte vocabulary."""

from __future__ import annotations

from typing import Any

from worker.engine.output.tool_calls.reader import (
    GEMMA_SYNTAX,
    GLM_LINES_SYNTAX,
    GLM_SYNTAX,
    LONGCAT_SYNTAX,
    MINICPM_SYNTAX,
    MINIMAX_SYNTAX,
    PYTHON_SYNTAX,
    QWEN_SYNTAX,
    JsonCallStyle,
    ToolFormat,
    parse_bare_calls,
    parse_keyword_calls,
    parse_numbered_calls,
)


def _no_parser(text: str, tools: object) -> Any:
    raise ValueError(text, tools)


_TAGS: Any = {"start": "<tool_call>", "end": "</tool_call>", "parse": _no_parser}
FAMILIES = {
    "qwen": ToolFormat(
        **_TAGS,
        inner_tags=("<function=", "</function>"),
        opening="<tool_call>\n<function=",
        opening_named="<tool_call>\n<function=NAME>\n",
        syntax=QWEN_SYNTAX,
    ),
    "glm": ToolFormat(
        **_TAGS, opening="<tool_call>", opening_named="<tool_call>NAME\n", syntax=GLM_SYNTAX
    ),
    "glm_lines": ToolFormat(
        **_TAGS, opening="<tool_call>", opening_named="<tool_call>NAME\n", syntax=GLM_LINES_SYNTAX
    ),
    "longcat": ToolFormat(
        **_TAGS, opening="<tool_call>", opening_named="<tool_call>NAME\n", syntax=LONGCAT_SYNTAX
    ),
    "minimax": ToolFormat(
        **_TAGS,
        opening='<tool_call>\n<invoke name="',
        opening_named='<tool_call>\n<invoke name="NAME">\n',
        syntax=MINIMAX_SYNTAX,
    ),
    "minicpm": ToolFormat(
        start="<function name=",
        end="</function>",
        parse=_no_parser,
        opening='<function name="',
        opening_named='<function name="NAME">',
        syntax=MINICPM_SYNTAX,
    ),
    "gemma": ToolFormat(
        start="<tool_call>",
        end="</tool_call>",
        parse=lambda text, _tools: parse_bare_calls(text),
        opening="<tool_call>call:",
        opening_named="<tool_call>call:NAME{",
        syntax=GEMMA_SYNTAX,
    ),
    "python": ToolFormat(
        start="<tool_call>",
        end="</tool_call>",
        parse=lambda text, _tools: parse_keyword_calls(text),
        opening="<tool_call>[",
        opening_named="<tool_call>[NAME(",
        syntax=PYTHON_SYNTAX,
    ),
    "kimi": ToolFormat(
        start="<tool_call>",
        end="</tool_call>",
        parse=lambda text, _tools: parse_numbered_calls(text),
        opening="<tool_call><|tool_call_begin|>functions.",
        opening_named="<tool_call><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>",
        json=JsonCallStyle.NUMBERED,
    ),
}
