"""Tool calls in the output of a model: syntaxes, formats, deltas and the reader port."""

from __future__ import annotations

import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Final

from worker.engine.output.tool_calls.json_text import JsonValue, MalformedJson

_CALL_HEADER: Final = re.compile(r"\s*([\w.-]+)\(\s*")
_KEY: Final = re.compile(r"\s*([\w.-]+)\s*=\s*")
_NUMBERED: Final = re.compile(
    r"\s*<\|tool_call_begin\|>\s*functions\.([^\s<>]+):\d+\s*<\|tool_call_argument_begin\|>\s*"
)
_QUOTED: Final = re.compile(r'<\|"\|>(.*?)<\|"\|>', re.DOTALL)
_BARE_HEADER: Final = re.compile(r"\s*call:([^\s{}]+)(?=\{)")
_BARE_KEY: Final = re.compile(r'\s*(?:<\|"\|>(.*?)<\|"\|>|([\w.-]+))\s*:', re.DOTALL)
_WORDS: Final = {"True": True, "False": False, "None": None}


def _number(text: str) -> float:
    """Return a number, limited to the largest float, because JSON has no infinity."""
    return max(-sys.float_info.max, min(sys.float_info.max, float(text)))


_DECODER: Final = json.JSONDecoder(parse_float=_number)


def parse_keyword_calls(text: str) -> list[dict[str, Any]]:
    """Return the calls in a text of the form ``[f(a="x"), g()]``.

    Python reads some JSON escapes differently, so a value that is valid JSON is read as JSON.

    Raises:
        ValueError: The text has another form.
    """
    stripped = text.strip()
    if not stripped.startswith("["):
        raise MalformedJson
    at, calls = 1, []
    while True:
        call, at = _call(stripped, at)
        calls.append(call)
        at = _skip_space(stripped, at)
        if stripped[at : at + 1] == "]" and not stripped[at + 1 :].strip():
            return calls
        at = _expect(stripped, at, ",")


def parse_numbered_calls(text: str) -> list[dict[str, Any]]:
    """Return the calls in a text of the form ``<|tool_call_begin|>functions.f:0…``.

    Raises:
        ValueError: The text has another form.
    """

    def value(at: int) -> tuple[Any, int]:
        arguments, end = _DECODER.raw_decode(text, at)
        return arguments, _expect(text, end, "<|tool_call_end|>")

    return _calls_in(text, _NUMBERED, value)


def parse_bare_calls(text: str) -> list[dict[str, Any]]:
    """Return the calls in a text of the form ``call:f{a:<|"|>x<|"|>,b:{c:[1]}}``.

    Raises:
        ValueError: The text has another form.
    """
    return _calls_in(text, _BARE_HEADER, lambda at: _bare_value(text, at))


def _calls_in(
    text: str, headers: re.Pattern[str], value: Callable[[int], tuple[Any, int]]
) -> list[dict[str, Any]]:
    at, calls = 0, list[dict[str, Any]]()
    while at < len(text) or not calls:
        header = headers.match(text, at)
        if header is None:
            raise MalformedJson
        arguments, at = value(header.end())
        calls.append({"name": header[1], "arguments": arguments})
        at = _skip_space(text, at)
    return calls


def _bare_value(text: str, at: int) -> tuple[Any, int]:
    at = _skip_space(text, at)
    if quote := _QUOTED.match(text, at):
        return quote[1], quote.end()
    closing = {"{": "}", "[": "]"}.get(text[at : at + 1])
    if closing is None:
        return _DECODER.raw_decode(text, at)
    members, items = dict[str, Any](), list[Any]()
    at = _skip_space(text, at + 1)
    while text[at : at + 1] != closing:
        if members or items:
            at = _expect(text, at, ",")
        if closing == "}":
            key = _BARE_KEY.match(text, at)
            if key is None:
                raise MalformedJson
            members[key[1] or key[2]], at = _bare_value(text, key.end())
        else:
            item, at = _bare_value(text, at)
            items.append(item)
        at = _skip_space(text, at)
    return members if closing == "}" else items, at + 1


def is_inside_string(text: str) -> bool:
    """Return whether an unfinished list of calls ends inside a string."""
    quote, escaped = "", False
    for char in text.lstrip() if text.lstrip().startswith("[") else "":
        if escaped or (quote and char == "\\"):
            escaped = not escaped
        elif quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
    return bool(quote)


def _call(text: str, at: int) -> tuple[dict[str, Any], int]:
    header = _CALL_HEADER.match(text, at)
    if header is None:
        raise MalformedJson
    arguments: dict[str, Any] = {}
    at = header.end()
    while text[at : at + 1] != ")":
        if arguments:
            at = _expect(text, at, ",")
        key = _KEY.match(text, at)
        if key is None:
            raise MalformedJson
        arguments[key[1]], at = _value(text, key.end())
        at = _skip_space(text, at)
    return {"name": header[1], "arguments": arguments}, at + 1


def _value(text: str, at: int) -> tuple[Any, int]:
    for word, meant in _WORDS.items():
        if text.startswith(word, at):
            return meant, at + len(word)
    value, value_text = JsonValue(), ""
    while at < len(text) and not value.is_complete:
        piece = value.feed(text[at])
        if piece is None:
            break
        value_text += piece
        at += 1
    return _DECODER.decode(value_text), at


def _skip_space(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at


def _expect(text: str, at: int, wanted: str) -> int:
    at = _skip_space(text, at)
    if not text.startswith(wanted, at):
        raise MalformedJson
    return at + len(wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSyntax:
    r"""The texts around the parts of a call, as a model usually writes them.

    A call is: ``before_name`` NAME ``after_name``
    (``before_key`` KEY ``after_key`` VALUE ``after_value``)* ``after_call``.
    White space at either end of these texts is part of the syntax; a reader accepts less of it.

    Attributes:
        after_call: Text after the last value; empty if only the end tag of the calls follows.
        is_repeated: Whether several calls may stand between the start tag and the end tag.
        is_quoted: Whether strings are written as in JSON, so that no tag can stand in one.
        separator: Text between two arguments, and between two calls.
        quote: Tag around strings where values within values are written in the same way.
        has_cdata: Whether strings with markup are written as ``<![CDATA[…]]>``. Another one does
            not begin with ``<``.
    """

    after_key: str
    before_name: str = ""
    after_name: str = ""
    before_key: str = ""
    after_value: str = ""
    after_call: str = ""
    is_repeated: bool = False
    is_quoted: bool = False
    separator: str = ""
    quote: str = ""
    has_cdata: bool = False

    @property
    def is_padded(self) -> bool:
        """Whether one line break on each side of a value belongs to the syntax."""
        return self.after_key.endswith("\n") and self.after_value.startswith("\n")


QWEN_SYNTAX: Final = ToolSyntax(
    before_name="<function=",
    after_name=">\n",
    before_key="<parameter=",
    after_key=">\n",
    after_value="\n</parameter>\n",
    after_call="</function>\n",
)
#: GLM 4.7 and Laguna.
GLM_SYNTAX: Final = ToolSyntax(
    before_key="<arg_key>",
    after_key="</arg_key><arg_value>",
    after_value="</arg_value>",
)
#: GLM 4.5 and 4.6, which write each part on its own line.
GLM_LINES_SYNTAX: Final = replace(
    GLM_SYNTAX, after_name="\n", after_key="</arg_key>\n<arg_value>", after_value="</arg_value>\n"
)
LONGCAT_SYNTAX: Final = ToolSyntax(
    after_name="\n",
    before_key="<longcat_arg_key>",
    after_key="</longcat_arg_key>\n<longcat_arg_value>",
    after_value="</longcat_arg_value>\n",
)
MINIMAX_SYNTAX: Final = ToolSyntax(
    before_name='<invoke name="',
    after_name='">\n',
    before_key='<parameter name="',
    after_key='">',
    after_value="</parameter>\n",
    after_call="</invoke>\n",
    is_repeated=True,
)
#: The start tag is ``<function name=``.
MINICPM_SYNTAX: Final = ToolSyntax(
    before_name='"',
    after_name='">',
    before_key='<param name="',
    after_key='">',
    after_value="</param>",
    has_cdata=True,
)
GEMMA_SYNTAX: Final = ToolSyntax(
    before_name="call:",
    after_name="{",
    after_key=":",
    after_call="}",
    separator=",",
    quote='<|"|>',
)
#: LFM and other families that write Python: ``[f(a="x", b=2)]``.
PYTHON_SYNTAX: Final = ToolSyntax(
    after_name="(",
    after_key="=",
    after_call=")",
    is_repeated=True,
    is_quoted=True,
    separator=", ",
)


Tool = Mapping[str, Any]
#: Parses the text between the tags into one call or a list of calls, each a mapping with ``name``
#: and ``arguments``; may raise any exception.
Parse = Callable[[str, Sequence[Tool]], Any]


@dataclass(frozen=True, slots=True)
class CallOpened:
    """A call begins, with the name of its tool."""

    name: str


@dataclass(frozen=True, slots=True)
class CallInput:
    """A fragment of the open call's arguments; all fragments together are one JSON object."""

    fragment: str


@dataclass(frozen=True, slots=True)
class CallClosed:
    """The open call is complete."""


CallDelta = CallOpened | CallInput | CallClosed


class JsonCallStyle(Enum):
    """How a family writes calls that are JSON, after the start tag."""

    #: ``{"name": "f", "arguments": {…}}`` and an end tag, a start tag before each: Hermes, Qwen.
    TAGGED = auto()
    #: ``{"name": "f", "parameters": {…}}; …``: Llama 3.1.
    BARE = auto()
    #: ``[{"name": "f", "arguments": {…}}, …]``: older Mistral.
    LIST = auto()
    #: ``f[ARGS]{…}``, a start tag before each: Mistral since version 11.
    HEADED = auto()
    #: ``functions.f:0`` and ``{…}``, each between tags: Kimi K2.
    NUMBERED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """How a model family writes tool calls.

    Attributes:
        start: Tag before the calls.
        end: Tag after the calls; empty if they extend to the end of the output.
        parse: Parses the text between the tags; ``None`` if it is JSON, which ``JsonReader``
            streams.
        argument_tags: Tags around one argument; an ``end`` between them belongs to its text.
        is_bare: Whether an answer that begins with a brace may be a call without a tag, as in
            Llama 3.1.
        inner_tags: First and last tag of a call that some models write without ``start`` and
            ``end`` around it.
        opening: Beginning of any call; ends the prompt if the model must call a tool.
        opening_named: Beginning of a call up to its arguments; ``NAME`` stands for the tool.
        json: How the grammar writes calls, if they are JSON.
        syntax: The tags between the parts of a call, if arguments stand between tags.
    """

    start: str = ""
    end: str = ""
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
        """Whether a grammar can constrain the calls."""
        return self.json is not None or self.syntax is not None

    @property
    def starts(self) -> tuple[str, ...]:
        """All tags with which a call may begin."""
        return (self.start, self.inner_tags[0]) if self.inner_tags else (self.start,)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """How to read the calls of one answer.

    Attributes:
        tools: The tools that it may call, in OpenAI's function format.
    """

    format: ToolFormat
    tools: tuple[Tool, ...]
    names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        names = frozenset(tool["function"]["name"] for tool in self.tools)
        object.__setattr__(self, "names", names)


class CallReader(ABC):
    """Reads the text after the start tag of a call.

    Attributes:
        is_over: Whether the calls have ended; ``plain`` and then ``rest`` follow them.
        plain: Text that looked like a call and is none, including its tags.
        rest: Text after the calls, not read yet.
    """

    is_over = False
    plain = rest = ""

    @abstractmethod
    def feed(self, text: str) -> list[CallDelta]:
        """Feed more text and return the deltas that are certain now."""

    @abstractmethod
    def flush(self, *, cut: bool) -> list[CallDelta]:
        """Return the last deltas at the end of the output; the reader is over then.

        Args:
            cut: Whether the output was cut short, so that a call may be incomplete.
        """


class WholeReader(CallReader):
    """``CallReader`` that buffers the text up to the end tag, then calls the family's parser."""

    def __init__(self, rules: CallRules, start: str) -> None:
        self._rules = rules
        self._start = start
        inner_tags = rules.format.inner_tags
        self._lacks_start_tag = inner_tags is not None and start == inner_tags[0]
        self._end = inner_tags[1] if self._lacks_start_tag and inner_tags else rules.format.end
        self._buffer = ""
        #: Whether the call is read, so that only an end tag may follow.
        self._is_read = False
        #: Offset from which on the next end tag may begin.
        self._from = 0

    def feed(self, text: str) -> list[CallDelta]:
        """Feed more text and return the deltas that are certain now."""
        self._buffer += text
        if self._is_read:
            self._skip_end_tag()
            return []
        while self._end and (at := self._buffer.find(self._end, self._from)) >= 0:
            after = at + len(self._end)
            if not self._is_inside_argument(self._buffer[:at]):
                return self._leave(self._buffer[:at], self._buffer[:after], self._buffer[after:])
            self._from = after
        self._from = max(self._from, len(self._buffer) - len(self._end))
        return []

    def flush(self, *, cut: bool) -> list[CallDelta]:
        """Read calls without an end tag, unless the output was cut short."""
        if not self._is_read and not cut:
            deltas = self._leave(self._buffer, self._buffer, "")
        else:
            deltas, self.plain = [], "" if self._is_read else self._start + self._buffer
        self.is_over = True
        return deltas

    def _leave(self, body: str, whole: str, rest: str) -> list[CallDelta]:
        self.is_over, self.rest = True, rest
        # The family's parser expects the text that the model usually writes between the tags.
        inside = self._start + whole if self._lacks_start_tag else body
        deltas = _parse(inside, self._rules)
        if deltas is None:
            self.plain = self._start + whole
            return []
        if self._lacks_start_tag:
            # The model omitted the start tag, and may still write the end tag.
            self.is_over, self.rest = False, ""
            self._is_read, self._buffer = True, rest
            self._skip_end_tag()
        return deltas

    def _skip_end_tag(self) -> None:
        text, end = self._buffer.lstrip(), self._rules.format.end
        if text.startswith(end) or not end.startswith(text):
            self.is_over, self.rest = True, text.removeprefix(end)

    def _is_inside_argument(self, text: str) -> bool:
        syntax = self._rules.format.syntax
        if syntax is not None and syntax.quote:
            return text.count(syntax.quote) % 2 == 1
        if syntax is not None and syntax.is_quoted:
            return is_inside_string(text)
        tags = self._rules.format.argument_tags
        return tags is not None and text.rfind(tags[0]) > text.rfind(tags[1])


def _parse(text: str, rules: CallRules) -> list[CallDelta] | None:
    parse = rules.format.parse
    assert parse is not None, "JSON has its own reader"
    try:
        found = parse(text, rules.tools)
        calls = found if isinstance(found, list) else [found]
        deltas: list[CallDelta] = []
        for call in calls:
            deltas += _deltas(call["name"], call["arguments"], rules)
    except Exception:  # noqa: BLE001 - a foreign parser may raise anything
        return None
    return deltas or None


def _deltas(name: object, arguments: object, rules: CallRules) -> list[CallDelta]:
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise TypeError("not a call")
    if name not in rules.names and set(arguments) <= {"raw"}:
        # Some parsers return this for any text.
        raise ValueError("not a call of a tool")
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return [CallOpened(name), CallInput(text), CallClosed()]
