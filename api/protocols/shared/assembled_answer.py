"""The stored answer of a completed job as the blocks that its stream makes."""

from __future__ import annotations

from api.protocols.shared.answer import AssembledAnswer, Block
from domain.chat.items import Finished
from domain.chat.stored_answer import StoredAnswer
from domain.job.view import JobView
from domain.values import StopReason


def assembled_answer(view: JobView, stored: StoredAnswer) -> AssembledAnswer:
    """Return the answer of a completed job.

    Args:
        view: The row of the job.
        stored: Its stored answer.
    """
    answer = AssembledAnswer()
    if stored.thinking:
        answer.blocks.append(Block(kind="thinking", text=stored.thinking))
    if stored.text:
        answer.blocks.append(Block(kind="text", text=stored.text))
        answer.blocks[-1].logprobs += stored.logprobs or ()
    for call in stored.calls:
        block = Block(
            kind="tool",
            text=call.arguments,
            id=call.id,
            name=call.name,
            is_whole=call.is_complete,
        )
        answer.blocks.append(block)
    answer.ending = Finished(
        stop_reason=StopReason(view.stop_reason or StopReason.END_TURN),
        usage=view.usage,
        stop_sequence=view.stop_sequence,
    )
    return answer
