"""Tools of OpenAI Responses: as the model sees them and as clients name them.

Models call functions by name. A function, a custom tool, a tool of a namespace and the client's
tool search each become a function; an item in the type of the tool reports the call. Tools that
run on the vendor's servers are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from api.protocols.openai_responses.custom_tools import (
    checked_grammar,
    custom_function,
    grammar_arguments,
)
from api.protocols.shared.function_tools import function_text, function_tool
from api.protocols.shared.tool_choice import Mode, choice_of
from api.schemas.responses import ResponseNamedTool, ResponseTool, ResponseToolChoice
from domain.chat.request import ToolChoice
from domain.errors import InvalidRequest

Kind = Literal["function", "custom", "tool_search"]

#: Most grammars of one request.
GRAMMARS_MAX: Final = 32
_SEARCH: Final = "tool_search"
_MODES: Final[Mapping[str, Mode]] = {"none": "none", "required": "any"}


def model_tool_name(namespace: str | None, name: str) -> str:
    """Return the name by which the model calls a tool."""
    return f"{namespace}__{name}" if namespace else name


@dataclass(frozen=True, slots=True, kw_only=True)
class CallableTool:
    """A tool that the model can call.

    Attributes:
        kind: Type of the items that report its calls.
        name: The client's name of the tool.
        namespace: The namespace of the tool, "" for none.
        function: The tool in function format, as the prompt shows it.
        narrowed: Schema that constrains the arguments, if it is narrower than the shown one.
        is_strict: Whether the service must enforce the schema.
    """

    kind: Kind
    name: str
    namespace: str
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
    return _is_search(tool) or _is_own(tool)


def echoed_tool(tool: ResponseTool) -> dict[str, Any]:
    """Return a tool as the response object repeats it."""
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
        box: The tools of the request.
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
        elif spec.type in ("function", "custom"):
            msg = f"there is no {spec.type} tool {spec.name!r} among the tools"
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
    is_own = spec.type in ("function", "custom") and spec.name is not None
    return {"type": spec.type, "name": spec.name} if is_own else "auto"


def _callable_tools(
    tool: ResponseTool, where: str, *, hides_deferred: bool = False
) -> Iterator[CallableTool]:
    """Yield the callable tools of a tool: itself, or the members of a namespace."""
    if tool.type == "namespace" and tool.name:
        for index, member in enumerate(tool.tools or ()):
            if _is_own(member):
                inner = _callable_tool(member, f"{where}.tools.{index}", namespace=tool.name)
                if inner is not None and not (hides_deferred and member.defer_loading):
                    yield inner
        return
    callable_tool = _callable_tool(tool, where)
    if callable_tool is not None and not (hides_deferred and tool.defer_loading):
        yield callable_tool


def _callable_tool(tool: ResponseTool, where: str, *, namespace: str = "") -> CallableTool | None:
    if _is_search(tool):
        function = function_tool(_SEARCH, tool.description, tool.parameters)
        return CallableTool(kind="tool_search", name=_SEARCH, namespace="", function=function)
    if tool.name is None or not _is_own(tool):
        return None
    name = model_tool_name(namespace, tool.name)
    if tool.type == "function":
        function = function_tool(name, tool.description, tool.parameters)
        return CallableTool(
            kind="function",
            name=tool.name,
            namespace=namespace,
            function=function,
            is_strict=bool(tool.strict),
        )
    grammar = None
    if tool.format is not None and tool.format.type == "grammar":
        chosen = tool.format
        grammar = checked_grammar(chosen.syntax, chosen.definition, f"{where}.format")
    return CallableTool(
        kind="custom",
        name=tool.name,
        namespace=namespace,
        function=custom_function(name, tool.description or "", grammar),
        narrowed=grammar_arguments(grammar) if grammar else None,
    )


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
    return next(
        (
            name
            for name, callable_tool in box.tools_by_name.items()
            if callable_tool.kind == spec.type and spec.name in (callable_tool.name, name)
        ),
        None,
    )
