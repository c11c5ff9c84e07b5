"""The items of a job that exists already, whatever has become of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from api.feed import close_items
from api.schemas.replies import JobOutput
from api.services import Services
from domain.errors import EngineFailure, JobNotFound, PayloadMissing
from domain.projections import JobView
from domain.stream import (
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
from domain.values import Digest, JobId, StopReason


async def follow_job(
    job_id: JobId, *, after: int, services: Services
) -> AsyncIterator[StreamItem] | None:
    """Return the items of a job above ``after``, up to the terminal one.

    Returns:
        ``None`` if the job has ended and its end is known to whoever has ``after``.

    Raises:
        JobNotFound: There is no such job.
        QueueUnavailable: The broker cannot be reached.
    """
    # Followed before the look at the job, so that an end between the two is not missed.
    items: AsyncIterator[StreamItem] = services.source.follow(job_id, after=after)
    try:
        past = await services.call(_past_items, job_id, after, services)
    except BaseException:
        await close_items(items)
        raise
    if past is None:
        return items
    await close_items(items)
    return _told(past) if past else None


def _past_items(job_id: JobId, after: int, services: Services) -> list[StreamItem] | None:
    """Return what is left to tell of a job that has ended, ``None`` if it goes on."""
    view = services.views.get(job_id)
    if view is None:
        raise JobNotFound(job_id)
    if not view.status.is_terminal:
        return None
    stored = services.backlog.read(job_id)
    if not stored:
        return _retold(view, after, services)
    if not stored[-1].is_terminal:
        stored = (*stored, _last_item(view, stored))
    return [item for item in stored if item.n is not None and item.n > after]


def _last_item(view: JobView, stored: Sequence[StreamItem]) -> StreamItem:
    """The last event stands in the log; the item that says so is on its way, or was lost."""
    last = stored[-1]
    return replace(last, n=(last.n or 0) + 1, body=_ending(view))


def _retold(view: JobView, after: int, services: Services) -> list[StreamItem]:
    """Tell a job whose items are forgotten from the log: without numbers, as they are others.

    A client that has a part already gets the end only, so that nothing is told twice.
    """
    output = read_output(view, services) if after < 0 else None
    bodies: list[Body] = []
    if output and output["thinking"]:
        bodies.append(Thinking(text=output["thinking"], ids=()))
    if output and output["text"]:
        bodies.append(Text(text=output["text"], ids=()))
    for call in output.get("tool_calls", []) if output else []:
        bodies.append(ToolStart(id=call["id"], name=call["name"]))
        bodies.append(ToolInput(fragment=call["arguments"], ids=()))
        if call["is_complete"]:
            bodies.append(ToolEnd())
    attempt = max(view.attempt, 1)
    return [StreamItem(n=None, attempt=attempt, body=body) for body in (*bodies, _ending(view))]


def _ending(view: JobView) -> Finished | Failed:
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


def read_output(view: JobView, services: Services) -> JobOutput | None:
    """Return the answer of a job; ``None`` if there is none or it was erased. Blocks."""
    if view.output is None:
        return None
    try:
        payload = json.loads(services.payloads.get(Digest(view.output)))
    except PayloadMissing:
        return None
    output: JobOutput = {"text": payload["text"], "thinking": payload["thinking"]}
    if payload.get("tool_calls"):
        output["tool_calls"] = payload["tool_calls"]
    return output


async def _told(items: Sequence[StreamItem]) -> AsyncIterator[StreamItem]:
    for item in items:
        yield item
