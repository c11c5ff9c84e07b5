"""Anthropic tools: those at the beginning of the prompt and deferred ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from api.protocols.shared.function_tools import function_text, function_tool
from api.protocols.shared.tool_choice import Mode, choice_of
from api.schemas.anthropic import AnthropicTool, AnthropicToolChoice, OutputConfig, OutputFormat
from domain.chat.request import ToolChoice

_MODES: Final[Mapping[str, Mode]] = {"none": "none", "any": "any", "tool": "tool"}


class AnthropicTools:
    """The caller's tools in function format, without tools that run on the vendor's servers.

    Args:
        tools: Tools of the request.

    Attributes:
        loaded: Tools that the template describes at the beginning of the prompt.
        strict: Names of the tools whose schema the service must enforce.
    """

    def __init__(self, tools: Sequence[AnthropicTool] | None) -> None:
        own = [tool for tool in tools or () if tool.name and tool.type in (None, "custom")]
        self.loaded = tuple(_function(tool) for tool in own if not tool.defer_loading)
        self._deferred = {tool.name or "": _function(tool) for tool in own if tool.defer_loading}
        self.strict = tuple(tool.name or "" for tool in own if tool.strict)
        self._referred: dict[str, Mapping[str, Any]] = {}

    @property
    def referred(self) -> tuple[Mapping[str, Any], ...]:
        """Deferred tools that a message refers to, in order of their first mention."""
        return tuple(self._referred.values())

    def description(self, name: object) -> str:
        """Return the text that replaces a reference to a deferred tool; see ``function_text``."""
        tool = self._deferred.get(name) if isinstance(name, str) else None
        if tool is None:
            return f"[tool {name}]"
        assert isinstance(name, str), "only names have tools"  # noqa: S101 - for the type checker
        self._referred[name] = tool
        return function_text(tool)


def tool_choice_of(spec: AnthropicToolChoice | None, toolbox: AnthropicTools) -> ToolChoice:
    """Return the tool choice of a request.

    Raises:
        InvalidRequest: The request demands a call that no tool can answer.
    """
    if spec is None:
        return ToolChoice()
    return choice_of(
        _MODES.get(spec.type, "auto"),
        spec.name,
        parallel=not spec.disable_parallel_tool_use,
        tools=(*toolbox.loaded, *toolbox.referred),
        field="tool_choice.name" if spec.type == "tool" else "tool_choice",
    )


def answer_schema_of(
    config: OutputConfig | None, legacy: OutputFormat | None
) -> Mapping[str, Any] | None:
    """Return the schema of the answer, if the request has one.

    Args:
        config: Its current place.
        legacy: Its place in beta versions.
    """
    wanted = (config.format if config is not None else None) or legacy
    if wanted is None or wanted.type != "json_schema":
        return None
    return wanted.json_schema or {}


def _function(tool: AnthropicTool) -> Mapping[str, Any]:
    return function_tool(tool.name or "", tool.description, tool.input_schema)
