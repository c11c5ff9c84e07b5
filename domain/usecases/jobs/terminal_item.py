"""What a job has said, and its end said again where that went missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from domain.chat.items import (
    Failed,
    Finished,
    StreamItem,
    Text,
    Thinking,
    ToolEnd,
    ToolInput,
    ToolStart,
    ids_of,
    logprobs_of,
)
from domain.chat.logprobs import TokenLogprob
from domain.chat.stored_answer import StoredAnswer
from domain.errors import PayloadMissing
from domain.job.ports import ItemBacklog, ItemSink
from domain.job.state import Job
from domain.log.ports import PayloadStore
from domain.values import JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class EmittedPrefix:
    """What earlier attempts emitted.

    Attributes:
        next_item: Number of the item after it.
        token_ids: What it was made of.
        ended: Whether nothing may follow.
        logprobs: What they told of the likelihood of tokens, by place.
    """

    next_item: int = 0
    token_ids: tuple[int, ...] = ()
    ended: bool = False
    logprobs: Mapping[int, TokenLogprob] = field(default_factory=dict)


def read_said(job_id: JobId, backlog: ItemBacklog) -> EmittedPrefix:
    """Return what is left of a job's items.

    Raises:
        QueueUnavailable: The broker cannot be reached.
    """
    return _sum(backlog.read(job_id))


def repeat_last_word(
    job: Job, *, backlog: ItemBacklog, sink: ItemSink, payloads: PayloadStore
) -> None:
    """Say the end again if a crash came between the last event and the last item.

    Not where items before it were lost as well: an end behind a hole would pass for the whole
    answer. Readers then find the rest in the log.

    Raises:
        QueueUnavailable: The broker cannot be reached.
        LogUnavailable: The answer cannot be read.
    """
    items = backlog.read(job.id)
    said = _sum(items)
    if said.ended or not _is_whole(job, items[: said.next_item], payloads):
        return
    last = StreamItem(n=said.next_item, attempt=job.attempt + 1, body=ending_of(job))
    sink.publish([(job.id, last)])


def ending_of(job: Job) -> Finished | Failed:
    """Return the last item of a job that has ended."""
    assert job.ending is not None
    return job.ending


def _sum(items: Sequence[StreamItem]) -> EmittedPrefix:
    if not items or items[0].n != 0:
        # Nothing is left, or its beginning is lost: the whole answer is said again, under the same
        # numbers since items are a function of request and seed.
        return EmittedPrefix()
    return EmittedPrefix(
        next_item=len(items),
        token_ids=tuple(token for item in items for token in ids_of(item.body)),
        ended=items[-1].is_terminal,
        logprobs={value.index: value for item in items for value in logprobs_of(item.body)},
    )


def _is_whole(job: Job, items: Iterable[StreamItem], payloads: PayloadStore) -> bool:
    """Whether items say all of what the log keeps as the answer.

    Tokens are no measure: those of a stop text and of tags stand in no item.
    """
    if job.output is None:
        return True
    try:
        answer = StoredAnswer.from_bytes(payloads.get(job.output))
    except PayloadMissing:
        return False  # erased
    text, thinking, arguments, ends = "", "", list[str](), 0
    for item in items:
        match item.body:
            case Text(text=piece):
                text += piece
            case Thinking(text=piece):
                thinking += piece
            case ToolStart():
                arguments.append("")
            case ToolInput(fragment=piece):
                arguments[-1] += piece
            case ToolEnd():
                ends += 1
            case _:
                pass  # the beginning and the end are no part of the answer
    return (text, thinking, arguments, ends) == (
        answer.text,
        answer.thinking,
        [call.arguments for call in answer.calls],
        sum(call.is_complete for call in answer.calls),
    )
