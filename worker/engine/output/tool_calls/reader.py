"""Read tool calls in what a model says; each family writes them in its own way.

Readers take decoded text in pieces of any size and say the same however it was cut. What turns out
to be no call is given back as plain text: nothing a model says is lost, and nothing it says is an
error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

from worker.engine.output.tool_calls.keyword_calls import is_inside_string
from worker.engine.output.tool_calls.tool_syntax import ToolSyntax

Tool = Mapping[str, Any]
#: From the text of a call, without the tags around it, to one call or several, each a mapping with
#: ``name`` and ``arguments``; raises whatever it likes.
Parse = Callable[[str, Sequence[Tool]], Any]


@dataclass(frozen=True, slots=True)
class CallOpened:
    """A call begins."""

    name: str


@dataclass(frozen=True, slots=True)
class CallInput:
    """A fragment of its arguments, which together are one JSON object."""

    fragment: str


@dataclass(frozen=True, slots=True)
class CallClosed:
    """Nothing more belongs to it."""


CallDelta = CallOpened | CallInput | CallClosed


class JsonCallStyle(Enum):
    """How calls are written that are JSON, behind their start tag."""

    #: ``{"name": "f", "arguments": {…}}`` and an end tag, a start tag before each: Hermes, Qwen.
    TAGGED = auto()
    #: ``{"name": "f", "parameters": {…}}; …``: Llama 3.1.
    BARE = auto()
    #: ``[{"name": "f", "arguments": {…}}, …]``: older Mistral.
    LIST = auto()
    #: ``f[ARGS]{…}``, a start tag before each: Mistral since version 11.
    HEADED = auto()
    #: ``functions.f:0`` and ``{…}``, each between tags of their own: Kimi K2.
    NUMBERED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """How a family of models writes calls.

    Attributes:
        start: Tag before them.
        end: Tag after them; empty if the end of the output is the end.
        parse: Reads what stands between the tags; ``None`` if it is JSON, which is read as it
            comes.
        argument_tags: Tags around one argument; an ``end`` between them belongs to its text.
        is_bare: An answer that begins with a brace may be a call without a tag, as in Llama 3.1.
        inner_tags: Beginning and end of what some models write without the tags around it.
        opening: Beginning of any call, for a model that must call something.
        opening_named: The same up to the arguments; ``NAME`` stands for the tool.
        json: How the model is held to write calls, if they are JSON.
        syntax: How it writes them, and is held to, if arguments stand between marks.
    """

    start: str
    end: str
    parse: Parse | None = None
    argument_tags: tuple[str, str] | None = None
    is_bare: bool = False
    inner_tags: tuple[str, str] | None = None
    opening: str = ""
    opening_named: str = ""
    json: JsonCallStyle | None = None
    syntax: ToolSyntax | None = None

    @property
    def has_grammar(self) -> bool:
        """Whether there are grammars for its calls."""
        return self.json is not None or self.syntax is not None

    @property
    def starts(self) -> tuple[str, ...]:
        """All tags that begin a call."""
        return (self.start, self.inner_tags[0]) if self.inner_tags else (self.start,)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """What is read in one answer.

    Attributes:
        format: How the model writes calls.
        tools: What it may call, in function format.
    """

    format: ToolFormat
    tools: tuple[Tool, ...]
    names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        names = frozenset(tool["function"]["name"] for tool in self.tools)
        object.__setattr__(self, "names", names)


class CallReader(Protocol):
    """Takes text from behind the start tag on.

    Attributes:
        is_over: It has left the calls; ``plain`` and ``rest`` follow them.
        plain: What looked like a call and is text; holds the tags as they came.
        rest: What has not been looked at.
    """

    is_over: bool
    plain: str
    rest: str

    def feed(self, text: str) -> list[CallDelta]:
        """Take more text and return what is certain now."""
        ...

    def flush(self, *, cut: bool) -> list[CallDelta]:
        """Return what is certain at the end of the output; the reader is over then.

        Args:
            cut: The model did not come to its own end.
        """
        ...


class WholeReader:
    """Holds the text back up to the end tag and has the family's parser read it.

    Args:
        rules: What is read.
        start: The tag that was met.
    """

    def __init__(self, rules: CallRules, start: str) -> None:
        self.is_over = False
        self.plain = self.rest = ""
        self._rules = rules
        self._start = start
        naked = rules.format.inner_tags
        self._is_naked = naked is not None and start == naked[0]
        self._end = naked[1] if self._is_naked and naked else rules.format.end
        self._held = ""
        #: The call is read; only an end tag may follow.
        self._is_read = False
        #: Where the next end tag may begin.
        self._from = 0

    def feed(self, text: str) -> list[CallDelta]:
        """Take more text."""
        self._held += text
        if self._is_read:
            self._skip_end_tag()
            return []
        while self._end and (at := self._held.find(self._end, self._from)) >= 0:
            after = at + len(self._end)
            if not self._is_inside_argument(self._held[:at]):
                return self._leave(self._held[:at], self._held[:after], self._held[after:])
            self._from = after
        self._from = max(self._from, len(self._held) - len(self._end))
        return []

    def flush(self, *, cut: bool) -> list[CallDelta]:
        """Read what has no end tag, unless it may be half of what the model meant."""
        if not self._is_read and not cut:
            changes = self._leave(self._held, self._held, "")
        else:
            changes, self.plain = [], "" if self._is_read else self._start + self._held
        self.is_over = True
        return changes

    def _leave(self, body: str, whole: str, rest: str) -> list[CallDelta]:
        self.is_over, self.rest = True, rest
        # The family's parser wants what a well-behaved model writes between the tags.
        inside = self._start + whole if self._is_naked else body
        changes = _parsed(inside, self._rules)
        if changes is None:
            self.plain = self._start + whole
            return []
        if self._is_naked:
            # It forgot the tag before the call, and may yet write the one after it.
            self.is_over, self.rest = False, ""
            self._is_read, self._held = True, rest
            self._skip_end_tag()
        return changes

    def _skip_end_tag(self) -> None:
        text, end = self._held.lstrip(), self._rules.format.end
        if text.startswith(end) or not end.startswith(text):
            self.is_over, self.rest = True, text.removeprefix(end)

    def _is_inside_argument(self, text: str) -> bool:
        marks = self._rules.format.syntax
        if marks is not None and marks.is_quoted:
            return is_inside_string(text)
        tags = self._rules.format.argument_tags
        return tags is not None and text.rfind(tags[0]) > text.rfind(tags[1])


def _parsed(text: str, rules: CallRules) -> list[CallDelta] | None:
    parse = rules.format.parse
    assert parse is not None, "JSON has its own reader"
    try:
        found = parse(text, rules.tools)
        calls = found if isinstance(found, list) else [found]
        changes: list[CallDelta] = []
        for call in calls:
            changes += _changes(call["name"], call["arguments"], rules)
    except Exception:  # noqa: BLE001 - a foreign parser on foreign text raises whatever it likes
        return None
    return changes or None


def _changes(name: object, arguments: object, rules: CallRules) -> list[CallDelta]:
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        msg = "not a call"
        raise TypeError(msg)
    if name not in rules.names and set(arguments) <= {"raw"}:
        # What some parsers make of any text at all.
        msg = "not a call of a tool"
        raise ValueError(msg)
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return [CallOpened(name), CallInput(text), CallClosed()]
