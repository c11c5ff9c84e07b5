"""The stored output of a completed job as an assembled answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from api.protocols.shared.answer import AssembledAnswer, Block
from domain.chat.items import Finished
from domain.chat.logprobs import from_json
from domain.job.view import JobView
from domain.values import StopReason


def stored_answer(view: JobView, output: Mapping[str, Any]) -> AssembledAnswer:
    """Return the answer of a completed job.

    Args:
        view: The row of the job.
        output: Its stored output.
    """
    answer = AssembledAnswer()
    for kind in ("thinking", "text"):
        if output[kind]:
            answer.blocks.append(Block(kind=kind, text=output[kind]))
            if kind == "text":
                answer.blocks[-1].logprobs += from_json(output.get("logprobs", ()))
    for call in output.get("tool_calls", ()):
        block = Block(
            kind="tool",
            text=call["arguments"],
            id=call["id"],
            name=call["name"],
            is_whole=call.get("is_complete", True),
        )
        answer.blocks.append(block)
    answer.ending = Finished(
        stop_reason=StopReason(view.stop_reason or StopReason.END_TURN),
        usage=view.usage,
        stop_sequence=view.stop_sequence,
    )
    return answer
