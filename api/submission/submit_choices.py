"""Accepts a request for several answers as that many jobs: all of them, or none (ADR 0020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from api.http.messages import Request
from api.protocols.shared.parsed_request import ParsedRequest
from api.streaming.job_readers import CLIENT_GONE
from api.streaming.job_stream import OpenJob
from api.submission.prepared_request import PreparedRequest, asked_of
from api.submission.submit import Parse, Submission
from domain.errors import SemanticError
from domain.job.new_job import NewJob
from domain.values import digest_of

#: The reason of a cancellation because another job of the same request was refused.
OTHERS_REFUSED: Final = "other_answers_refused"


async def open_choices(
    submission: Submission, parse: Parse, request: Request, *, protocol: str
) -> tuple[ParsedRequest, tuple[OpenJob, ...]]:
    """Open a job for each answer of a request; see ``Submission.open``.

    Each answer joins the job of the same place in an earlier equal request. If one job is refused,
    those that were accepted before it are cancelled.

    Raises:
        InvalidRequest: The request is not valid, or wants more answers than the queue ever takes.
        IdempotencyKeyReused: The key belongs to another request.
        LogUnavailable: No job was accepted.
        Overloaded: There is no room for all of them.
        QueueUnavailable: The jobs cannot be enqueued; the accepted ones are cancelled again.
        RateLimited: The agent sends too many requests.
    """
    prepared, job = await submission.open_first(parse, request, protocol=protocol)
    if job is not None:
        return prepared.parsed, (job,)
    return prepared.parsed, await _open_each(submission, prepared, request)


async def _open_each(
    submission: Submission, prepared: PreparedRequest, request: Request
) -> tuple[OpenJob, ...]:
    commands = await submission.call(_commands, prepared, submission)
    repeat = prepared.repeat
    fresh = [one for one in commands if await submission.find_joining(one, repeat) is None]
    if fresh:
        await submission.call(submission.admit, fresh)
    opened: list[OpenJob] = []
    try:
        for command in commands:
            # Looked up again: the job that was found may have been given up since.
            target = (
                await submission.find_joining(command, repeat) if command not in fresh else None
            )
            if target is not None:
                opened.append(await submission.join(target, request))
            else:
                record = partial(submission.record, command)
                opened.append(await submission.open_new(record, request))
    except BaseException as error:
        await _abandon(opened, error)
        raise
    return tuple(opened)


def _commands(prepared: PreparedRequest, submission: Submission) -> list[NewJob]:
    """Return a command for each answer.

    Equal answers of one request do not repeat each other, and a repeat of the request finds the
    job of each: the digest covers the whole request and the place of the answer in it.
    """
    whole, parsed = prepared.command, prepared.parsed
    chats, key = parsed.chats, whole.submitted.idempotency
    asked = [asked_of(replace(whole, request=chat), seeded=parsed.seeded) for chat in chats]
    request = digest_of("\n".join(asked).encode())
    messages = submission.match_history(chats[0], whole.submitted.agent, whole.answers_to).messages
    return [
        replace(
            whole,
            submitted=replace(
                whole.submitted,
                asked=digest_of(f"{request}\nanswer {place}".encode()),
                idempotency=key
                if key is None or place == 0
                else digest_of(f"{key}\nanswer {place}".encode()),
                # The webhook is called once, for the first answer.
                webhook=whole.submitted.webhook if place == 0 else None,
            ),
            # Answers to one conversation have the same turns before them; raw prompts have none.
            request=replace(chat, messages=messages) if chat.raw is None else chat,
        )
        for place, chat in enumerate(chats)
    ]


async def _abandon(opened: Sequence[OpenJob], error: BaseException) -> None:
    for job in opened:
        if not isinstance(error, SemanticError):
            job.reading.abandon(CLIENT_GONE)
        elif job.attached is None:
            job.reading.revoke(OTHERS_REFUSED)
        else:
            job.reading.abandon(OTHERS_REFUSED)
        await job.items.close()
