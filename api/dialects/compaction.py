"""Compaction of a conversation: its summary by the model, in every dialect that has it.

A compaction is an ordinary job whose prompt is the conversation and an instruction, so that the
cache has all of it but the instruction.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from api.app import App
from api.generation import AssembledAnswer, ParsedRequest
from api.http.bodies import INT64_MAX
from api.http.messages import Reply, Request, StreamReply
from api.http.sse import Comment, Part, encode
from api.streaming.answers import JobStream, collect_job
from api.submit import open_answer
from domain.chat.images import unmarked
from domain.chat.request import Message
from domain.errors import InvalidRequest, SemanticError
from domain.values import JobId

#: Share of the context of the model at which a conversation is compacted without a threshold.
DEFAULT_SHARE: Final = 0.8
_BEFORE_SUMMARY: Final = "The conversation before this was shortened. Its summary:\n\n"
#: The last turn of the prompt of a compaction.
COMPACT_INSTRUCTION: Final = """\
The conversation so far must be shortened, and only your summary of it remains. Write that summary \
now, for yourself as the reader who continues the work. State: what the user wants, in their own \
words where they matter; decisions and constraints; what has been done, with names of files, \
commands, results and errors; what is unfinished, and the next step. Leave out what no later step \
needs. Write only the summary, and call no tools."""


def summary_turn(summary: str) -> Message:
    """Return the turn of the prompt that stands for the conversation before it."""
    return Message(role="user", content=_BEFORE_SUMMARY + unmarked(summary))


def summary_of(answer: AssembledAnswer, field: str | None = None) -> str:
    """Return the summary in the answer of a compaction; one that was cut off counts.

    Args:
        field: The limit of the answer, if an empty summary is an error.

    Raises:
        InvalidRequest: The model wrote none.
    """
    summary = answer.joined("text").strip()
    if not summary and field is not None:
        raise InvalidRequest("the model wrote no summary; a higher limit may help", field=field)
    return summary


def default_threshold(app: App) -> int:
    """Return the tokens of a prompt at which it is compacted; blocks."""
    lengths = [card.context_length for card in app.serving.cards()]
    return int(DEFAULT_SHARE * min(lengths, default=INT64_MAX))


async def summarize(
    app: App, parsed: ParsedRequest, request: Request, *, protocol: str
) -> tuple[JobId, AssembledAnswer]:
    """Have the model write a summary.

    Args:
        parsed: The conversation with the instruction.

    Raises:
        SemanticError: The job was refused or failed.
    """
    _, job = await open_answer(app, lambda: parsed, request, protocol=protocol)
    return job.id, await collect_job(job)


async def stream_behind(
    answer: Callable[[], Awaitable[Reply | StreamReply]],
    ping_s: float,
    fail: Callable[[SemanticError], Part],
) -> AsyncIterator[bytes]:
    """Stream an answer that begins after a summary, with comments meanwhile.

    Args:
        fail: Makes the event of a failure before the answer begins.
    """
    opening = asyncio.ensure_future(answer())
    try:
        while not (await asyncio.wait([opening], timeout=ping_s))[0]:
            yield encode([Comment("ping")])
        reply = opening.result()
    except SemanticError as error:
        yield encode([fail(error)])
        return
    finally:
        opening.cancel()
    assert isinstance(reply, StreamReply), "the request wants one"  # noqa: S101 - for the checker
    pieces = reply.pieces
    try:
        async for piece in pieces:
            yield piece
    finally:
        if isinstance(pieces, JobStream):
            await pieces.aclose()
