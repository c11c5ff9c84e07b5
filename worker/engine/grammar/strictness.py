"""Refuse tools whose caller would rather have an error than arguments that may miss the schema."""

from __future__ import annotations

from collections.abc import Callable

from domain.chat.generation import PreparedPrompt
from domain.errors import InvalidRequest
from worker.engine.output.tool_calls.reader import Tool


def require_exact_schemas(prompt: PreparedPrompt, why_wider: Callable[[Tool], str | None]) -> None:
    """Refuse a prompt whose caller would rather know what of a tool's schema cannot be kept.

    Raises:
        InvalidRequest: Naming the tool and the keyword.
    """
    for tool in prompt.tools:
        name = tool["function"]["name"]
        if name in prompt.strict_tools and (why := why_wider(tool)) is not None:
            msg = f"the tool {name} is strict, and its schema cannot be kept: {why}"
            raise InvalidRequest(msg, field="tools")
