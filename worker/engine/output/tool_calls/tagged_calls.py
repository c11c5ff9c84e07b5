"""Read tool calls whose arguments stand between tags, and stream string arguments as they come.

Qwen3-Coder, GLM, MiniMax and LongCat write them, each with its own ``ToolSyntax``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from worker.engine.output.stop_sequences import TagScanner
from worker.engine.output.tool_calls.json_text import (
    ALL_TYPES,
    STRING_ONLY,
    JsonValue,
    MalformedJson,
    argument_schema,
    json_string,
    types_of,
    value_json,
)
from worker.engine.output.tool_calls.reader import (
    CallClosed,
    CallDelta,
    CallInput,
    CallOpened,
    CallReader,
    CallRules,
    WholeReader,
)

_CONTAINERS = frozenset({"object", "array"})
_QUOTES = "\"'"
_CDATA, _CDATA_END = "<![CDATA[", "]]>"


class TaggedReader(CallReader):
    """``CallReader`` for a ``ToolSyntax``.

    Text that does not begin with a call of an offered tool goes to the family's parser
    (``WholeReader``). After the tool's name, the reader streams the call: a string in pieces, any
    other value when it is complete. Words between arguments are dropped.
    """

    def __init__(self, rules: CallRules, start: str) -> None:
        syntax = rules.format.syntax
        assert syntax is not None, "the format has no tool syntax"
        self._rules, self._start, self._syntax = rules, start, syntax
        self._call_start = syntax.before_name.rstrip(_QUOTES)
        self._name_end = syntax.after_name.strip().lstrip(_QUOTES)
        self._key_start = syntax.before_key.rstrip(_QUOTES)
        #: The tag after the name of an argument, and the tag right before its value.
        self._key_ends = tuple(part.lstrip(_QUOTES) for part in _tags_in(syntax.after_key))
        self._value_end = syntax.after_value.strip()
        self._call_end = syntax.after_call.strip()
        values = (
            (self._value_end, f"\n{self._value_end}") if syntax.is_padded else (self._value_end,)
        )
        self._plain_ends = self._value_ends = TagScanner(values)
        self._cdata_ends = TagScanner([_CDATA_END + self._value_end])
        ends = {tag for tag in (self._call_end, rules.format.end) if tag}
        self._name_ends = TagScanner(
            [self._name_end] if self._name_end else [self._key_start, *ends]
        )
        self._between_ends = TagScanner([self._key_start, *ends])
        self._step: Callable[[], bool] = self._read_name
        #: Text not read yet, and all text since the last complete call.
        self._buffer = start if start == self._call_start else ""
        self._unread_call = ""
        self._deltas: list[CallDelta] = []
        self._fallback: CallReader | None = None
        self._begin()

    def _begin(self) -> None:
        self._schema: Mapping[str, Any] = {}
        self._types = ALL_TYPES
        self._arguments = 0
        self._is_open = False
        #: Offset from which on the value may end, and how much of it was read as JSON.
        self._from = self._fed = 0
        self._json = JsonValue()

    def feed(self, text: str) -> list[CallDelta]:
        """Feed more text and return the deltas that are certain now."""
        if self._fallback is not None:
            return self._feed_fallback(text)
        self._buffer += text
        if not self._is_open:
            self._unread_call += text
        while not self.is_over and self._fallback is None and self._step():
            pass
        deltas, self._deltas = self._deltas, []
        return (
            deltas if self._fallback is None else [*deltas, *self._feed_fallback(self._unread_call)]
        )

    def flush(self, *, cut: bool) -> list[CallDelta]:
        """Close a call that lacks only its last tags; a call that was cut stays open."""
        if self._fallback is None and self._step == self._read_name:
            self._fallback = WholeReader(self._rules, self._start)
            self._deltas += self._feed_fallback(self._unread_call)
        if self._fallback is not None:
            self._deltas += self._fallback.flush(cut=cut)
            self.plain, self.rest = self._fallback.plain, self._fallback.rest
        elif self._step == self._read_between and not cut:
            self._end_call()
        self.is_over = True
        deltas, self._deltas = self._deltas, []
        return deltas

    def _feed_fallback(self, text: str) -> list[CallDelta]:
        assert self._fallback is not None, "there is no fallback"
        deltas = self._fallback.feed(text)
        self.is_over = self._fallback.is_over
        self.plain, self.rest = self._fallback.plain, self._fallback.rest
        return deltas

    # -- one step per position in a call; each returns whether the next step may run -------------

    def _read_name(self) -> bool:
        text = self._buffer.lstrip()
        if not text.startswith(self._call_start):
            if not self._call_start.startswith(text):
                self._fall_back()
            return False
        rest = text[len(self._call_start) :]
        hit = self._name_ends.search(rest)
        if hit is None:
            return False
        name = rest[: hit.start].strip().strip(_QUOTES)
        if name not in self._rules.names:
            self._fall_back()
            return False
        self._buffer = rest[hit.end if self._name_end else hit.start :]
        self._open(name)
        return True

    def _read_between(self) -> bool:
        hit = self._between_ends.search(self._buffer)
        if hit is None:
            self._buffer = self._buffer[self._between_ends.safe_length(self._buffer) :]
            return False
        self._buffer = self._buffer[hit.end :]
        if hit.tag == self._key_start:
            self._step = self._read_key
            return True
        self._end_call()
        if hit.tag == self._rules.format.end:
            self._finish()
        else:
            self._step, self._unread_call = self._read_after_call, ""
        return True

    def _read_key(self) -> bool:
        key_end = self._buffer.find(self._key_ends[0])
        last = self._key_ends[-1]
        last_start = self._buffer.find(last, key_end) if key_end >= 0 else -1
        if last_start < 0:
            return False
        key = self._buffer[:key_end].strip().strip(_QUOTES)
        self._buffer = self._buffer[last_start + len(last) :]
        self._types = types_of(argument_schema(self._schema, key), self._schema)
        self._emit_arguments(f"{'{' if self._arguments == 0 else ', '}{json_string(key)}: ")
        self._arguments += 1
        self._step = self._start_value
        return True

    def _start_value(self) -> bool:
        if self._syntax.is_padded:
            if not self._buffer:
                return False
            self._buffer = self._buffer.removeprefix("\n")
        is_marked = self._syntax.has_cdata and self._buffer.startswith(_CDATA)
        if self._syntax.has_cdata and not is_marked and _CDATA.startswith(self._buffer):
            return False
        self._value_ends = self._cdata_ends if is_marked else self._plain_ends
        if is_marked:
            self._buffer = self._buffer.removeprefix(_CDATA)
        if self._types <= STRING_ONLY or (is_marked and "string" in self._types):
            self._emit_arguments('"')
            self._step = self._stream_string
        else:
            self._step, self._from, self._fed, self._json = self._read_value, 0, 0, JsonValue()
        return True

    def _stream_string(self) -> bool:
        """Stream a string up to where its end tag may begin."""
        hit = self._value_ends.search(self._buffer)
        safe = self._value_ends.safe_length(self._buffer) if hit is None else hit.start
        self._emit_arguments(json_string(self._buffer[:safe])[1:-1])
        self._buffer = self._buffer[safe if hit is None else hit.end :]
        if hit is None:
            return False
        self._emit_arguments('"')
        self._step = self._read_between
        return True

    def _read_value(self) -> bool:
        ahead = self._buffer[self._from :]
        hit = self._value_ends.search(ahead)
        if hit is None:
            self._from += self._value_ends.safe_length(ahead)
            return False
        start, end = self._from + hit.start, self._from + hit.end
        self._from = end
        if self._is_inside_string(start):
            return True
        self._emit_arguments(value_json(self._buffer[:start], self._types))
        self._buffer, self._step = self._buffer[end:], self._read_between
        return True

    def _read_after_call(self) -> bool:
        """Look for another call, the end tag of the calls, or other text after a call."""
        text, end = self._buffer.lstrip(), self._rules.format.end
        if text.startswith(end):
            self._buffer = text.removeprefix(end)
            self._finish()
        elif self._syntax.is_repeated and text.startswith(self._call_start):
            self._start, self._unread_call, self._step = "", self._buffer, self._read_name
            return True
        elif not end.startswith(text) and not (
            self._syntax.is_repeated and self._call_start.startswith(text)
        ):
            self._finish()
        return False

    # -- deltas ----------------------------------------------------------------------------------

    def _fall_back(self) -> None:
        self._fallback = WholeReader(self._rules, self._start)

    def _finish(self) -> None:
        self.is_over, self.rest, self._buffer = True, self._buffer, ""

    def _open(self, name: str) -> None:
        self._begin()
        self._is_open = True
        tools = [tool["function"] for tool in self._rules.tools]
        self._schema = next(tool.get("parameters") or {} for tool in tools if tool["name"] == name)
        self._deltas.append(CallOpened(name))
        self._step = self._read_between

    def _end_call(self) -> None:
        self._emit_arguments("}" if self._arguments else "{}")
        self._deltas.append(CallClosed())
        self._is_open = False

    def _emit_arguments(self, fragment: str) -> None:
        if fragment:
            self._deltas.append(CallInput(fragment))

    def _is_inside_string(self, start: int) -> bool:
        """Whether an end tag is part of a string inside an object or array."""
        if not self._types & _CONTAINERS or self._buffer.lstrip()[:1] not in ("{", "["):
            return False
        try:
            for char in self._buffer[self._fed : start]:
                if self._json.is_complete:
                    return False
                self._json.feed(char)
        except MalformedJson:
            # The text stays malformed, so no string can begin.
            return False
        self._fed = start
        return self._json.is_inside_string


def _tags_in(text: str) -> list[str]:
    """Return the one or two tags in a text, without the white space between them."""
    if "><" in text or ">\n<" in text:
        first, _, second = text.partition(">")
        return [f"{first}>", second.strip()]
    return [text.strip()]
