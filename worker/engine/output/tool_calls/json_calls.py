"""Read calls that are written in JSON, and hand their arguments on while they are written.

Three spellings, alone, in a list or one after the other::

    {"name": "f", "arguments": {…}}         Hermes, Qwen, older Mistral
    {"name": "f", "parameters": {…}}        Llama 3.1
    f[ARGS]{…}                              Mistral since version 11
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from worker.engine.output.tool_calls.json_text import JsonValue, MalformedJson
from worker.engine.output.tool_calls.reader import (
    CallClosed,
    CallDelta,
    CallInput,
    CallOpened,
    CallRules,
)

_SPACE = " \t\r\n"
#: What may stand between two calls; also brackets too many, which small models write.
_BETWEEN = _SPACE + ",;[]}"
_ARGUMENT_KEYS = ("arguments", "parameters")
_ARGS = "[ARGS]"
_HEADER = re.compile(r"([\w.-]+)\s*(?:\[CALL_ID\]\s*[\w-]*\s*)?\[ARGS\]")
#: Characters of a name and what else stands before ``[ARGS]``.
HEADER_CHARS_MAX = 256


class JsonReader:
    """``CallReader`` for JSON.

    A closing tag inside a string is part of the string, since the reader knows where it stands.
    Text that turns out to be no call before its name and the beginning of its arguments are known
    is plain. A call that goes wrong later was told of already: it is closed as it is, so that its
    arguments are no valid JSON and nobody runs it, and what follows is plain.

    Args:
        rules: What is read.
        start: The tag that was met, "" if the first brace is all there is.
    """

    def __init__(self, rules: CallRules, start: str) -> None:
        self.is_over = False
        self.plain = self.rest = ""
        self._rules = rules
        self._step: Callable[[str], None] = self._between
        #: As it came since the last whole call, up to where a call is told of.
        self._raw = start
        self._calls = 0
        self._changes: list[CallDelta] = []
        #: The beginning of an end tag, or of what stands before ``[ARGS]``.
        self._waiting = ""
        self._begin()

    def _begin(self) -> None:
        self._name: str | None = None
        self._is_open = False
        self._is_headed = False
        self._key = ""
        self._value = JsonValue()
        self._buffer = ""
        #: Arguments that came before the name; ``None`` until they come.
        self._arguments: str | None = None
        self._is_streaming = False
        self._has_arguments = False

    def feed(self, text: str) -> list[CallDelta]:
        """Take more text."""
        for index, char in enumerate(text):
            if not self._is_open:
                self._raw += char
            try:
                self._step(char)
            except MalformedJson:
                self._give_up(text[index:])
                break
            if self.is_over:
                self.rest = text[index + 1 :]
                break
        changes, self._changes = self._changes, []
        return changes

    def flush(self, *, cut: bool) -> list[CallDelta]:
        """Close a call that lacks no more than brackets; what was cut stays open."""
        del cut  # incomplete JSON says itself that it was cut
        self.is_over = True
        # Steps are methods bound anew at each look, so they are compared by value.
        if self._step == self._next and self._can_end():
            self._end_call()
        elif not self._is_open and not (self._step == self._between and self._calls):
            self.plain = self._raw
        changes, self._changes = self._changes, []
        return changes

    def _give_up(self, rest: str) -> None:
        self.is_over, self.rest = True, rest
        if self._is_open:
            self._changes.append(CallClosed())
        elif self._step == self._between and self._calls:
            # An ordinary answer goes on behind the calls.
            self.rest = self._waiting + rest
        else:
            self.plain = self._raw[:-1]

    # -- one step per place in the text ----------------------------------------------------------

    def _between(self, char: str) -> None:
        end, waiting = self._rules.format.end, self._waiting + char
        if end.startswith(waiting):
            self._waiting = waiting
            self.is_over = waiting == end
            if self.is_over and not self._calls:
                self.plain = self._raw
        elif self._waiting:
            raise MalformedJson
        elif char == "{":
            self._step = self._first_key
        elif char not in _BETWEEN:
            if not (char.isalnum() or char == "_") or end:
                raise MalformedJson
            self._waiting, self._step = char, self._header

    def _header(self, char: str) -> None:
        self._waiting += char
        if self._waiting == self._rules.format.start.strip("[") and self._waiting:
            # The start tag again, whose first bracket was skipped.
            self._waiting, self._step = "", self._between
        elif self._waiting.endswith(_ARGS):
            match = _HEADER.fullmatch(self._waiting)
            if match is None:
                raise MalformedJson
            self._name, self._key, self._is_headed = match[1], _ARGUMENT_KEYS[0], True
            self._waiting, self._step = "", self._value_start
        elif char in "{\n" or len(self._waiting) > HEADER_CHARS_MAX:
            raise MalformedJson

    def _first_key(self, char: str) -> None:
        if char == "}":
            raise MalformedJson
        self._next_key(char)

    def _next_key(self, char: str) -> None:
        if char in _SPACE:
            return
        if char != '"':
            raise MalformedJson
        self._value = JsonValue()
        self._buffer = self._value.feed(char) or ""
        self._step = self._in_key

    def _in_key(self, char: str) -> None:
        self._buffer += self._value.feed(char) or ""
        if self._value.is_complete:
            self._key = json.loads(self._buffer)
            self._step = self._colon

    def _colon(self, char: str) -> None:
        if char == ":":
            self._step = self._value_start
        elif char not in _SPACE:
            raise MalformedJson

    def _value_start(self, char: str) -> None:
        if char in _SPACE:
            return
        self._value, self._buffer = JsonValue(), ""
        is_arguments = self._key in _ARGUMENT_KEYS and not self._has_arguments
        self._is_streaming = is_arguments and char == "{"
        if self._is_headed and not self._is_streaming:
            raise MalformedJson
        self._step = self._in_value
        self._in_value(char)

    def _in_value(self, char: str) -> None:
        text = self._value.feed(char)
        if text is None:
            self._value_ended()
            self._next(char)
            return
        if self._is_streaming:
            self._say(text)
        else:
            self._buffer += text
        if self._value.is_complete:
            self._value_ended()

    def _next(self, char: str) -> None:
        if char in _SPACE:
            return
        if char == ",":
            self._step = self._next_key
        elif char == "}":
            self._end_call()
        elif self._can_end():
            # The last brace is missing.
            self._end_call()
            self._raw = char
            self._between(char)
        else:
            raise MalformedJson

    # -- what was read ---------------------------------------------------------------------------

    def _value_ended(self) -> None:
        self._step = self._next
        if self._is_streaming:
            self._has_arguments, self._is_streaming = True, False
            if self._is_headed:
                self._end_call()
        elif self._key == "name":
            name = json.loads(self._buffer)
            if not isinstance(name, str) or not name:
                raise MalformedJson
            self._name = name
            if self._arguments is not None:
                self._say("")
        elif self._key in _ARGUMENT_KEYS and not self._has_arguments:
            self._say(_object_in(self._buffer))
            self._has_arguments = True

    def _say(self, fragment: str) -> None:
        """Hand a piece of the arguments on, as soon as the name is known."""
        if self._name is None:
            self._arguments = (self._arguments or "") + fragment
            return
        if not self._is_open:
            self._open()
            fragment, self._arguments = (self._arguments or "") + fragment, None
        if self._changes and isinstance(last := self._changes[-1], CallInput):
            self._changes[-1] = CallInput(last.fragment + fragment)
        elif fragment:
            self._changes.append(CallInput(fragment))

    def _open(self) -> None:
        assert self._name is not None, "a call is told of by its name"
        if not self._rules.format.end and self._name not in self._rules.names:
            # Without tags around it, any JSON with a name would look like a call.
            raise MalformedJson
        self._is_open = True
        self._changes.append(CallOpened(self._name))

    def _can_end(self) -> bool:
        return self._name is not None and self._has_arguments

    def _end_call(self) -> None:
        if self._name is None:
            raise MalformedJson
        if not self._has_arguments:
            self._say("{}")
        self._changes.append(CallClosed())
        self._calls += 1
        self._raw, self._step = "", self._between
        self._begin()


def _object_in(text: str) -> str:
    """Return arguments that are written as ``null`` or as JSON inside a string."""
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
