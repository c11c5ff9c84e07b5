"""The rest of a job that has ended, for a reader: from the broker's store and from the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, fields

from domain.chat.generation import EmittedCall
from domain.chat.items import (
    Body,
    Failed,
    Finished,
    StreamItem,
    Text,
    Thinking,
    ToolEnd,
    ToolInput,
    ToolStart,
)
from domain.chat.stored_answer import StoredAnswer
from domain.errors import EngineFailure, ItemsLost, PayloadMissing, QueueUnavailable
from domain.job.listing import JobViews
from domain.job.ports import ItemBacklog
from domain.job.state import Job
from domain.log.ports import EventLog, PayloadStore
from domain.usecases.recent_ends import CacheDiagnosis, diagnose_cache
from domain.values import Digest, JobId, StopReason


@dataclass(slots=True, kw_only=True)
class ReaderPosition:
    """How much of an answer a reader has; grows by ``add``.

    Attributes:
        n: Number of the last item, -1 before the first.
        epoch: Epoch of that item. With the first item of a later one the counts begin anew.
        is_counted: Whether the counts below are known. They are unknown for a reader that brings a
            number whose items are no longer stored.
        thinking: Characters of reasoning.
        text: Characters of text.
        calls: Tool calls that have begun.
        arguments: Characters of the arguments of the last call.
        is_call_open: Whether the last call has no end yet.
        logprobs: Tokens of the text whose logprobs the reader has.
        is_over: Whether the reader has the terminal item.
    """

    n: int = -1
    epoch: int = 1
    is_counted: bool = True
    thinking: int = 0
    text: int = 0
    calls: int = 0
    arguments: int = 0
    is_call_open: bool = False
    logprobs: int = 0
    is_over: bool = False

    def add(self, item: StreamItem) -> None:
        """Advance by the next item."""
        if item.n is None:
            return
        if item.epoch > self.epoch:
            self.restart(item.epoch)
        self.n = item.n
        match item.body:
            case Text(text=text, logprobs=logprobs):
                self.text += len(text)
                self.logprobs += len(logprobs)
            case Thinking(text=text):
                self.thinking += len(text)
            case ToolStart():
                self.calls, self.arguments, self.is_call_open = self.calls + 1, 0, True
            case ToolInput(fragment=fragment):
                self.arguments += len(fragment)
            case ToolEnd():
                self.is_call_open = False
            case Finished() | Failed():
                self.is_over = True
            case _:
                return  # the first item is no part of the answer

    def restart(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        fresh = ReaderPosition(epoch=epoch)
        for field in fields(self):
            setattr(self, field.name, getattr(fresh, field.name))


def position_after(after: int, epoch: int, stored: Sequence[StreamItem]) -> ReaderPosition:
    """Return the position of a reader whose last item is ``after``.

    Args:
        after: Its number, -1 for a reader that has no item.
        stored: The items from 0 on that the broker has, all of one epoch.
    """
    if after >= len(stored) or stored[0].epoch != epoch:
        return ReaderPosition(n=after, epoch=epoch, is_counted=after < 0)
    position = ReaderPosition(epoch=epoch)
    for item in stored[: after + 1]:
        position.add(item)
    return position


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecords:
    """The recorded jobs and their answers; everything here blocks.

    Attributes:
        payloads: Texts of requests and answers.
        views: The jobs projection.
    """

    log: EventLog
    payloads: PayloadStore
    views: JobViews

    def diagnose(self, job_id: JobId) -> CacheDiagnosis | None:
        """Return what a job found in the cache; ``None`` before its first attempt."""
        return diagnose_cache(job_id, views=self.views, log=self.log, payloads=self.payloads)

    def read_stored(self, view: Job) -> StoredAnswer | None:
        """Return the answer of a job; ``None`` if there is none or it was erased."""
        if view.output is None:
            return None
        try:
            return StoredAnswer.from_bytes(self.payloads.get(Digest(view.output)))
        except PayloadMissing:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBackfill:
    """Reads what a reader lacks of a job that has ended; everything here blocks.

    Attributes:
        backlog: Items that the broker stores.
    """

    records: JobRecords
    backlog: ItemBacklog

    def stored_items(self, job_id: JobId) -> tuple[StreamItem, ...]:
        """Return the items that the broker has of a job; none while it is unreachable."""
        try:
            return self.backlog.read(job_id)
        except QueueUnavailable:
            return ()

    def rest_of(self, job_id: JobId, position: ReaderPosition) -> list[StreamItem] | None:
        """Return the items that a reader lacks of a job that has ended, ``None`` if it goes on.

        Items that the broker stores are returned as they are. Items that only the log provides
        follow without numbers, since their boundaries differ from those that were lost. Every part
        of the answer is returned exactly once. A reader of an earlier epoch gets the present one
        from its beginning.

        Raises:
            LogUnavailable: The log cannot be read.
        """
        view = self.records.views.get(job_id)
        if view is None or not view.status.is_terminal:
            return None
        stored = self.stored_items(job_id)
        if stored and stored[0].epoch != view.epoch:
            stored = ()  # restored by a broker that lost later ones
        known = copy(position)
        if known.epoch < view.epoch:
            known.restart(view.epoch)
        fresh = list(stored[known.n + 1 :])
        has_end = bool(stored) and stored[-1].is_terminal
        if has_end and (fresh or known.is_over or not known.is_counted):
            return fresh
        # The terminal item of a job that lost its items may have a number that this reader has.
        for item in fresh:
            known.add(item)
        return [*fresh, *self._missing(known, view)]

    def _missing(self, position: ReaderPosition, view: Job) -> list[StreamItem]:
        output = self.records.read_stored(view)
        attempt = max(view.attempt, 1)
        if output is not None and not position.is_counted:
            lost = ItemsLost(view.id, after=position.n)
            body = Failed(error=lost.code, message=lost.message, retryable=lost.retryable)
            return [StreamItem(n=None, attempt=attempt, body=body, epoch=view.epoch)]
        bodies = [] if output is None else list(lacking(position, output))
        # Where only the terminal item is missing, its number is known.
        n = position.n + 1 if not bodies and position.n >= 0 else None
        return [
            StreamItem(n=n, attempt=attempt, body=body, epoch=view.epoch)
            for body in (*bodies, _ending(view))
        ]


def lacking(position: ReaderPosition, answer: StoredAnswer) -> Iterator[Body]:
    """Yield the parts of a whole answer that a reader lacks."""
    if position.is_call_open and position.calls <= len(answer.calls):
        begun = answer.calls[position.calls - 1]
        if fragment := begun.arguments[position.arguments :]:
            yield ToolInput(fragment=fragment, ids=())
        if begun.is_complete:
            yield ToolEnd()
    for part in answer.parts(
        thinking=position.thinking,
        text=position.text,
        calls=position.calls,
        logprobs=position.logprobs,
    ):
        if not isinstance(part, EmittedCall):
            yield part
            continue
        yield ToolStart(id=part.id, name=part.name)
        yield ToolInput(fragment=part.arguments, ids=())
        if part.is_complete:
            yield ToolEnd()


def _ending(view: Job) -> Finished | Failed:
    if view.stop_reason is not None:
        return Finished(
            stop_reason=StopReason(view.stop_reason),
            usage=view.usage,
            stop_sequence=view.stop_sequence,
        )
    return Failed(
        error=view.error or EngineFailure.code,
        message=view.error_message or "the job failed",
        retryable=False,
    )
