"""The tools of OpenAI's Responses: as the model is shown them, and as clients know them.

Models call functions by name. Functions, custom tools, those of a namespace and the client's own
search for tools are functions to them; a call is told to the client in the words of its own type.
Tools that run on the vendor's servers are left out.
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
from api.protocols.shared.tool_choice import Mode, choice_of
from api.schemas.responses import ResponseNamedTool, ResponseTool, ResponseToolChoice
from domain.chat.request import ToolChoice, canonical_json
from domain.errors import InvalidRequest

Kind = Literal["function", "custom", "tool_search"]

#: Writing one out takes up to a tenth of a second.
GRAMMARS_MAX: Final = 32
_SEARCH: Final = "tool_search"
_MODES: Final[Mapping[str, Mode]] = {"none": "none", "required": "any"}
_NO_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}


def model_tool_name(namespace: str | None, name: str) -> str:
    """Return what the model calls a tool."""
    return f"{namespace}__{name}" if namespace else name


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """A tool that may be called.

    Attributes:
        kind: What the client is told of a call.
        name: What the client calls it.
        namespace: Where it belongs, "" for nowhere.
        function: How the model sees it.
        held: The schema that its arguments are held to, where it is narrower than the one shown.
        is_strict: Whether its schema must be kept, or the request refused.
    """

    kind: Kind
    name: str
    namespace: str
    function: Mapping[str, Any]
    held: Mapping[str, Any] | None = None
    is_strict: bool = False

    @property
    def spelling(self) -> str:
        """What the model calls it."""
        return model_tool_name(self.namespace, self.name)


@dataclass(slots=True)
class ResponseTools:
    """The tools of a request, each name once.

    Attributes:
        loaded: Described at the beginning of the prompt.
        found: Described where a search has found them.
    """

    loaded: dict[str, OfferedTool] = field(default_factory=dict)
    found: dict[str, OfferedTool] = field(default_factory=dict)

    @property
    def offers(self) -> Mapping[str, OfferedTool]:
        """All of them by the model's names."""
        return self.loaded | self.found

    @property
    def narrowed(self) -> Mapping[str, Mapping[str, Any]]:
        """What arguments are held to beyond what the model is shown."""
        return {name: one.held for name, one in self.offers.items() if one.held is not None}

    @property
    def strict(self) -> tuple[str, ...]:
        """Those whose schema must be kept, or the request refused, by the model's names."""
        return tuple(name for name, one in self.offers.items() if one.is_strict)

    @property
    def kinds(self) -> Mapping[str, Mapping[str, str]]:
        """What is kept for telling of calls: whatever is no function of its own name."""
        return {
            name: {"kind": one.kind, "name": one.name, "namespace": one.namespace}
            for name, one in self.offers.items()
            if one.kind != "function" or one.namespace
        }


def toolbox_of(
    tools: Sequence[ResponseTool] | None, found: Iterable[Mapping[str, Any]] = ()
) -> ResponseTools:
    """Return the tools of a request.

    Args:
        tools: As they came. Those that wait for a search of the client's are left out until then.
        found: Definitions that searches have found, in the order of the conversation.

    Raises:
        InvalidRequest: A grammar is none, or they are too many; names the field.
    """
    if sum(map(_grammars, tools or ())) > GRAMMARS_MAX:
        msg = f"no more than {GRAMMARS_MAX} grammars of custom tools are kept"
        raise InvalidRequest(msg, field="tools")
    box = ResponseTools()
    searches = any(_is_search(tool) for tool in tools or ())
    for index, tool in enumerate(tools or ()):
        for offer in _offers(tool, f"tools.{index}", hides_deferred=searches):
            box.loaded.setdefault(offer.spelling, offer)
    for index, definition in enumerate(found):
        tool = ResponseTool.model_validate(definition)
        for offer in _offers(tool, f"input.tools.{index}"):
            if offer.spelling not in box.loaded:
                box.found.setdefault(offer.spelling, offer)
    return box


def found_tools_text(tools: Iterable[Mapping[str, Any]]) -> str:
    """Return what stands for tools that a search has found: all the model needs for calling them.

    It stands where the result stands, so that finding a tool leaves the prompt before as it was.
    """
    functions = [offer.function for offer in toolbox_of(None, tools).found.values()]
    told = (canonical_json(one["function"]).decode(errors="replace") for one in functions)
    return "\n".join(f"<function>{one}</function>" for one in told) or "No tools were found."


def is_callable(tool: ResponseTool) -> bool:
    """Whether anything of a tool can be called; those on the vendor's servers cannot."""
    if tool.type == "namespace":
        return bool(tool.name) and any(_is_own(one) for one in tool.tools or ())
    return _is_search(tool) or _is_own(tool)


def echoed_tool(tool: ResponseTool) -> dict[str, Any]:
    """Return a tool as a response repeats it."""
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
    """Return what the caller says about calling.

    Args:
        spec: ``none``, ``auto``, ``required``, a tool or ``allowed_tools``.
        box: The tools.
        parallel: Whether one answer may make several calls.

    Raises:
        InvalidRequest: A call is demanded that nothing can answer.
    """
    mode: Mode = _MODES.get(spec, "auto") if isinstance(spec, str) else "auto"
    name, allowed = None, None
    if isinstance(spec, ResponseToolChoice):
        if spec.type == "allowed_tools":
            mode = _MODES.get(spec.mode or "", "auto")
            chosen = [_spelling(one, box) for one in spec.tools or ()]
            allowed = tuple(dict.fromkeys(one for one in chosen if one is not None))
        elif (found := _spelling(spec, box)) is not None:
            mode, name = "tool", found
        elif spec.type in ("function", "custom"):
            msg = f"there is no {spec.type} tool {spec.name!r} among the tools"
            raise InvalidRequest(msg, field="tool_choice")
    functions = [offer.function for offer in box.offers.values()]
    return choice_of(
        mode, name, parallel=parallel, tools=functions, allowed=allowed, field="tool_choice"
    )


def echoed_choice(spec: str | ResponseToolChoice | None) -> Any:  # noqa: ANN401 - any JSON
    """Return a choice as a response repeats it; what has no effect is ``auto``."""
    if isinstance(spec, str):
        return spec if spec in _MODES else "auto"
    if spec is None:
        return "auto"
    if spec.type == "allowed_tools":
        tools = [one.model_dump(exclude_none=True) for one in spec.tools or ()]
        return {"type": spec.type, "mode": spec.mode or "auto", "tools": tools}
    is_own = spec.type in ("function", "custom") and spec.name is not None
    return {"type": spec.type, "name": spec.name} if is_own else "auto"


def _offers(
    tool: ResponseTool, where: str, *, hides_deferred: bool = False
) -> Iterator[OfferedTool]:
    """Yield what of a tool can be called."""
    if tool.type == "namespace" and tool.name:
        for index, member in enumerate(tool.tools or ()):
            if _is_own(member):
                inner = _offer(member, f"{where}.tools.{index}", namespace=tool.name)
                if inner is not None and not (hides_deferred and member.defer_loading):
                    yield inner
        return
    offer = _offer(tool, where)
    if offer is not None and not (hides_deferred and tool.defer_loading):
        yield offer


def _offer(tool: ResponseTool, where: str, *, namespace: str = "") -> OfferedTool | None:
    if _is_search(tool):
        function = _function(_SEARCH, tool)
        return OfferedTool(kind="tool_search", name=_SEARCH, namespace="", function=function)
    if tool.name is None or not _is_own(tool):
        return None
    name = model_tool_name(namespace, tool.name)
    if tool.type == "function":
        function = _function(name, tool)
        return OfferedTool(
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
    return OfferedTool(
        kind="custom",
        name=tool.name,
        namespace=namespace,
        function=custom_function(name, tool.description or "", grammar),
        held=grammar_arguments(grammar, f"{where}.format.definition") if grammar else None,
    )


def _function(name: str, tool: ResponseTool) -> Mapping[str, Any]:
    function = {
        "name": name,
        "description": tool.description or "",
        "parameters": tool.parameters or _NO_ARGUMENTS,
    }
    return {"type": "function", "function": function}


def _grammars(tool: ResponseTool) -> int:
    """Return how many grammars a tool brings, each of which takes work."""
    own = tool.format is not None and tool.format.type == "grammar"
    return own + sum(map(_grammars, tool.tools or ()))


def _is_own(tool: ResponseTool) -> bool:
    """Whether a tool is the client's own, under a name."""
    return tool.type in ("function", "custom") and bool(tool.name)


def _is_search(tool: ResponseTool) -> bool:
    return tool.type == _SEARCH and tool.execution == "client"


def _spelling(spec: ResponseNamedTool, box: ResponseTools) -> str | None:
    """Return the model's name of a tool that a choice names, ``None`` if it is not offered."""
    if spec.type == _SEARCH:
        return _SEARCH if _SEARCH in box.offers else None
    return next(
        (
            spelling
            for spelling, offer in box.offers.items()
            if offer.kind == spec.type and spec.name in (offer.name, spelling)
        ),
        None,
    )
