"""Tool-call texts of each family, and a short form of the parsed items."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mlx_lm.tool_parsers import glm47, minimax_m2, pythonic, qwen3_coder

from domain.chat.items import Text, Thinking, ToolEnd, ToolInput, ToolStart
from domain.values import JobId
from worker.engine.output.detokenizer import ByteDetokenizer
from worker.engine.output.output_parser import SectionParser, ThinkTags
from worker.engine.output.tool_calls.reader import (
    GLM_SYNTAX,
    MINIMAX_SYNTAX,
    PYTHON_SYNTAX,
    QWEN_SYNTAX,
    CallRules,
    Parse,
    ToolFormat,
)
from worker.engine.text_assembler import TextAssembler

JOB = JobId("job-" + "ab" * 16)


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {key: {"type": kind} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": schema}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = (tool("get_weather", city="string", days="integer"), tool("Bash", command="string"))


def family(parse: Parse, start: str, end: str, **more: Any) -> ToolFormat:
    return ToolFormat(start=start, end=end, parse=lambda text, tools: parse(text, [*tools]), **more)


HERMES = ToolFormat(start="<tool_call>", end="</tool_call>")
MISTRAL = ToolFormat(start="[TOOL_CALLS]", end="")
LLAMA = ToolFormat(start="<|python_tag|>", end="", is_bare=True)
QWEN_XML = family(
    qwen3_coder.parse_tool_call,
    "<tool_call>",
    "</tool_call>",
    argument_tags=("<parameter=", "</parameter>"),
    inner_tags=("<function=", "</function>"),
    syntax=QWEN_SYNTAX,
)
GLM = family(
    glm47.parse_tool_call,
    "<tool_call>",
    "</tool_call>",
    argument_tags=("<arg_value>", "</arg_value>"),
    syntax=GLM_SYNTAX,
)
MINIMAX = family(
    minimax_m2.parse_tool_call,
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    argument_tags=("<parameter ", "</parameter>"),
    syntax=MINIMAX_SYNTAX,
)
PYTHONIC = family(
    pythonic.parse_tool_call, "<|tool_call_start|>", "<|tool_call_end|>", syntax=PYTHON_SYNTAX
)
FORMATS = (HERMES, MISTRAL, LLAMA, QWEN_XML, GLM, MINIMAX, PYTHONIC)

Item = Text | Thinking | ToolStart | ToolInput | ToolEnd


def assembler_of(
    tokens: Sequence[str],
    tool_format: ToolFormat,
    *,
    stop: Sequence[str] = (),
    tools: tuple[dict[str, Any], ...] = TOOLS,
    **options: Any,
) -> TextAssembler:
    rules = CallRules(format=tool_format, tools=tools)
    parser = SectionParser(ThinkTags("<think>", "</think>"), stop, thinking=False, calls=rules)
    table = [token.encode("utf-8", "replace") for token in tokens]
    return TextAssembler(ByteDetokenizer(table), parser, job_id=JOB, **options)


def items_of(
    assembler: TextAssembler, tokens: Sequence[int], *, flush: bool = True, cut: bool = False
) -> list[Item]:
    items: list[Item] = []
    for token in tokens:
        if assembler.is_over:
            break
        if (item := assembler.feed(token)) is not None:
            items.append(item)
    return [*items, *assembler.flush(cut=cut)] if flush else items


def outline_of(
    answer: str,
    tool_format: ToolFormat,
    *,
    cut: bool = False,
    by: int = 1,
    stop: Sequence[str] = (),
    **options: Any,
) -> list[Any]:
    """The answer in short form: texts verbatim, calls as name and arguments."""
    tokens = [answer[n : n + by] for n in range(0, len(answer), by)]
    assembler = assembler_of(tokens, tool_format, stop=stop, **options)
    short: list[Any] = []
    for item in items_of(assembler, range(len(tokens)), cut=cut):
        match item:
            case Text(text=text):
                if short and isinstance(short[-1], str):
                    short[-1] += text
                else:
                    short.append(text)
            case ToolStart(name=name):
                short.append([name, ""])
            case ToolInput(fragment=fragment):
                short[-1][1] += fragment
            case ToolEnd():
                short[-1] = (short[-1][0], _value(short[-1][1]))
            case Thinking(text=text):
                if short and isinstance(short[-1], dict):
                    short[-1]["thinking"] += text
                else:
                    short.append({"thinking": text})
    return short


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


PARIS = ("get_weather", {"city": "Paris"})
LS = ("Bash", {"command": "ls"})
