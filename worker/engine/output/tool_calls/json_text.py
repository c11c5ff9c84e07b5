"""Read one JSON value (RFC 8259) character by character, as a model writes it."""

from __future__ import annotations

import re
from enum import Enum, auto

_SPACE = " \t\n\r"
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_ESCAPED = '"\\/bfnrt'
_HEX = "0123456789abcdefABCDEF"
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_BEGUN = re.compile(
    r"-?(?:(?:0|[1-9][0-9]*)(?:\.(?:[0-9]+(?:[eE](?:[+-]?[0-9]*)?)?)?|[eE](?:[+-]?[0-9]*)?)?)?"
)
#: Most nested objects and arrays, as in request bodies.
NESTING_MAX = 64


class MalformedJson(ValueError):
    """The text cannot be continued to valid JSON."""


class _State(Enum):
    VALUE = auto()
    FIRST_VALUE = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    NEXT = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    LITERAL = auto()
    NUMBER = auto()
    DONE = auto()


class JsonValue:
    """A reader of one JSON value. The text that ``feed`` has returned is a prefix of valid JSON.

    Attributes:
        is_complete: Whether the value has ended.
    """

    def __init__(self) -> None:
        self.is_complete = False
        self._state = _State.VALUE
        #: Open containers, by the character that closes each.
        self._open: list[str] = []
        self._is_key = False
        #: The rest of a literal, one dot for each missing digit of an escape, or a number so far.
        self._rest = ""

    @property
    def is_inside_string(self) -> bool:
        """Whether the next character belongs to a string, or ends it."""
        return self._state in _IN_STRING

    def feed(self, char: str) -> str | None:
        """Feed the next character and return it as valid JSON.

        Control characters inside a string, which models write unescaped, are returned escaped.

        Returns:
            ``None`` if ``char`` follows the value, which happens after numbers.

        Raises:
            MalformedJson: ``char`` cannot follow here.
        """
        assert not self.is_complete, "the value is over"
        if self._state in _IN_STRING:
            return self._in_string(char)
        if self._state is _State.NUMBER:
            return self._in_number(char)
        if self._state is _State.LITERAL:
            return self._in_literal(char)
        if char in _SPACE:
            return char
        self._structure(char)
        return char

    def _structure(self, char: str) -> None:
        state = self._state
        if state is _State.NEXT:
            self._after_value(char)
        elif state is _State.COLON:
            self._expect(char == ":", char)
            self._state = _State.VALUE
        elif state in (_State.FIRST_KEY, _State.KEY) and char == '"':
            self._state, self._is_key = _State.STRING, True
        elif (state is _State.FIRST_KEY and char == "}") or (
            state is _State.FIRST_VALUE and char == "]"
        ):
            self._close()
        else:
            self._expect(state in (_State.VALUE, _State.FIRST_VALUE), char)
            self._begin(char)

    def _begin(self, char: str) -> None:
        if char in "{[":
            self._expect(len(self._open) < NESTING_MAX, char)
            self._open.append("}" if char == "{" else "]")
            self._state = _State.FIRST_KEY if char == "{" else _State.FIRST_VALUE
        elif char == '"':
            self._state, self._is_key = _State.STRING, False
        elif char in _LITERALS:
            self._state, self._rest = _State.LITERAL, _LITERALS[char][1:]
        else:
            self._expect(char in "-0123456789", char)
            self._state, self._rest = _State.NUMBER, char

    def _after_value(self, char: str) -> None:
        closer = self._open[-1]
        if char == ",":
            self._state = _State.KEY if closer == "}" else _State.VALUE
        else:
            self._expect(char == closer, char)
            self._close()

    def _close(self) -> None:
        self._open.pop()
        self._value_ended()

    def _value_ended(self) -> None:
        self._state = _State.NEXT if self._open else _State.DONE
        self.is_complete = not self._open

    def _in_string(self, char: str) -> str:
        if self._state is _State.STRING:
            return self._plain(char)
        if self._state is _State.HEX:
            self._expect(char in _HEX, char)
            self._rest = self._rest[1:]
            self._state = _State.HEX if self._rest else _State.STRING
        elif char == "u":
            self._state, self._rest = _State.HEX, "...."
        else:
            self._expect(char in _ESCAPED, char)
            self._state = _State.STRING
        return char

    def _plain(self, char: str) -> str:
        if char == "\\":
            self._state = _State.ESCAPE
        elif char == '"':
            if self._is_key:
                self._state = _State.COLON
            else:
                self._value_ended()
        elif char < " ":
            return f"\\u{ord(char):04x}"
        return char

    def _in_literal(self, char: str) -> str:
        self._expect(char == self._rest[0], char)
        self._rest = self._rest[1:]
        if not self._rest:
            self._value_ended()
        return char

    def _in_number(self, char: str) -> str | None:
        if char in "+-.eE0123456789":
            self._rest += char
            self._expect(_NUMBER_BEGUN.fullmatch(self._rest) is not None, char)
            return char
        self._expect(_NUMBER.fullmatch(self._rest) is not None, char)
        self._value_ended()
        if self.is_complete:
            return None
        return self.feed(char)

    def _expect(self, condition: bool, char: str) -> None:  # noqa: FBT001 - reads as an assert
        if not condition:
            msg = f"{char!r} cannot follow here"
            raise MalformedJson(msg)


_IN_STRING = frozenset({_State.STRING, _State.ESCAPE, _State.HEX})
