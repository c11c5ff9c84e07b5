"""Read the JSON arguments of a tool call whose header gave its name, while they are written."""

from __future__ import annotations

from collections.abc import Sequence

from worker.engine.output.tool_calls.json_text import JsonValue, MalformedJson
from worker.engine.output.tool_calls.reader import CallClosed, CallDelta, CallInput, CallOpened

_SPACE = " \t\r\n"
#: Skipped after the arguments: white space, and surplus brackets that models write.
_AFTER = _SPACE + "]}"


class ArgumentsReader:
    """``CallReader`` for one JSON object, up to the marker after it.

    A marker inside a JSON string belongs to the string. The reader opens the call when the object
    begins. A syntax error later closes the call as it is: its arguments are invalid JSON then, so
    that no client runs it, and the text after the error is plain.

    Args:
        name: Name of the tool.
        header: Recipient in the header, which becomes plain text if no object follows.
        markers: Markers that may follow the object, or replace it in a call without arguments.
    """

    def __init__(self, name: str, header: str, markers: Sequence[str]) -> None:
        self.is_over = False
        self.plain = self.rest = ""
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
