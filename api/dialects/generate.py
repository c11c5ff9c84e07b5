"""Answers of generations on the connection of the request, common to their operations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import structlog

from api.app import App
from api.generation import AssembledAnswer, ParsedRequest
from api.http.messages import JOB_HEADER, Caller, Reply, Request, StreamReply, json_reply
from api.http.operation import IDEMPOTENCY_KEY, Endpoint, Operation
from api.streaming.answers import (
    Encoder,
    JobStream,
    abandoned_on_error,
    collect_job,
)
from api.streaming.feed import OpenJob
from api.submit import Parse, with_history
from domain.audit.recent_ends import CacheDiagnosis
from domain.chat.items import Failed, Started, StreamItem
from domain.errors import ModelNotReady, SemanticError
from domain.values import JobId

#: Id of the model that answered.
MODEL_HEADER: Final = "x-semantic-model"
#: Characters of a model id that stand in the header as they are.
_PLAIN: Final = "/:@ +,()[]"
#: Why the reply is that of an earlier job; absent where it is not.
ATTACHED_HEADER: Final = "x-semantic-attached"

#: For the document: a turn that any chat format takes.
USER_TURN: Final[Mapping[str, str]] = {"role": "user", "content": "Say hello."}
#: For the document: failures by status.
KEY_REUSED: Final = "The idempotency key was used for another request"
QUEUE_FULL: Final = "Too many jobs wait; Retry-After has the seconds to wait"
MODEL_UNKNOWN: Final = "No model has this name; the message lists those that exist"
GENERATION_FAILURES: Final[Mapping[int, str]] = MappingProxyType(
    {
        404: MODEL_UNKNOWN,
        409: f"The job was cancelled, or the model is not loaded, or: {KEY_REUSED}",
        429: QUEUE_FULL,
    }
)


def generation(route: str, endpoint: Endpoint, **members: Any) -> Operation:  # noqa: ANN401 - fields
    """Return an operation that submits a job and answers with what it generates."""
    return Operation(
        route,
        endpoint,
        parameters=(IDEMPOTENCY_KEY,),
        responses=GENERATION_FAILURES,
        **members,
    )


async def answer_open(
    job: OpenJob,
    app: App,
    *,
    stream: bool,
    encoder: Callable[[JobId, Started | None, CacheDiagnosis | None], Encoder[StreamItem]],
    assemble: Callable[[JobId, AssembledAnswer, CacheDiagnosis | None], Mapping[str, Any]],
) -> Reply | StreamReply:
    """Return the answer of an open job, as a stream or whole.

    Args:
        job: Closed with its answer.
        encoder: Makes the encoder of a stream from the job, its first item and its cache diagnosis;
            both are ``None`` where no item has come in time.
        assemble: Makes the body of a whole answer; the diagnosis may be ``None``.

    Raises:
        SemanticError: The whole answer failed.
    """
    headers: dict[str, str] = {JOB_HEADER: job.id}
    if job.attached is not None:
        headers[ATTACHED_HEADER] = job.attached
    if stream:
        async with abandoned_on_error([job]):
            started = await first_item(job, app.opening_s)
            facts = await attempt_facts(job.id, started, app)
            stream_encoder = encoder(job.id, started, facts.diagnosis)
            headers |= facts.headers
        pieces = JobStream(job, stream_encoder, ping_s=app.ping_s)
        return StreamReply(pieces=pieces, headers=headers)
    answer = await collect_job(job)
    facts = await attempt_facts(job.id, answer.started, app)
    headers |= facts.headers
    return json_reply(assemble(job.id, answer, facts.diagnosis), headers=headers)


class AttemptFacts(NamedTuple):
    """The headers with the model and the cache diagnosis of a job, and the diagnosis itself."""

    headers: dict[str, str]
    diagnosis: CacheDiagnosis | None


async def attempt_facts(job_id: JobId, started: Started | None, app: App) -> AttemptFacts:
    """Return the model and the cache diagnosis of a job.

    There are none before its prompt is known, nor while the log cannot be read. The head of a
    stream names the model of the first item.
    """
    if started is None:
        return AttemptFacts({}, None)
    try:
        return await app.call(_attempt_facts, job_id, app)
    except SemanticError as error:
        structlog.get_logger(__name__).warning(
            "attempt_headers_failed", job_id=job_id, error=error.code
        )
        return AttemptFacts({}, None)


def _attempt_facts(job_id: JobId, app: App) -> AttemptFacts:
    headers: dict[str, str] = {}
    view = app.views.get(job_id)
    if view is not None and view.answered_by is not None:
        headers[MODEL_HEADER] = plain_header(view.answered_by)
    diagnosis = app.records.diagnose(job_id)
    if diagnosis is not None:
        headers[CACHE_HEADER] = cache_header(diagnosis)
    return AttemptFacts(headers, diagnosis)


def plain_header(name: str) -> str:
    """Return the id of a model as the value of a header."""
    return quote(name, safe=_PLAIN)


T = TypeVar("T")


async def count_prompt(app: App, parse: Parse, request: Request) -> int:
    """Return the length of a request's prompt in tokens.

    Raises:
        ModelNotReady: No worker has counted it in time.
    """
    return await run_count(app, request, partial(_count, app, parse, request))


async def run_count(app: App, request: Request, counting: Callable[[], T]) -> T:
    """Run a call that counts or reads prompts.

    Raises:
        ModelNotReady: No worker has read them in time.
    """
    try:
        return await app.counts.run(request.caller.sharer, counting)
    except TimeoutError:
        raise ModelNotReady("no worker with a loaded model has read the prompt in time") from None


def _count(app: App, parse: Parse, request: Request) -> int:
    return count_parsed(app, parse(), request.caller)


def count_parsed(app: App, parsed: ParsedRequest, caller: Caller) -> int:
    """Return the length of the prompt of a request; blocks until a worker has counted it."""
    identity = app.ownership.identify(caller, parsed.agent, is_named=False)
    return app.counter.count(with_history(app, parsed.chat, identity.agent, identity.answers_to))


async def first_item(job: OpenJob, within_s: float) -> Started | None:
    """Return the first item if it is ``Started``, ``None`` if it does not come in time.

    A stream that has begun reports a failure only by an event, and clients take that for a passing
    one: Claude Code shortens its conversation on a status of 400, not on an event.

    Raises:
        SemanticError: The first item is a failure.
    """
    first = await job.peek(within_s)
    body = first.body if first is not None else None
    if isinstance(body, Failed):
        await collect_job(job)
    return body if isinstance(body, Started) else None


#: On every reply to a generation whose prompt is known when the headers are sent.
CACHE_HEADER: Final = "x-semantic-cache"
#: Characters that a string of RFC 8941 cannot have.
_UNPRINTABLE: Final = re.compile(r"[^ -~]+")


def cache_header(diagnosis: CacheDiagnosis) -> str:
    """Return the value of the header, a dictionary of RFC 8941 without any text of a prompt."""
    members = [
        f"prompt={diagnosis.prompt_tokens}",
        f"cached={diagnosis.cached_tokens}",
        f"source={diagnosis.source}",
    ]
    if diagnosis.known_tokens > diagnosis.cached_tokens:
        # Windows and states go on from a checkpoint; 0 is the beginning of the prompt.
        members += [f"known={diagnosis.known_tokens}", f"checkpoint={diagnosis.cached_tokens}"]
    if diagnosis.divergence is not None:
        divergence = diagnosis.divergence
        # The name of a tool is text of the client.
        is_tool = divergence.place.startswith("tools[")
        place = divergence.place.partition(" ")[0] if is_tool else divergence.place
        members += [
            f"missed={diagnosis.missed_tokens}",
            f"cause={divergence.cause.value}",
            f"place={_string(place)}",
        ]
    return ", ".join(members)


def _string(text: str) -> str:
    printable = _UNPRINTABLE.sub("?", text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable}"'
