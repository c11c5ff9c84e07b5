"""Refuse strict tools whose schema no grammar can enforce."""

from __future__ import annotations

from collections.abc import Callable

from domain.chat.generation import PreparedPrompt
from domain.errors import InvalidRequest
from worker.engine.output.tool_calls.reader import Tool


def require_exact_schemas(prompt: PreparedPrompt, why_wider: Callable[[Tool], str | None]) -> None:
    """Refuse a prompt if a strict tool's schema cannot be enforced exactly.

    Args:
        prompt: The prompt with its tools.
        why_wider: Returns why a tool's grammar allows more than its schema, ``None`` if it is
            exact.

    Raises:
        InvalidRequest: The message names the tool and the unsupported keyword.
    """
    for tool in prompt.tools:
        name = tool["function"]["name"]
        if name in prompt.strict_tools and (reason := why_wider(tool)) is not None:
            msg = f"the tool {name} is strict, and its schema cannot be kept: {reason}"
            raise InvalidRequest(msg, field="tools")
