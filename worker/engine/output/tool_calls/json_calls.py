"""Read tool calls in JSON, and stream their arguments while they are written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from worker.engine.output.tool_calls.json_text import JsonValue, MalformedJson
from worker.engine.output.tool_calls.reader import (
    CallClosed,
    CallDelta,
    CallInput,
    CallOpened,
    CallReader,
    CallRules,
)

_SPACE = " \t\r\n"
#: Skipped between two calls; includes surplus brackets that small models write.
_BETWEEN = _SPACE + ",;[]}"
_ARGUMENT_KEYS = ("arguments", "parameters")
_ARGS = "[ARGS]"
_HEADER = re.compile(r"([\w.-]+)\s*(?:\[CALL_ID\]\s*[\w-]*\s*)?\[ARGS\]")
#: Most characters before ``[ARGS]``: the name and the call id.
HEADER_CHARS_MAX = 256


class JsonReader(CallReader):
    """``CallReader`` for JSON.

    An end tag inside a JSON string belongs to the string. The reader opens a call when its name and
    the beginning of its arguments are known; text that is malformed before that is plain. A syntax
    error later closes the call as it is: its arguments are invalid JSON then, so that no client
    runs it, and the text after the error is plain.

    Args:
        start: The start tag that was found; "" if the call begins with its first brace.
    """

    def __init__(self, rules: CallRules, start: str) -> None:
        self._rules = rules
        self._step: Callable[[str], None] = self._read_between
        #: All text since the last complete call, until the next call opens.
        self._unread_call = start
        self._calls = 0
        self._deltas: list[CallDelta] = []
        #: The beginning of an end tag, or of the text before ``[ARGS]``.
        self._waiting = ""
        self._begin()

    def _begin(self) -> None:
        self._name: str | None = None
        self._is_open = False
        self._has_header = False
        self._key = ""
        self._value = JsonValue()
        self._buffer = ""
        #: Arguments that precede the name; ``None`` without any.
        self._arguments: str | None = None
        self._is_streaming = False
        self._has_arguments = False

    def feed(self, text: str) -> list[CallDelta]:
        """Feed more text and return the deltas that are certain now."""
        for index, char in enumerate(text):
            if not self._is_open:
                self._unread_call += char
            try:
                self._step(char)
            except MalformedJson:
                self._give_up(text[index:])
                break
            if self.is_over:
                self.rest = text[index + 1 :]
                break
        deltas, self._deltas = self._deltas, []
        return deltas

    def flush(self, *, cut: bool) -> list[CallDelta]:
        """Close a call that lacks only its last brackets; other incomplete calls stay open."""
        del cut  # incomplete JSON shows by itself that it was cut
        self.is_over = True
        # Each access binds a method anew, so steps are compared by value.
        if self._step == self._read_after_value and self._can_end():
            self._end_call()
        elif not self._is_open and not (self._step == self._read_between and self._calls):
            self.plain = self._unread_call
        deltas, self._deltas = self._deltas, []
        return deltas

    def _give_up(self, rest: str) -> None:
        self.is_over, self.rest = True, rest
        if self._is_open:
            self._deltas.append(CallClosed())
        elif self._step == self._read_between and self._calls:
            # Answer text follows the calls.
            self.rest = self._waiting + rest
        else:
            self.plain = self._unread_call[:-1]

    # -- one step per position in a call ---------------------------------------------------------

    def _read_between(self, char: str) -> None:
        end, waiting = self._rules.format.end, self._waiting + char
        if end.startswith(waiting):
            self._waiting = waiting
            self.is_over = waiting == end
            if self.is_over and not self._calls:
                self.plain = self._unread_call
        elif self._waiting:
            raise MalformedJson
        elif char == "{":
            self._step = self._read_first_key
        elif char not in _BETWEEN:
            if not (char.isalnum() or char == "_") or end:
                raise MalformedJson
            self._waiting, self._step = char, self._read_header

    def _read_header(self, char: str) -> None:
        self._waiting += char
        if self._waiting == self._rules.format.start.strip("[") and self._waiting:
            # The start tag again, whose first bracket was skipped.
            self._waiting, self._step = "", self._read_between
        elif self._waiting.endswith(_ARGS):
            match = _HEADER.fullmatch(self._waiting)
            if match is None:
                raise MalformedJson
            self._name, self._key, self._has_header = match[1], _ARGUMENT_KEYS[0], True
            self._waiting, self._step = "", self._start_value
        elif char in "{\n" or len(self._waiting) > HEADER_CHARS_MAX:
            raise MalformedJson

    def _read_first_key(self, char: str) -> None:
        if char == "}":
            raise MalformedJson
        self._read_next_key(char)

    def _read_next_key(self, char: str) -> None:
        if char in _SPACE:
            return
        if char != '"':
            raise MalformedJson
        self._value = JsonValue()
        self._buffer = self._value.feed(char) or ""
        self._step = self._read_key

    def _read_key(self, char: str) -> None:
        self._buffer += self._value.feed(char) or ""
        if self._value.is_complete:
            self._key = json.loads(self._buffer)
            self._step = self._read_colon

    def _read_colon(self, char: str) -> None:
        if char == ":":
            self._step = self._start_value
        elif char not in _SPACE:
            raise MalformedJson

    def _start_value(self, char: str) -> None:
        if char in _SPACE:
            return
        self._value, self._buffer = JsonValue(), ""
        is_arguments = self._key in _ARGUMENT_KEYS and not self._has_arguments
        self._is_streaming = is_arguments and char == "{"
        if self._has_header and not self._is_streaming:
            raise MalformedJson
        self._step = self._read_value
        self._read_value(char)

    def _read_value(self, char: str) -> None:
        text = self._value.feed(char)
        if text is None:
            self._value_ended()
            self._read_after_value(char)
            return
        if self._is_streaming:
            self._emit_arguments(text)
        else:
            self._buffer += text
        if self._value.is_complete:
            self._value_ended()

    def _read_after_value(self, char: str) -> None:
        if char in _SPACE:
            return
        if char == ",":
            self._step = self._read_next_key
        elif char == "}":
            self._end_call()
        elif self._can_end():
            # The last brace is missing.
            self._end_call()
            self._unread_call = char
            self._read_between(char)
        else:
            raise MalformedJson

    # -- deltas ----------------------------------------------------------------------------------

    def _value_ended(self) -> None:
        self._step = self._read_after_value
        if self._is_streaming:
            self._has_arguments, self._is_streaming = True, False
            if self._has_header:
                self._end_call()
        elif self._key == "name":
            name = json.loads(self._buffer)
            if not isinstance(name, str) or not name:
                raise MalformedJson
            self._name = name
            if self._arguments is not None:
                self._emit_arguments("")
        elif self._key in _ARGUMENT_KEYS and not self._has_arguments:
            self._emit_arguments(_object_in(self._buffer))
            self._has_arguments = True

    def _emit_arguments(self, fragment: str) -> None:
        """Emit a fragment of the arguments, or keep it until the name is known."""
        if self._name is None:
            self._arguments = (self._arguments or "") + fragment
            return
        if not self._is_open:
            self._open()
            fragment, self._arguments = (self._arguments or "") + fragment, None
        if self._deltas and isinstance(last := self._deltas[-1], CallInput):
            self._deltas[-1] = CallInput(last.fragment + fragment)
        elif fragment:
            self._deltas.append(CallInput(fragment))

    def _open(self) -> None:
        assert self._name is not None, "a call opens with its name"
        if not self._rules.format.end and self._name not in self._rules.names:
            # Without tags around it, any JSON with a name would look like a call.
            raise MalformedJson
        self._is_open = True
        self._deltas.append(CallOpened(self._name))

    def _can_end(self) -> bool:
        return self._name is not None and self._has_arguments

    def _end_call(self) -> None:
        if self._name is None:
            raise MalformedJson
        if not self._has_arguments:
            self._emit_arguments("{}")
        self._deltas.append(CallClosed())
        self._calls += 1
        self._unread_call, self._step = "", self._read_between
        self._begin()


def _object_in(text: str) -> str:
    """Return the JSON object of arguments that are ``null`` or JSON inside a string."""
    value: Any = json.loads(text)
    if value is None:
        return "{}"
    try:
        inner = json.loads(value) if isinstance(value, str) else None
    except ValueError:
        inner = None
    if not isinstance(inner, dict):
        raise MalformedJson
    return json.dumps(inner, ensure_ascii=False)


#: Skipped after the arguments: white space, and surplus brackets that models write.
_AFTER = _SPACE + "]}"


class ArgumentsReader(CallReader):
    """``CallReader`` for one JSON object, up to the marker after it.

    A marker inside a JSON string belongs to the string. The reader opens the call when the object
    begins. A syntax error later closes the call as it is: its arguments are invalid JSON then, so
    that no client runs it, and the text after the error is plain.

    Args:
        header: Recipient in the header, which becomes plain text if no object follows.
        markers: Markers that may follow the object, or replace it in a call without arguments.
    """

    def __init__(self, name: str, header: str, markers: Sequence[str]) -> None:
        self._name = name
        self._header = header
        self._markers = markers
        self._value = JsonValue()
        self._is_open = False
        #: Text before the object.
        self._buffer = ""

    def feed(self, text: str) -> list[CallDelta]:
        """Feed more text and return the deltas that are certain now."""
        if self._value.is_complete:
            self._skip(text)
            return []
        if self._is_open:
            return self._read(text)
        self._buffer += text
        begun = self._buffer.lstrip(_SPACE)
        if begun.startswith("{"):
            self._is_open = True
            return [CallOpened(self._name), *self._read(begun)]
        if begun.startswith(tuple(self._markers)):
            self.is_over, self.rest = True, begun
            return self._without_arguments()
        if begun and not any(marker.startswith(begun) for marker in self._markers):
            self._be_plain(begun)
        return []

    def flush(self, *, cut: bool) -> list[CallDelta]:
        """Return the rest at the end: a call without arguments is complete unless it was cut."""
        self.is_over = True
        if self._is_open or self._value.is_complete:
            return []
        if not cut and not self._buffer.strip(_SPACE):
            return self._without_arguments()
        self._be_plain(self._buffer)
        return []

    def _read(self, text: str) -> list[CallDelta]:
        arguments = ""
        for index, char in enumerate(text):
            try:
                arguments += self._value.feed(char) or ""
            except MalformedJson:
                self.is_over, self.rest = True, text[index:]
            else:
                if not self._value.is_complete:
                    continue
                self._skip(text[index + 1 :])
            return [*_input(arguments), CallClosed()]
        return _input(arguments)

    def _skip(self, text: str) -> None:
        rest = text.lstrip(_AFTER)
        self.is_over, self.rest = bool(rest), rest

    def _without_arguments(self) -> list[CallDelta]:
        return [CallOpened(self._name), CallInput("{}"), CallClosed()]

    def _be_plain(self, rest: str) -> None:
        self.is_over, self.plain, self.rest = True, f"{self._header} ", rest


def _input(text: str) -> list[CallDelta]:
    return [CallInput(text)] if text else []
