"""Choices of chat completions: as chunks or as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from api.protocols.shared.answer import AssembledAnswer
from api.protocols.shared.completions import Choice, finish_reason
from api.protocols.shared.logprobs import chat_logprobs
from api.schemas.replies import OpenAIMessage
from domain.chat.items import Body, Finished, Text, Thinking, ToolInput, ToolStart
from domain.chat.logprobs import TokenLogprob


class ChatChoiceRenderer:
    """``ChoiceRenderer`` of chat completions.

    Args:
        index: Index of the choice.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._tools = 0

    def open(self) -> list[Choice]:
        """Return the choice with the role."""
        return [self._choice({"role": "assistant", "content": ""})]

    def render(self, body: Body) -> list[Choice]:
        """See ``ChoiceRenderer.render``."""
        match body:
            case Text():
                return [self._choice({"content": body.text}, logprobs=body.logprobs)]
            case Thinking():
                return [self._choice({"reasoning_content": body.text})]
            case ToolStart():
                return [self._choice({"tool_calls": [self._call(body)]})]
            case ToolInput():
                call = {"index": self._tools - 1, "function": {"arguments": body.fragment}}
                return [self._choice({"tool_calls": [call]})]
            case _:
                return []  # the start, progress and the end of a call have no chunk

    def end(self, ending: Finished) -> Choice:
        """Return the choice with the finish reason."""
        return self._choice({}, finish_reason(ending, called=bool(self._tools)))

    def _call(self, body: ToolStart) -> dict[str, Any]:
        self._tools += 1
        return {
            "index": self._tools - 1,
            "id": body.id,
            "type": "function",
            "function": {"name": body.name, "arguments": ""},
        }

    def _choice(
        self,
        delta: Mapping[str, Any],
        reason: str | None = None,
        logprobs: Sequence[TokenLogprob] = (),
    ) -> Choice:
        return {
            "index": self._index,
            "delta": delta,
            "logprobs": chat_logprobs(logprobs),
            "finish_reason": reason,
        }


def chat_choice(index: int, answer: AssembledAnswer) -> Choice:
    """Return the choice of a finished answer.

    Args:
        index: Index of the choice.
        answer: The answer, with a ``Finished`` ending.
    """
    return {
        "index": index,
        "message": _message(answer),
        "logprobs": chat_logprobs(answer.logprobs),
        "finish_reason": finish_reason(answer.finished(), called=bool(answer.tools)),
    }


def _message(answer: AssembledAnswer) -> OpenAIMessage:
    message: OpenAIMessage = {
        "role": "assistant",
        "content": answer.joined("text"),
        "refusal": None,
    }
    reasoning = answer.joined("thinking")
    if reasoning:
        message["reasoning_content"] = reasoning
    if answer.tools:
        message["content"] = message["content"] or None
        message["tool_calls"] = [
            {
                "id": block.id,
                "type": "function",
                "function": {"name": block.name, "arguments": block.text or "{}"},
            }
            for block in answer.tools
        ]
    return message
