"""The items that a job emitted, and its terminal item published again where it was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from domain.chat.items import Failed, Finished, StreamItem, ids_of, logprobs_of
from domain.chat.logprobs import TokenLogprob
from domain.chat.stored_answer import ReaderPosition, StoredAnswer
from domain.errors import TEXT_LOST
from domain.job.ports import ItemBacklog, ItemSink
from domain.job.state import Job
from domain.log.ports import PayloadStore


@dataclass(frozen=True, slots=True, kw_only=True)
class EmittedPrefix:
    """The items that earlier attempts of the present epoch emitted.

    Attributes:
        ended: Whether the last of them is terminal.
        logprobs: Their log-probabilities, by index of the token.
        published: How many of the tokens they have, where a fork took over others; else all.
    """

    next_item: int = 0
    token_ids: tuple[int, ...] = ()
    ended: bool = False
    logprobs: Mapping[int, TokenLogprob] = field(default_factory=dict)
    published: int | None = None


def read_emitted(job: Job, backlog: ItemBacklog) -> EmittedPrefix:
    """Return the stored items of the present epoch of a job, summed up.

    Raises:
        QueueUnavailable: The broker cannot be reached.
    """
    return _sum(_read(job, backlog))


def with_inherited(job: Job, emitted: EmittedPrefix, payloads: PayloadStore) -> EmittedPrefix:
    """Return what a fork has emitted, with the tokens that it takes over from its parent.

    Raises:
        PayloadMissing: The answer of the parent was erased.
        PayloadDamaged: It is not as it was written.
    """
    asked = job.submitted
    if asked.parent_output is None or len(emitted.token_ids) >= asked.parent_tokens:
        return emitted
    answer = StoredAnswer.from_bytes(payloads.get(asked.parent_output))
    return EmittedPrefix(
        next_item=emitted.next_item,
        token_ids=(answer.token_ids or ())[: asked.parent_tokens],
        logprobs={value.index: value for value in answer.logprobs or ()},
        published=len(emitted.token_ids),
    )


def republish_end(
    job: Job, *, backlog: ItemBacklog, sink: ItemSink, payloads: PayloadStore
) -> None:
    """Publish the terminal item of an ended job, unless it is there.

    It is not there if no attempt ended the job, or if a crash came between the last event and that
    item.

    If earlier items are lost too, nothing is published: readers would take the stored items and
    the end for the complete answer. They find the rest in the log.

    Raises:
        QueueUnavailable: The broker cannot be reached.
        LogUnavailable: The answer cannot be read.
    """
    items = _read(job, backlog)
    emitted = _sum(items)
    if emitted.ended or not _is_whole(job, items[: emitted.next_item], payloads):
        return
    sink.publish([(job.id, terminal_item(job, emitted.next_item))])


def terminal_item(job: Job, n: int) -> StreamItem:
    """Return the terminal item of an ended job that no attempt published, with number ``n``.

    It carries the number of the next attempt: items of an attempt that started meanwhile are
    refused after it.
    """
    return StreamItem(n=n, attempt=job.attempt + 1, body=ending_of(job), epoch=job.epoch)


def ending_of(job: Job) -> Finished | Failed:
    """Return the body of the terminal item of an ended job."""
    assert job.ending is not None
    return job.ending


def _read(job: Job, backlog: ItemBacklog) -> tuple[StreamItem, ...]:
    items = backlog.read(job.id)
    # A broker that lost its latest writes may have items of an earlier epoch only.
    return items if items and items[0].epoch == job.epoch else ()


def _sum(items: Sequence[StreamItem]) -> EmittedPrefix:
    if not items or items[0].n != 0:
        # The first items are lost: the attempt emits all items again, under the same numbers,
        # since items are a function of request and seed.
        return EmittedPrefix()
    return EmittedPrefix(
        next_item=len(items),
        token_ids=tuple(token for item in items for token in ids_of(item.body)),
        ended=items[-1].is_terminal,
        logprobs={value.index: value for item in items for value in logprobs_of(item.body)},
    )


def _is_whole(job: Job, items: Sequence[StreamItem], payloads: PayloadStore) -> bool:
    """Whether the items hold the complete stored answer.

    The comparison is by text: tokens of a stop text and of tags are in no item.
    """
    if job.output is None:
        return True
    try:
        answer = StoredAnswer.from_bytes(payloads.get(job.output))
    except TEXT_LOST:
        return False  # erased or damaged
    return not any(answer.lacking(ReaderPosition.after(items, epoch=job.epoch)))
