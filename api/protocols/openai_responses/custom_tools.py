"""OpenAI's custom tools, whose input is free text, as functions with one text argument.

Models are trained to call functions with JSON. So a custom tool is shown as a function with the one
argument ``input``, and what the model writes there is told to the client as it grows. A grammar is
shown in words, and the argument is held to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from api.http.json_body import load_json
from api.protocols.openai_responses.lark_parser import LarkError
from api.protocols.openai_responses.lark_to_regex import regex_of_grammar
from domain.errors import InvalidRequest

#: The one argument.
INPUT: Final = "input"
#: Of a grammar.
DEFINITION_CHARS_MAX: Final = 65_536
_SYNTAXES: Final[Mapping[str, str]] = {"lark": "Lark grammar", "regex": "regular expression"}
_BEGINNING: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')
#: Text of a JSON string up to its end, or up to half an escape.
_STRING: Final = re.compile(r"(?:[^\"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED: Final[Mapping[str, str]] = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def custom_function(
    name: str, description: str, grammar: tuple[str, str] | None
) -> Mapping[str, Any]:
    """Return a custom tool in function format.

    Args:
        name: Of the tool.
        description: What the client says of it.
        grammar: Syntax and definition of what its input may be.
    """
    if grammar is not None:
        syntax, definition = grammar
        told = f"Its input is text that matches this {_SYNTAXES[syntax]}:\n{definition}"
        description = f"{description}\n{told}" if description else told
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": _arguments({"type": "string"}),
        },
    }


def grammar_arguments(grammar: tuple[str, str], field: str) -> Mapping[str, Any] | None:
    """Return the schema that holds the argument to a grammar, ``None`` if no schema can.

    Args:
        grammar: Syntax and definition.
        field: Where the client gave it.

    Raises:
        InvalidRequest: It is no grammar.
    """
    syntax, definition = grammar
    if syntax == "regex":
        pattern: str | None = re.sub(r"(?<!\\)\$$", "", definition.removeprefix("^"))
    else:
        try:
            pattern = regex_of_grammar(definition)
        except LarkError as error:
            msg = f"the grammar cannot be read: {error}"
            raise InvalidRequest(msg, field=field) from error
    if pattern is None:
        return None
    return _arguments({"type": "string", "pattern": f"^(?:{pattern})$"})


def checked_grammar(syntax: str | None, definition: str | None, field: str) -> tuple[str, str]:
    """Return a grammar as it stands in a request.

    Raises:
        InvalidRequest: It lacks something, or its syntax is another one.
    """
    if syntax is None or syntax not in _SYNTAXES:
        msg = f"it must be one of {', '.join(_SYNTAXES)}"
        raise InvalidRequest(msg, field=f"{field}.syntax")
    if not definition or len(definition) > DEFINITION_CHARS_MAX:
        msg = f"it must have between 1 and {DEFINITION_CHARS_MAX} characters"
        raise InvalidRequest(msg, field=f"{field}.definition")
    return syntax, definition


class FreeText:
    """The text in the one argument of a call, as the call's JSON grows.

    Models that are not held to their tools may write other JSON than was asked for. What begins
    otherwise is kept back to the end of the call, where it is read whole.

    Attributes:
        text: What is known of it.
    """

    def __init__(self) -> None:
        self.text = ""
        self._json = ""
        self._at: int | None = None

    def feed(self, fragment: str) -> str:
        """Take more JSON; return what is new of the text."""
        self._json += fragment
        if self._at is None:
            begun = _BEGINNING.match(self._json)
            if begun is None:
                return ""
            self._at = begun.end()
        found = _STRING.match(self._json, self._at)
        assert found is not None, "nothing matches as well"  # noqa: S101 - type checker
        text, self._at = _unescaped(found[0]), found.end()
        if _is_half(text[-1:]) and not self._json.startswith('"', self._at):
            text, self._at = text[:-1], self._at - len("\\u0000")
        return self._more(text)

    def close(self) -> str:
        """Return what is new at the end of a sound call."""
        if self._at is not None:
            return ""
        found = (_object(self._json) or {}).get(INPUT)
        return self._more(found if isinstance(found, str) else self._json)

    def _more(self, text: str) -> str:
        # Half a pair is no text in UTF-8.
        new = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        self.text += new
        return new


def free_text(arguments: str) -> str:
    """Return the text of a call, or what was said of it before it was cut."""
    text = FreeText()
    text.feed(arguments)
    if is_complete_call(arguments):
        text.close()
    return text.text


def is_complete_call(arguments: str) -> bool:
    """Whether a call came to its end; what is cut, or turned bad, is no JSON object."""
    return _object(arguments) is not None


def _object(text: str) -> dict[str, Any] | None:
    try:
        said = load_json(text)
    except InvalidRequest:
        return None
    return said if isinstance(said, dict) else None


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
