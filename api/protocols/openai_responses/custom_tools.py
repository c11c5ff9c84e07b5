"""OpenAI's custom tools, whose input is free text, as functions with one text argument.

Models are trained to call functions with JSON arguments. A custom tool therefore becomes a function
with the argument ``input``, and the stream reports the text of that argument as it grows. The
description of the function contains the tool's grammar; a regular expression also constrains the
argument.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from api.http.json_body import load_json
from domain.errors import InvalidRequest

#: Name of the argument.
INPUT: Final = "input"
#: Most characters of a grammar.
DEFINITION_CHARS_MAX: Final = 65_536
_SYNTAXES: Final[Mapping[str, str]] = {"lark": "Lark grammar", "regex": "regular expression"}
_BEGINNING: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')
#: Text of a JSON string up to its end or up to an incomplete escape.
_STRING: Final = re.compile(r"(?:[^\"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED: Final[Mapping[str, str]] = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def custom_function(
    name: str, description: str, grammar: tuple[str, str] | None
) -> Mapping[str, Any]:
    """Return a custom tool in function format.

    Args:
        name: Name of the tool.
        description: The client's description.
        grammar: Syntax and definition of the grammar of the input, if it has one.
    """
    if grammar is not None:
        syntax, definition = grammar
        rule = f"Its input is text that matches this {_SYNTAXES[syntax]}:\n{definition}"
        description = f"{description}\n{rule}" if description else rule
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": _arguments({"type": "string"}),
        },
    }


def grammar_arguments(grammar: tuple[str, str]) -> Mapping[str, Any] | None:
    """Return the schema that constrains the argument to a grammar, ``None`` for a Lark grammar.

    Args:
        grammar: Syntax and definition.
    """
    syntax, definition = grammar
    if syntax != "regex":
        return None
    pattern = re.sub(r"(?<!\\)\$$", "", definition.removeprefix("^"))
    return _arguments({"type": "string", "pattern": f"^(?:{pattern})$"})


def checked_grammar(syntax: str | None, definition: str | None, field: str) -> tuple[str, str]:
    """Return the syntax and the definition of a grammar.

    Raises:
        InvalidRequest: The syntax is unknown, or the definition is empty or too long.
    """
    if syntax is None or syntax not in _SYNTAXES:
        msg = f"it must be one of {', '.join(_SYNTAXES)}"
        raise InvalidRequest(msg, field=f"{field}.syntax")
    if not definition or len(definition) > DEFINITION_CHARS_MAX:
        msg = f"it must have between 1 and {DEFINITION_CHARS_MAX} characters"
        raise InvalidRequest(msg, field=f"{field}.definition")
    return syntax, definition


class CustomInput:
    """The input of a custom tool call, extracted while the JSON arguments grow.

    A model without constraints may emit other JSON than ``{"input": "…"}``. Such arguments are
    buffered until the end of the call and then read as a whole.

    Attributes:
        text: The input so far.
    """

    def __init__(self) -> None:
        self.text = ""
        self._json = ""
        self._position: int | None = None

    def feed(self, fragment: str) -> str:
        """Append JSON; return the new part of the text."""
        self._json += fragment
        if self._position is None:
            beginning = _BEGINNING.match(self._json)
            if beginning is None:
                return ""
            self._position = beginning.end()
        found = _STRING.match(self._json, self._position)
        assert found is not None, "nothing matches as well"  # noqa: S101 - type checker
        text, self._position = _unescaped(found[0]), found.end()
        if _is_half(text[-1:]) and not self._json.startswith('"', self._position):
            text, self._position = text[:-1], self._position - len("\\u0000")
        return self._append(text)

    def close(self) -> str:
        """Return the new part of the text at the end of a complete call."""
        if self._position is not None:
            return ""
        found = (_object(self._json) or {}).get(INPUT)
        return self._append(found if isinstance(found, str) else self._json)

    def _append(self, text: str) -> str:
        # UTF-8 cannot represent an unpaired surrogate.
        new = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        self.text += new
        return new


def custom_input(arguments: str) -> str:
    """Return the input of a call, also of one that was cut off."""
    text = CustomInput()
    text.feed(arguments)
    if is_complete_call(arguments):
        text.close()
    return text.text


def is_complete_call(arguments: str) -> bool:
    """Whether the arguments are a JSON object; those of a call that was cut off are not."""
    return _object(arguments) is not None


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = load_json(text)
    except InvalidRequest:
        return None
    return value if isinstance(value, dict) else None


def _arguments(text: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(
        lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPED.get(found[2], found[2]),
        text,
    )


def _is_half(char: str) -> bool:
    """Whether a character is the first half of a surrogate pair."""
    return "\ud800" <= char <= "\udbff"
