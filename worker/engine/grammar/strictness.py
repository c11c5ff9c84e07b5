"""Refuse strict requests whose schemas no grammar can enforce."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from domain.chat.generation import PreparedPrompt
from domain.errors import InvalidRequest
from worker.engine.grammar.answer_grammar import GrammarWriter
from worker.engine.output.tool_calls.reader import Tool

_log = structlog.get_logger(__name__)


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


def answer_rule(writer: GrammarWriter, prompt: PreparedPrompt) -> str:
    """Return the rule of the answer's schema; it may allow more if the request is not strict.

    Raises:
        InvalidRequest: The request is strict and the schema cannot be enforced exactly.
    """
    assert prompt.answer_schema is not None, "the answer has no schema"
    rule, reason = writer.schema_rule(prompt.answer_schema)
    if reason is not None:
        if prompt.is_strict:
            msg = f"the schema of the answer cannot be kept: {reason}"
            raise InvalidRequest(msg)
        _log.warning("answer_wider_than_schema")  # the reason quotes the schema
    return rule
