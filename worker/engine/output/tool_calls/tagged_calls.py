"""Read calls whose arguments stand between marks, and hand their texts on while they are written.

Qwen3-Coder, GLM, MiniMax and LongCat, each with marks of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from worker.engine.output.stop_sequences import TagScanner
from worker.engine.output.tool_calls.json_text import JsonValue, MalformedJson
from worker.engine.output.tool_calls.json_types import (
    ALL_TYPES,
    STRING_ONLY,
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


class TaggedReader:
    """``CallReader`` for marks.

    What does not begin as a call of an offered tool is left to the family's own parser. From the
    name on a call is told as it comes: a text in pieces, any other value when it is whole. Words
    between arguments are dropped.

    Args:
        rules: What is read; the format has marks.
        start: The tag that was met.
    """

    def __init__(self, rules: CallRules, start: str) -> None:
        marks = rules.format.syntax
        assert marks is not None, "nothing to look for"
        self.is_over = False
        self.plain = self.rest = ""
        self._rules, self._start, self._marks = rules, start, marks
        self._call = marks.call.rstrip(_QUOTES)
        self._named = marks.named.strip().lstrip(_QUOTES)
        self._key = marks.key.rstrip(_QUOTES)
        #: What follows the name of an argument, and what stands right before its value.
        self._keyed = tuple(part.lstrip(_QUOTES) for part in _tags(marks.keyed))
        self._valued = marks.valued.strip()
        self._done = marks.done.strip()
        values = (self._valued, f"\n{self._valued}") if marks.is_padded else (self._valued,)
        self._value_ends = TagScanner(values)
        ends = {tag for tag in (self._done, rules.format.end) if tag}
        self._name_ends = TagScanner([self._named] if self._named else [self._key, *ends])
        self._between_ends = TagScanner([self._key, *ends])
        self._step: Callable[[], bool] = self._head
        #: What has not been read yet, and what came since the last whole call.
        self._held = start if start == self._call else ""
        self._raw = ""
        self._changes: list[CallDelta] = []
        self._instead: CallReader | None = None
        self._begin()

    def _begin(self) -> None:
        self._schema: Mapping[str, Any] = {}
        self._kinds = ALL_TYPES
        self._arguments = 0
        self._is_open = False
        #: Where the end of a value may begin, and how much of it was read as JSON.
        self._from = self._fed = 0
        self._json = JsonValue()

    def feed(self, text: str) -> list[CallDelta]:
        """Take more text."""
        if self._instead is not None:
            return self._feed_instead(text)
        self._held += text
        if not self._is_open:
            self._raw += text
        while not self.is_over and self._instead is None and self._step():
            pass
        changes, self._changes = self._changes, []
        return changes if self._instead is None else [*changes, *self._feed_instead(self._raw)]

    def flush(self, *, cut: bool) -> list[CallDelta]:
        """Close a call that lacks no more than its last marks; what was cut stays open."""
        if self._instead is None and self._step == self._head:
            self._instead = WholeReader(self._rules, self._start)
            self._changes += self._feed_instead(self._raw)
        if self._instead is not None:
            self._changes += self._instead.flush(cut=cut)
            self.plain, self.rest = self._instead.plain, self._instead.rest
        elif self._step == self._between and not cut:
            self._end_call()
        self.is_over = True
        changes, self._changes = self._changes, []
        return changes

    def _feed_instead(self, text: str) -> list[CallDelta]:
        assert self._instead is not None, "nobody else reads"
        changes = self._instead.feed(text)
        self.is_over = self._instead.is_over
        self.plain, self.rest = self._instead.plain, self._instead.rest
        return changes

    # -- one step per place in the text; each returns whether the next one may be taken ----------

    def _head(self) -> bool:
        said = self._held.lstrip()
        if not said.startswith(self._call):
            if not self._call.startswith(said):
                self._leave_it()
            return False
        behind = said[len(self._call) :]
        hit = self._name_ends.search(behind)
        if hit is None:
            return False
        name = behind[: hit.start].strip().strip(_QUOTES)
        if name not in self._rules.names:
            self._leave_it()
            return False
        self._held = behind[hit.end if self._named else hit.start :]
        self._open(name)
        return True

    def _between(self) -> bool:
        hit = self._between_ends.search(self._held)
        if hit is None:
            self._held = self._held[self._between_ends.safe_length(self._held) :]
            return False
        self._held = self._held[hit.end :]
        if hit.tag == self._key:
            self._step = self._in_key
            return True
        self._end_call()
        if hit.tag == self._rules.format.end:
            self._go_on_behind()
        else:
            self._step, self._raw = self._behind, ""
        return True

    def _in_key(self) -> bool:
        at = self._held.find(self._keyed[0])
        last = self._keyed[-1]
        behind = self._held.find(last, at) if at >= 0 else -1
        if behind < 0:
            return False
        key = self._held[:at].strip().strip(_QUOTES)
        self._held = self._held[behind + len(last) :]
        self._kinds = types_of(argument_schema(self._schema, key), self._schema)
        self._say(f"{'{' if self._arguments == 0 else ', '}{json_string(key)}: ")
        self._arguments += 1
        self._step = self._before_value
        return True

    def _before_value(self) -> bool:
        if self._marks.is_padded:
            if not self._held:
                return False
            self._held = self._held.removeprefix("\n")
        if self._kinds <= STRING_ONLY:
            self._say('"')
            self._step = self._in_text
        else:
            self._step, self._from, self._fed, self._json = self._in_value, 0, 0, JsonValue()
        return True

    def _in_text(self) -> bool:
        """Hand a text on as far as no end of it can have begun."""
        hit = self._value_ends.search(self._held)
        safe = self._value_ends.safe_length(self._held) if hit is None else hit.start
        self._say(json_string(self._held[:safe])[1:-1])
        self._held = self._held[safe if hit is None else hit.end :]
        if hit is None:
            return False
        self._say('"')
        self._step = self._between
        return True

    def _in_value(self) -> bool:
        ahead = self._held[self._from :]
        hit = self._value_ends.search(ahead)
        if hit is None:
            self._from += self._value_ends.safe_length(ahead)
            return False
        start, end = self._from + hit.start, self._from + hit.end
        self._from = end
        if self._is_inside_string(start):
            return True
        self._say(value_json(self._held[:start], self._kinds))
        self._held, self._step = self._held[end:], self._between
        return True

    def _behind(self) -> bool:
        """Look for what follows a whole call: another, the tag behind calls, or other words."""
        said, end = self._held.lstrip(), self._rules.format.end
        if said.startswith(end):
            self._held = said.removeprefix(end)
            self._go_on_behind()
        elif self._marks.is_repeated and said.startswith(self._call):
            self._start, self._raw, self._step = "", self._held, self._head
            return True
        elif not end.startswith(said) and not (
            self._marks.is_repeated and self._call.startswith(said)
        ):
            self._go_on_behind()
        return False

    # -- what was read ---------------------------------------------------------------------------

    def _leave_it(self) -> None:
        self._instead = WholeReader(self._rules, self._start)

    def _go_on_behind(self) -> None:
        self.is_over, self.rest, self._held = True, self._held, ""

    def _open(self, name: str) -> None:
        self._begin()
        self._is_open = True
        tools = [tool["function"] for tool in self._rules.tools]
        self._schema = next(tool.get("parameters") or {} for tool in tools if tool["name"] == name)
        self._changes.append(CallOpened(name))
        self._step = self._between

    def _end_call(self) -> None:
        self._say("}" if self._arguments else "{}")
        self._changes.append(CallClosed())
        self._is_open = False

    def _say(self, fragment: str) -> None:
        if fragment:
            self._changes.append(CallInput(fragment))

    def _is_inside_string(self, start: int) -> bool:
        """Whether an end mark is part of a string in an object or a list, which is JSON so far."""
        if not self._kinds & _CONTAINERS or self._held.lstrip()[:1] not in ("{", "["):
            return False
        try:
            for char in self._held[self._fed : start]:
                if self._json.is_complete:
                    return False
                self._json.feed(char)
        except MalformedJson:
            # It stays so: no string can begin where no value may.
            return False
        self._fed = start
        return self._json.is_inside_string


def _tags(text: str) -> list[str]:
    """Return the marks in a text, without the white space between them."""
    if "><" in text or ">\n<" in text:
        first, _, second = text.partition(">")
        return [f"{first}>", second.strip()]
    return [text.strip()]
