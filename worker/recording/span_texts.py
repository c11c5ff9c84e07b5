"""Prompt and answer of an attempt as attributes of its span, for operators who allow texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from domain.chat.generation import Outcome
from domain.chat.request import ChatRequest, Message
from domain.usecases.jobs.attempts import AttemptRun
from ops.tracing.span import AttributeValue

#: Characters of one attribute. Receivers refuse requests that are too long.
TEXT_CHARS_MAX: Final = 65_536
#: Characters of the text of one message.
MESSAGE_CHARS_MAX: Final = 16_384
_INPUT: Final = "gen_ai.input.messages"
_OUTPUT: Final = "gen_ai.output.messages"


def texts_of(run: AttemptRun) -> Mapping[str, AttributeValue]:
    """Return the attributes; the oldest messages of a long prompt are left out."""
    kept: list[str] = []
    chars = 0
    given = list(_input(run.request))
    for message in reversed(given):
        text = _json(message)
        chars += len(text) + 1
        if chars > TEXT_CHARS_MAX:
            break
        kept.append(text)
    attributes: dict[str, AttributeValue] = {_INPUT: f"[{','.join(reversed(kept))}]"}
    if len(kept) < len(given):
        attributes["semantic.messages_left_out"] = len(given) - len(kept)
    attributes[_OUTPUT] = _json([_output(run.outcome)])
    return attributes


def _input(request: ChatRequest) -> Iterator[dict[str, Any]]:
    if request.raw is not None:
        return  # it may consist of token ids
    for message in request.messages:
        yield {"role": message.role, "parts": list(_parts(message))}


def _parts(message: Message) -> Iterator[dict[str, Any]]:
    if message.tool_call_id is not None:
        yield {
            "type": "tool_call_response",
            "id": message.tool_call_id,
            "response": _cut(message.content),
        }
        return
    if message.reasoning:
        yield {"type": "reasoning", "content": _cut(message.reasoning)}
    if message.content:
        yield {"type": "text", "content": _cut(message.content)}
    for call in message.tool_calls:
        arguments = _cut(_json(call.arguments))
        yield {"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments}


def _output(outcome: Outcome) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if outcome.thinking:
        parts.append({"type": "reasoning", "content": _cut(outcome.thinking)})
    if outcome.text:
        parts.append({"type": "text", "content": _cut(outcome.text)})
    for call in outcome.calls:
        arguments = _cut(call.arguments)
        one = {"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments}
        parts.append(one)
    return {"role": "assistant", "parts": parts, "finish_reason": outcome.stop_reason.value}


def _cut(text: str) -> str:
    # A lone surrogate cannot be sent.
    sendable = text.encode("utf-8", "replace").decode()
    return sendable if len(sendable) <= MESSAGE_CHARS_MAX else sendable[:MESSAGE_CHARS_MAX] + "…"


def _json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
