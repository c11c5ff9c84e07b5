"""Read the arguments of a call whose name was told before them, while they are written."""

from __future__ import annotations

from collections.abc import Sequence

from worker.engine.output.tool_calls.json_text import JsonValue, MalformedJson
from worker.engine.output.tool_calls.reader import CallClosed, CallDelta, CallInput, CallOpened

_SPACE = " \t\r\n"
#: What may stand behind arguments: brackets too many, which models write.
_AFTER = _SPACE + "]}"


class ArgumentsReader:
    """``CallReader`` for one JSON object, up to the mark behind it.

    A mark inside a string is part of the string, since the reader knows where it stands. Nothing is
    told before the object begins; what goes wrong later closes the call as it is, so that its
    arguments are no valid JSON and nobody runs it, and what follows is plain.

    Args:
        name: What is called.
        header: What was said of it; it is plain text if no object follows.
        marks: What may stand behind the object, or in its place.
    """

    def __init__(self, name: str, header: str, marks: Sequence[str]) -> None:
        self.is_over = False
        self.plain = self.rest = ""
        self._name = name
        self._header = header
        self._marks = marks
        self._value = JsonValue()
        self._is_open = False
        #: What stands before the object.
        self._held = ""

    def feed(self, text: str) -> list[CallDelta]:
        """Take more text."""
        if self._value.is_complete:
            self._skip(text)
            return []
        if self._is_open:
            return self._read(text)
        self._held += text
        begun = self._held.lstrip(_SPACE)
        if begun.startswith("{"):
            self._is_open = True
            return [CallOpened(self._name), *self._read(begun)]
        if begun.startswith(tuple(self._marks)):
            self.is_over, self.rest = True, begun
            return self._without_arguments()
        if begun and not any(mark.startswith(begun) for mark in self._marks):
            self._be_plain(begun)
        return []

    def flush(self, *, cut: bool) -> list[CallDelta]:
        """Tell a call that needed no arguments; one that was cut stays open."""
        self.is_over = True
        if self._is_open or self._value.is_complete:
            return []
        if not cut and not self._held.strip(_SPACE):
            return self._without_arguments()
        self._be_plain(self._held)
        return []

    def _read(self, text: str) -> list[CallDelta]:
        said = ""
        for index, char in enumerate(text):
            try:
                said += self._value.feed(char) or ""
            except MalformedJson:
                self.is_over, self.rest = True, text[index:]
            else:
                if not self._value.is_complete:
                    continue
                self._skip(text[index + 1 :])
            return [*_input(said), CallClosed()]
        return _input(said)

    def _skip(self, text: str) -> None:
        rest = text.lstrip(_AFTER)
        self.is_over, self.rest = bool(rest), rest

    def _without_arguments(self) -> list[CallDelta]:
        return [CallOpened(self._name), CallInput("{}"), CallClosed()]

    def _be_plain(self, rest: str) -> None:
        self.is_over, self.plain, self.rest = True, f"{self._header} ", rest


def _input(text: str) -> list[CallDelta]:
    return [CallInput(text)] if text else []
