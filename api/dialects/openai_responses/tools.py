"""Tools of the Responses API, and the grammars of custom tools."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from api.dialects.openai_responses.bodies import ResponseNamedTool, ResponseTool, ResponseToolChoice
from api.dialects.openai_responses.client_tools import CLIENT_TOOLS, call_members, client_function
from api.dialects.parsing import (
    Mode,
    arguments_of,
    choice_of,
    function_text,
    function_tool,
    model_tool_name,
)
from api.generation import Block
from api.http.bodies import load_json
from domain.chat.request import ToolChoice
from domain.errors import InvalidRequest

#: Name of the argument.
INPUT: Final = "input"
#: Most characters of a grammar.
DEFINITION_CHARS_MAX: Final = 65_536
_SYNTAXES: Final[Mapping[str, str]] = {"lark": "Lark grammar", "regex": "regular expression"}
_BEGINNING: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')
#: Text of a JSON string up to its end or up to an incomplete escape.
_STRING: Final = re.compile(r"(?:[^\"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED: Final[Mapping[str, str]] = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def custom_function(
    name: str, description: str, grammar: tuple[str, str] | None
) -> Mapping[str, Any]:
    """Return a custom tool in function format.

    Args:
        grammar: Syntax and definition of the grammar of the input, if it has one.
    """
    if grammar is not None:
        syntax, definition = grammar
        rule = f"Its input is text that matches this {_SYNTAXES[syntax]}:\n{definition}"
        description = f"{description}\n{rule}" if description else rule
    return function_tool(name, description, _arguments({"type": "string"}))


def grammar_arguments(grammar: tuple[str, str]) -> Mapping[str, Any] | None:
    """Return the schema that constrains the argument to a grammar, ``None`` for a Lark grammar.

    Args:
        grammar: Syntax and definition.
    """
    syntax, definition = grammar
    if syntax != "regex":
        return None
    pattern = re.sub(r"(?<!\\)\$$", "", definition.removeprefix("^"))
    return _arguments({"type": "string", "pattern": f"^(?:{pattern})$"})


def checked_grammar(syntax: str | None, definition: str | None, field: str) -> tuple[str, str]:
    """Return the syntax and the definition of a grammar.

    Raises:
        InvalidRequest: The syntax is unknown, or the definition is empty or too long.
    """
    if syntax is None or syntax not in _SYNTAXES:
        raise InvalidRequest(f"it must be one of {', '.join(_SYNTAXES)}", field=f"{field}.syntax")
    if not definition or len(definition) > DEFINITION_CHARS_MAX:
        msg = f"it must have between 1 and {DEFINITION_CHARS_MAX} characters"
        raise InvalidRequest(msg, field=f"{field}.definition")
    return syntax, definition


class CustomInput:
    """The input of a custom tool call, extracted while the JSON arguments grow.

    A model without constraints may emit other JSON than ``{"input": "…"}``. Such arguments are
    buffered until the end of the call and then read as a whole.
    """

    def __init__(self) -> None:
        self.text = ""
        self._json = ""
        self._position: int | None = None

    def feed(self, fragment: str) -> str:
        """Append JSON; return the new part of the text."""
        self._json += fragment
        if self._position is None:
            beginning = _BEGINNING.match(self._json)
            if beginning is None:
                return ""
            self._position = beginning.end()
        found = _STRING.match(self._json, self._position)
        assert found is not None, "nothing matches as well"  # noqa: S101 - type checker
        text, self._position = _unescaped(found[0]), found.end()
        if _is_half(text[-1:]) and not self._json.startswith('"', self._position):
            text, self._position = text[:-1], self._position - len("\\u0000")
        return self._append(text)

    def close(self) -> str:
        """Return the new part of the text at the end of a complete call."""
        if self._position is not None:
            return ""
        found = (_object(self._json) or {}).get(INPUT)
        return self._append(found if isinstance(found, str) else self._json)

    def _append(self, text: str) -> str:
        # UTF-8 cannot represent an unpaired surrogate.
        new = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        self.text += new
        return new


def custom_input(arguments: str) -> str:
    """Return the input of a call, also of one that was cut off."""
    text = CustomInput()
    text.feed(arguments)
    if is_complete_call(arguments):
        text.close()
    return text.text


def is_complete_call(arguments: str) -> bool:
    """Whether the arguments are a JSON object; those of a call that was cut off are not."""
    return _object(arguments) is not None


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = load_json(text)
    except InvalidRequest:
        return None
    return value if isinstance(value, dict) else None


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


#: Most grammars of one request.
GRAMMARS_MAX: Final = 32
_SEARCH: Final = "tool_search"
#: Other names of types in a choice.
_ALIASES: Final[Mapping[str, str]] = {"computer_use": "computer"}
#: Types of choices that a tool of the request must satisfy.
_CHOSEN: Final = frozenset({"function", "custom", *CLIENT_TOOLS, *_ALIASES})
_MODES: Final[Mapping[str, Mode]] = {"none": "none", "required": "any"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallableTool:
    """A tool that the model can call.

    Attributes:
        kind: Its type, which decides the type of the items that report its calls.
        name: The client's name of the tool.
        namespace: The namespace of the tool, "" for none.
        function: The tool in function format, as the prompt shows it.
        narrowed: Schema that constrains the arguments, if it is narrower than the shown one.
        is_strict: Whether the service must enforce the schema.
    """

    kind: str
    name: str
    namespace: str = ""
    function: Mapping[str, Any]
    narrowed: Mapping[str, Any] | None = None
    is_strict: bool = False

    @property
    def model_name(self) -> str:
        """The name by which the model calls the tool."""
        return model_tool_name(self.namespace, self.name)


@dataclass(slots=True)
class ResponseTools:
    """The tools of a request by the model's names.

    Attributes:
        loaded: Tools that the beginning of the prompt describes.
        found: Tools that the result of a search describes.
    """

    loaded: dict[str, CallableTool] = field(default_factory=dict)
    found: dict[str, CallableTool] = field(default_factory=dict)

    @property
    def tools_by_name(self) -> Mapping[str, CallableTool]:
        """All tools by the model's names."""
        return self.loaded | self.found

    @property
    def narrowed(self) -> Mapping[str, Mapping[str, Any]]:
        """Schemas that constrain arguments and are narrower than the shown ones."""
        return {
            name: one.narrowed
            for name, one in self.tools_by_name.items()
            if one.narrowed is not None
        }

    @property
    def strict(self) -> tuple[str, ...]:
        """Names of the tools whose schema the service must enforce."""
        return tuple(name for name, one in self.tools_by_name.items() if one.is_strict)

    @property
    def kinds(self) -> Mapping[str, Mapping[str, str]]:
        """Stored kinds of the tools that are not functions, or that are in a namespace."""
        return {
            name: {"kind": one.kind, "name": one.name, "namespace": one.namespace}
            for name, one in self.tools_by_name.items()
            if one.kind != "function" or one.namespace
        }


def toolbox_of(
    tools: Sequence[ResponseTool] | None, found: Iterable[Mapping[str, Any]] = ()
) -> ResponseTools:
    """Return the tools of a request.

    Args:
        tools: Tools of the request. With a tool search, deferred tools are left out.
        found: Definitions that searches have found, in the order of the conversation.

    Raises:
        InvalidRequest: A grammar is invalid, or the request has too many grammars.
    """
    if sum(map(_grammars, tools or ())) > GRAMMARS_MAX:
        msg = f"no more than {GRAMMARS_MAX} grammars of custom tools are kept"
        raise InvalidRequest(msg, field="tools")
    box = ResponseTools()
    searches = any(_is_search(tool) for tool in tools or ())
    for index, tool in enumerate(tools or ()):
        for callable_tool in _callable_tools(tool, f"tools.{index}", hides_deferred=searches):
            box.loaded.setdefault(callable_tool.model_name, callable_tool)
    for index, definition in enumerate(found):
        tool = ResponseTool.model_validate(definition)
        for callable_tool in _callable_tools(tool, f"input.tools.{index}"):
            if callable_tool.model_name not in box.loaded:
                box.found.setdefault(callable_tool.model_name, callable_tool)
    return box


def found_tools_text(tools: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of a search result; see ``function_text``."""
    found = toolbox_of(None, tools).found.values()
    return "\n".join(function_text(tool.function) for tool in found) or "No tools were found."


def is_callable(tool: ResponseTool) -> bool:
    """Whether the model can call a tool or a member of it; false for vendor-side tools."""
    if tool.type == "namespace":
        return bool(tool.name) and any(_is_own(one) for one in tool.tools or ())
    return _is_search(tool) or _is_own(tool) or tool.type in CLIENT_TOOLS


def echoed_tool(tool: ResponseTool) -> dict[str, Any]:
    """Return a tool as the response object repeats it."""
    if tool.type in CLIENT_TOOLS:
        return tool.model_dump(exclude_none=True, exclude={"allowed_callers"})
    shown: dict[str, Any] = {"type": tool.type, "name": tool.name, "description": tool.description}
    if tool.type == "function":
        shown |= {"parameters": tool.parameters, "strict": bool(tool.strict)}
    elif tool.type == "namespace":
        members = [echoed_tool(one) for one in tool.tools or () if _is_own(one)]
        shown |= {"description": tool.description or "", "tools": members}
    elif tool.type == "custom":
        chosen = tool.format.model_dump(exclude_none=True) if tool.format else {"type": "text"}
        shown |= {"format": chosen}
    else:
        shown = {"type": tool.type, "execution": "client", "description": tool.description}
        shown |= {"parameters": tool.parameters}
    if tool.defer_loading:
        shown["defer_loading"] = True
    return shown


def tool_choice_of(
    spec: str | ResponseToolChoice | None, box: ResponseTools, *, parallel: bool
) -> ToolChoice:
    """Return the tool choice of a request.

    Args:
        spec: ``none``, ``auto``, ``required``, a tool or ``allowed_tools``.
        parallel: Whether one answer may contain several calls.

    Raises:
        InvalidRequest: The request demands a call that no tool can answer.
    """
    mode: Mode = _MODES.get(spec, "auto") if isinstance(spec, str) else "auto"
    name, allowed = None, None
    if isinstance(spec, ResponseToolChoice):
        if spec.type == "allowed_tools":
            mode = _MODES.get(spec.mode or "", "auto")
            chosen = [_model_name(one, box) for one in spec.tools or ()]
            allowed = tuple(dict.fromkeys(one for one in chosen if one is not None))
        elif (found := _model_name(spec, box)) is not None:
            mode, name = "tool", found
        elif spec.type in _CHOSEN:
            name_of = f" {spec.name!r}" if spec.name else ""
            msg = f"there is no {spec.type} tool{name_of} among the tools"
            raise InvalidRequest(msg, field="tool_choice")
    functions = [callable_tool.function for callable_tool in box.tools_by_name.values()]
    return choice_of(
        mode, name, parallel=parallel, tools=functions, allowed=allowed, field="tool_choice"
    )


def echoed_choice(spec: str | ResponseToolChoice | None) -> Any:  # noqa: ANN401 - any JSON
    """Return a choice as the response object repeats it; one without effect as ``auto``."""
    if isinstance(spec, str):
        return spec if spec in _MODES else "auto"
    if spec is None:
        return "auto"
    if spec.type == "allowed_tools":
        tools = [one.model_dump(exclude_none=True) for one in spec.tools or ()]
        return {"type": spec.type, "mode": spec.mode or "auto", "tools": tools}
    if spec.type in CLIENT_TOOLS or spec.type in _ALIASES:
        return {"type": spec.type}
    is_own = spec.type in _CHOSEN and spec.name is not None
    return {"type": spec.type, "name": spec.name} if is_own else "auto"


def _callable_tools(
    tool: ResponseTool, where: str, *, namespace: str = "", hides_deferred: bool = False
) -> Iterator[CallableTool]:
    """Yield the callable tools of a tool: itself, or the members of a namespace."""
    if tool.type == "namespace" and tool.name:
        for index, member in enumerate(tool.tools or ()):
            if _is_own(member):
                yield from _callable_tools(
                    member,
                    f"{where}.tools.{index}",
                    namespace=tool.name,
                    hides_deferred=hides_deferred,
                )
        return
    callable_tool = _callable_tool(tool, where, namespace=namespace)
    if callable_tool is not None and not (hides_deferred and tool.defer_loading):
        yield callable_tool


def _callable_tool(tool: ResponseTool, where: str, *, namespace: str = "") -> CallableTool | None:
    if _is_search(tool):
        function = function_tool(_SEARCH, tool.description, tool.parameters)
        return CallableTool(kind="tool_search", name=_SEARCH, function=function)
    if tool.type in CLIENT_TOOLS:
        function = client_function(tool)
        return CallableTool(kind=tool.type, name=tool.type, function=function)
    if tool.name is None or not _is_own(tool):
        return None
    name = model_tool_name(namespace, tool.name)
    named = partial(CallableTool, kind=tool.type, name=tool.name, namespace=namespace)
    if tool.type == "function":
        function = function_tool(name, tool.description, tool.parameters)
        return named(function=function, is_strict=bool(tool.strict))
    grammar = None
    if tool.format is not None and tool.format.type == "grammar":
        chosen = tool.format
        grammar = checked_grammar(chosen.syntax, chosen.definition, f"{where}.format")
    function = custom_function(name, tool.description or "", grammar)
    return named(function=function, narrowed=grammar_arguments(grammar) if grammar else None)


def _grammars(tool: ResponseTool) -> int:
    """Return the number of grammars of a tool and its members."""
    own = tool.format is not None and tool.format.type == "grammar"
    return own + sum(map(_grammars, tool.tools or ()))


def _is_own(tool: ResponseTool) -> bool:
    """Whether a tool is a named function or custom tool, which the client runs."""
    return tool.type in ("function", "custom") and bool(tool.name)


def _is_search(tool: ResponseTool) -> bool:
    return tool.type == _SEARCH and tool.execution == "client"


def _model_name(spec: ResponseNamedTool, box: ResponseTools) -> str | None:
    """Return the model's name of the tool in a choice, ``None`` if the request has none such."""
    if spec.type == _SEARCH:
        return _SEARCH if _SEARCH in box.tools_by_name else None
    kind = _ALIASES.get(spec.type, spec.type)
    wanted = kind if kind in CLIENT_TOOLS else spec.name
    return next(
        (
            name
            for name, callable_tool in box.tools_by_name.items()
            if callable_tool.kind == kind and wanted in (callable_tool.name, name)
        ),
        None,
    )


#: ``kind``, ``name`` and ``namespace`` of tools by the model's names.
ToolKinds = Mapping[str, Mapping[str, str]]

#: Prefixes of the ids of items.
_CALL_PREFIXES: Final[Mapping[str, str]] = {
    "function": "fc",
    "custom": "ctc",
    "tool_search": "tsc",
    **{kind: known.prefix for kind, known in CLIENT_TOOLS.items()},
}
_TYPES: Final[Mapping[str, str]] = {
    "function": "function_call",
    "custom": "custom_tool_call",
    "tool_search": "tool_search_call",
    **{kind: known.call for kind, known in CLIENT_TOOLS.items()},
}


def is_late(block: Block, kinds: ToolKinds) -> bool:
    """Whether a call has its first event at its end, since its item has it in parts."""
    return block.name in kinds and kinds[block.name]["kind"] in CLIENT_TOOLS


def call_kind(block: Block, kinds: ToolKinds) -> str:
    """Return the kind of the called tool.

    A call that was cut off, or whose arguments are not those of the vendor's tool, is shown as that
    of a function.
    """
    kind = kinds[block.name]["kind"] if block.name in kinds else "function"
    if kind not in CLIENT_TOOLS:
        return kind
    is_vendors = block.is_whole and call_members(kind, block.text) is not None
    return kind if is_vendors else "function"


def is_complete(block: Block, kinds: ToolKinds) -> bool:
    """Whether the status of a call is ``completed``.

    A client cannot recognise the truncated text of a custom tool, so the status is its only sign.
    """
    is_text = call_kind(block, kinds) == "custom"
    return block.is_whole and (not is_text or is_complete_call(block.text))


def call_prefix(block: Block, kinds: ToolKinds) -> str:
    """Return the prefix of the id of a call's item."""
    return _CALL_PREFIXES[call_kind(block, kinds)]


def call_item(block: Block, kinds: ToolKinds, item_id: str, status: str) -> dict[str, Any]:
    """Return the item of a call."""
    kind = call_kind(block, kinds)
    known = kinds.get(block.name, {"name": block.name, "namespace": ""})
    item: dict[str, Any] = {"id": item_id, "type": _TYPES[kind], "call_id": block.id}
    if kind in CLIENT_TOOLS:
        return item | (call_members(kind, block.text) or {}) | {"status": status}
    if kind == "tool_search":
        item |= {"execution": "client", "arguments": arguments_of(block.text or "{}")}
    elif kind == "custom":
        item |= {"name": known["name"], "input": custom_input(block.text)}
    else:
        arguments = block.text or ("{}" if status == "completed" else "")
        item |= {"name": known["name"], "arguments": arguments}
    if known["namespace"]:
        item["namespace"] = known["namespace"]
    return item | {"status": status}
