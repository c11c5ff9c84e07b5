"""Parse two call syntaxes with JSON values, as strictly as their grammars generate them.

mlx-lm's own parsers read some of these values differently. The syntaxes::

    [f(a="x", b=[1], c=True), g()]                                               LFM and others
    <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}<|tool_call_end|>    Kimi K2
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Final

from worker.engine.output.tool_calls.json_text import JsonValue, MalformedJson

_CALL_HEADER: Final = re.compile(r"\s*([\w.-]+)\(\s*")
_KEY: Final = re.compile(r"\s*([\w.-]+)\s*=\s*")
_NUMBERED: Final = re.compile(
    r"\s*<\|tool_call_begin\|>\s*functions\.([^\s<>]+):\d+\s*<\|tool_call_argument_begin\|>\s*"
)
_NUMBERED_END: Final = re.compile(r"\s*<\|tool_call_end\|>\s*")
_WORDS: Final = {"True": True, "False": False, "None": None}


def _number(text: str) -> float:
    """Return a number, limited to the largest float, because JSON has no infinity."""
    return max(-sys.float_info.max, min(sys.float_info.max, float(text)))


_DECODER: Final = json.JSONDecoder(parse_float=_number)


def parse_keyword_calls(text: str) -> list[dict[str, Any]]:
    """Return the calls in a text of the form ``[f(a="x"), g()]``.

    Python reads some JSON escapes differently, so a value that is valid JSON is read as JSON.

    Raises:
        ValueError: The text has another form.
    """
    stripped = text.strip()
    if not stripped.startswith("["):
        raise MalformedJson
    at, calls = 1, []
    while True:
        call, at = _call(stripped, at)
        calls.append(call)
        at = _skip_space(stripped, at)
        if stripped[at : at + 1] == "]" and not stripped[at + 1 :].strip():
            return calls
        at = _expect(stripped, at, ",")


def parse_numbered_calls(text: str) -> list[dict[str, Any]]:
    """Return the calls in a text of the form ``<|tool_call_begin|>functions.f:0…``.

    Raises:
        ValueError: The text has another form.
    """
    at, calls = 0, list[dict[str, Any]]()
    while at < len(text) or not calls:
        header = _NUMBERED.match(text, at)
        if header is None:
            raise MalformedJson
        arguments, at = _DECODER.raw_decode(text, header.end())
        end = _NUMBERED_END.match(text, at)
        if end is None:
            raise MalformedJson
        calls.append({"name": header[1], "arguments": arguments})
        at = end.end()
    return calls


def is_inside_string(text: str) -> bool:
    """Return whether an unfinished list of calls ends inside a string."""
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
    header = _CALL_HEADER.match(text, at)
    if header is None:
        raise MalformedJson
    arguments: dict[str, Any] = {}
    at = header.end()
    while text[at : at + 1] != ")":
        if arguments:
            at = _expect(text, at, ",")
        key = _KEY.match(text, at)
        if key is None:
            raise MalformedJson
        arguments[key[1]], at = _value(text, key.end())
        at = _skip_space(text, at)
    return {"name": header[1], "arguments": arguments}, at + 1


def _value(text: str, at: int) -> tuple[Any, int]:
    for word, meant in _WORDS.items():
        if text.startswith(word, at):
            return meant, at + len(word)
    value, value_text = JsonValue(), ""
    while at < len(text) and not value.is_complete:
        piece = value.feed(text[at])
        if piece is None:
            break
        value_text += piece
        at += 1
    return _DECODER.decode(value_text), at


def _skip_space(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at


def _expect(text: str, at: int, char: str) -> int:
    at = _skip_space(text, at)
    if text[at : at + 1] != char:
        raise MalformedJson
    return at + 1
