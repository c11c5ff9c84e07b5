"""Anthropic's tools: which stand in the prompt, which only where a message refers to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from api.protocols.shared.tool_choice import Mode, choice_of
from api.schemas.anthropic import AnthropicTool, AnthropicToolChoice, OutputConfig, OutputFormat
from domain.chat.request import ToolChoice, canonical_json

_MODES: Final[Mapping[str, Mode]] = {"none": "none", "any": "any", "tool": "tool"}


class AnthropicTools:
    """The caller's tools in function format.

    Left out are tools that run on the vendor's servers: they have a type and no schema.

    Args:
        tools: As they came.

    Attributes:
        loaded: Tools that the template describes at the beginning of the prompt.
        strict: Names of those whose schema must be kept, or the request refused.
    """

    def __init__(self, tools: Sequence[AnthropicTool] | None) -> None:
        own = [tool for tool in tools or () if tool.name and tool.type in (None, "custom")]
        self.loaded = tuple(_function(tool) for tool in own if not tool.defer_loading)
        self._deferred = {tool.name or "": _function(tool) for tool in own if tool.defer_loading}
        self.strict = tuple(tool.name or "" for tool in own if tool.strict)
        self._referred: dict[str, Mapping[str, Any]] = {}

    @property
    def referred(self) -> tuple[Mapping[str, Any], ...]:
        """Deferred tools that some message has described, in order of their first mention."""
        return tuple(self._referred.values())

    def description(self, name: object) -> str:
        """Return what stands for a reference to a tool: all the model needs for calling it.

        It stands where the reference stands, and not among the tools, so that finding a tool
        leaves the beginning of the prompt as it was.
        """
        tool = self._deferred.get(name) if isinstance(name, str) else None
        if tool is None:
            return f"[tool {name}]"
        assert isinstance(name, str), "only names have tools"  # noqa: S101 - for the type checker
        self._referred[name] = tool
        text = canonical_json(tool["function"]).decode(errors="replace")
        return f"<function>{text}</function>"


def tool_choice_of(spec: AnthropicToolChoice | None, toolbox: AnthropicTools) -> ToolChoice:
    """Return what the caller says about calling.

    Raises:
        InvalidRequest: A call is demanded that nothing can answer.
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
    """Return the schema that the answer is to match, if the caller gave one.

    Args:
        config: Where it stands today.
        legacy: Where betas had it.
    """
    wanted = (config.format if config is not None else None) or legacy
    if wanted is None or wanted.type != "json_schema":
        return None
    return wanted.json_schema or {}


def _function(tool: AnthropicTool) -> Mapping[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description or "",
            "parameters": tool.input_schema or {"type": "object", "properties": {}},
        },
    }
