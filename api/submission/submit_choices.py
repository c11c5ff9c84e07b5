"""Accepts a request for several answers as that many jobs: all of them, or none (ADR 0020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from api.http.messages import Request
from api.protocols.shared.parsed_request import ParsedRequest
from api.services import Services
from api.streaming.open_job import OpenJob
from api.submission.history_matching import attributed
from api.submission.submit import (
    admit,
    asked_of,
    command_of,
    find_joining,
    join_job,
    open_fresh,
    open_job,
    record,
    repeat_of,
)
from domain.chat.request import ChatRequest
from domain.errors import SemanticError
from domain.job.commands import SubmitJob
from domain.job.request_dedup import JoinTarget
from domain.values import digest_of

#: Said of a job that goes with others of its request which could not be had.
OTHERS_REFUSED = "other_answers_refused"


async def open_jobs(
    parsed: ParsedRequest, request: Request, services: Services, *, protocol: str
) -> tuple[OpenJob, ...]:
    """Follow a job for each answer of a request; see ``open_job``.

    Each finds the job of the same place in the same request, if that was asked for before. If one
    cannot be had, those that were accepted before it are cancelled.

    Raises:
        InvalidRequest: The idempotency key cannot be one, or the answers are more than the queue
            ever takes.
        IdempotencyKeyReused: It came before with another request.
        LogUnavailable: Nothing was accepted.
        Overloaded: There is no room for all of them.
        QueueUnavailable: No worker can hear of them; what was accepted is cancelled again.
    """
    if not parsed.more:
        return (await open_job(parsed, request, services, protocol=protocol),)
    whole = command_of(parsed, request, services, protocol=protocol)
    commands = await services.call(_commands, whole, parsed.chats, parsed.seeded, services)
    repeat = repeat_of(parsed, request, services)
    fresh = [one for one in commands if await find_joining(one, repeat, services) is None]
    if fresh:
        await services.call(admit, fresh, services)
    opened: list[OpenJob] = []
    try:
        for command in commands:
            # Looked for anew: what was found a while ago may have been given up since.
            joining = (
                await find_joining(command, repeat, services) if command not in fresh else None
            )
            opened.append(await _open(command, joining, request, services))
    except BaseException as error:
        await _give_up(opened, error)
        raise
    return tuple(opened)


def _commands(
    whole: SubmitJob,
    chats: Sequence[ChatRequest],
    seeded: bool,  # noqa: FBT001 - handed to an executor
    services: Services,
) -> list[SubmitJob]:
    """Return a command for each answer.

    Equal answers of one request are not each other's repeats, and a repeat of the request finds
    each of its own: what is asked is the request as a whole, and the place of the answer in it.
    """
    asked = [asked_of(replace(whole, request=chat), seeded) for chat in chats]
    request = digest_of("\n".join(asked).encode())
    messages = attributed(chats[0], whole.agent, services).messages
    return [
        replace(
            whole,
            # Answers to one conversation echo the same answers before it; raw prompts echo none.
            request=replace(chat, messages=messages) if chat.raw is None else chat,
            asked=digest_of(f"{request}\nanswer {place}".encode()),
            idempotency=whole.idempotency
            if whole.idempotency is None or place == 0
            else digest_of(f"{whole.idempotency}\nanswer {place}".encode()),
            # Somebody is told once, of the first.
            webhook=whole.webhook if place == 0 else None,
        )
        for place, chat in enumerate(chats)
    ]


async def _open(
    command: SubmitJob, joining: JoinTarget | None, request: Request, services: Services
) -> OpenJob:
    if joining is not None:
        return await join_job(joining, request, services)
    return await open_fresh(partial(record, command), request, services)


async def _give_up(opened: Sequence[OpenJob], error: BaseException) -> None:
    for job in opened:
        if not isinstance(error, SemanticError):
            job.reading.abandon("client_gone")
        elif job.attached is None:
            job.reading.revoke(OTHERS_REFUSED)
        else:
            job.reading.abandon(OTHERS_REFUSED)
        await job.feed.close()
