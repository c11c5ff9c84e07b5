"""Read calls that hold values in JSON, as strictly as they are held to be written.

Two spellings::

    [f(a="x", b=[1], c=True), g()]                                               LFM and others
    <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}<|tool_call_end|>    Kimi K2
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Final

from worker.engine.output.tool_calls.json_text import JsonValue, MalformedJson

_HEAD: Final = re.compile(r"\s*([\w.-]+)\(\s*")
_KEY: Final = re.compile(r"\s*([\w.-]+)\s*=\s*")
_NUMBERED: Final = re.compile(
    r"\s*<\|tool_call_begin\|>\s*functions\.([^\s<>]+):\d+\s*<\|tool_call_argument_begin\|>\s*"
)
_NUMBERED_END: Final = re.compile(r"\s*<\|tool_call_end\|>\s*")
_WORDS: Final = {"True": True, "False": False, "None": None}


def _number(text: str) -> float:
    """Return a number; the largest there is for one that is larger, which JSON cannot say."""
    return max(-sys.float_info.max, min(sys.float_info.max, float(text)))


_DECODER: Final = json.JSONDecoder(parse_float=_number)


def parse_keyword_calls(text: str) -> list[dict[str, Any]]:
    """Return the calls in a text.

    Python reads some of JSON's escapes differently, so a value that is JSON is read as JSON.

    Raises:
        ValueError: It is not written so.
    """
    said = text.strip()
    if not said.startswith("["):
        raise MalformedJson
    at, calls = 1, []
    while True:
        call, at = _call(said, at)
        calls.append(call)
        at = _skipped(said, at)
        if said[at : at + 1] == "]" and not said[at + 1 :].strip():
            return calls
        at = _expected(said, at, ",")


def parse_numbered_calls(text: str) -> list[dict[str, Any]]:
    """Return the calls in a text.

    Raises:
        ValueError: It is not written so.
    """
    at, calls = 0, list[dict[str, Any]]()
    while at < len(text) or not calls:
        head = _NUMBERED.match(text, at)
        if head is None:
            raise MalformedJson
        arguments, at = _DECODER.raw_decode(text, head.end())
        end = _NUMBERED_END.match(text, at)
        if end is None:
            raise MalformedJson
        calls.append({"name": head[1], "arguments": arguments})
        at = end.end()
    return calls


def is_inside_string(text: str) -> bool:
    """Whether the end of calls that have begun stands in a string."""
    quote, escaped = "", False
    for char in text.lstrip() if text.lstrip().startswith("[") else "":
        if escaped or (quote and char == "\\"):
            escaped = not escaped
        elif quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
    return bool(quote)


def _call(text: str, at: int) -> tuple[dict[str, Any], int]:
    head = _HEAD.match(text, at)
    if head is None:
        raise MalformedJson
    arguments: dict[str, Any] = {}
    at = head.end()
    while text[at : at + 1] != ")":
        if arguments:
            at = _expected(text, at, ",")
        key = _KEY.match(text, at)
        if key is None:
            raise MalformedJson
        arguments[key[1]], at = _value(text, key.end())
        at = _skipped(text, at)
    return {"name": head[1], "arguments": arguments}, at + 1


def _value(text: str, at: int) -> tuple[Any, int]:
    for word, meant in _WORDS.items():
        if text.startswith(word, at):
            return meant, at + len(word)
    value, said = JsonValue(), ""
    while at < len(text) and not value.is_complete:
        piece = value.feed(text[at])
        if piece is None:
            break
        said += piece
        at += 1
    return _DECODER.decode(said), at


def _skipped(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at


def _expected(text: str, at: int, char: str) -> int:
    at = _skipped(text, at)
    if text[at : at + 1] != char:
        raise MalformedJson
    return at + 1
