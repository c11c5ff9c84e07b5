"""What both kinds of batches share: ids, counts, messages, and streams of lines."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.dialects.batches.lines import ANTHROPIC, OPENAI_ENDPOINTS
from api.generation import start_after_of
from api.http.bodies import StartAfter, VendorBody, WebhookBody
from api.http.messages import Request, shown
from domain.batch.batches import Page
from domain.batch.ports import FILE_PREFIX, FileId
from domain.batch.state import BATCH_PREFIX, Batch, BatchId
from domain.errors import BatchNotFound, InvalidRequest
from domain.events.batch import BatchEnded, BatchSubmitted
from domain.job.submit import text_bytes
from domain.ports import IdSource
from domain.values import Digest, JobStatus, digest_of, rfc3339
from domain.webhook.send import batch_event

#: Bytes of an answer of many lines that go out together.
BLOCK_BYTES: Final = 64 * 1024
#: Characters of a User-Agent that are stored.
CLIENT_CHARS_MAX: Final = 256
#: For the document: the failure with status 429 of both operations that create batches.
BATCHES_FULL: Final = "Too many batches are open; Retry-After has the seconds to wait"
_JOB_PREFIX: Final = "job-"


def new_file_id(ids: IdSource) -> FileId:
    """Return a fresh id that sorts by creation."""
    return FileId(FILE_PREFIX + ids.job_id().removeprefix(_JOB_PREFIX))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDialect:
    """How a vendor names batches.

    Attributes:
        protocols: Names of its dialects in the log.
    """

    prefix: str
    protocols: tuple[str, ...]

    @property
    def id_pattern(self) -> str:
        """Pattern of the ids of its batches."""
        return f"^{self.prefix}[0-9a-f]{{32}}$"

    def name(self, batch: Batch) -> str:
        """Return the id of a batch as the vendor spells it."""
        return self.prefix + batch.id.removeprefix(BATCH_PREFIX)

    def find(self, name: str, app: App) -> Batch:
        """Return a batch by its id here; blocks.

        Raises:
            BatchNotFound: There is none.
        """
        try:
            batch = app.batch_records.load(self._id_of(name))
        except BatchNotFound as error:
            raise BatchNotFound(name) from error
        if batch.facts.protocol not in self.protocols:
            raise BatchNotFound(name)
        return batch

    def page(self, app: App, request: Request, limit: int, **edges: str | None) -> Page[Batch]:
        """Return batches, newest first; blocks.

        Args:
            edges: The ids before the page in either direction, by the vendor's parameter: ``after``
                or ``before``, perhaps with ``_id`` behind it.

        Raises:
            InvalidRequest: There is no such batch; names the parameter.
        """
        given = {field: name for field, name in edges.items() if name is not None}
        try:
            return app.batch_records.page(
                self.protocols,
                limit=limit,
                owner=request.caller.sees,
                **{field.removesuffix("_id"): self._id_of(name) for field, name in given.items()},
            )
        except BatchNotFound as error:
            raise InvalidRequest(error.message, field=[*given][-1]) from error

    def _id_of(self, name: str) -> BatchId:
        if not re.fullmatch(self.id_pattern, name):
            raise BatchNotFound(name)
        return BatchId(BATCH_PREFIX + name.removeprefix(self.prefix))


MESSAGE_BATCHES: Final = BatchDialect(prefix="msgbatch_", protocols=(ANTHROPIC,))
OPENAI_BATCHES: Final = BatchDialect(
    prefix="batch_", protocols=tuple(kind.protocol for kind in OPENAI_ENDPOINTS.values())
)


class BatchOptions(VendorBody):
    """When a batch starts, and the receiver of its end."""

    start_after: StartAfter | None = None
    webhook: WebhookBody | None = None


def accept_batch(
    app: App,
    request: Request,
    options: BatchOptions,
    *,
    payloads: Mapping[Digest, bytes] = MappingProxyType({}),
    is_checked: bool,
    **facts: Any,  # noqa: ANN401 - fields of the event
) -> Batch:
    """Record a batch; blocks.

    Args:
        payloads: Its lines, where they are new.
        is_checked: Whether its lines need no check.
        facts: Fields of ``BatchSubmitted`` apart from those of the client, the start and the end.
    """
    client = text_bytes(request.headers.get("user-agent", "")[:CLIENT_CHARS_MAX])
    texts = {digest_of(client): client} if client else {}
    now = app.clock.now()
    start = start_after_of(options.start_after, now)
    submitted = BatchSubmitted(
        start_after=None if start is None else rfc3339(start),
        expires_at=later(start or now, app.batch_limits.window_s),
        client_name=next(iter(texts), None),
        webhook=app.webhook_policy.url_of(options.webhook),
        trace=str(request.trace),
        owner=request.caller.owner,
        cache_owner=app.ownership.cache_owner_of(request.caller),
        **facts,
    )
    return app.batch_records.accept(
        BatchId(BATCH_PREFIX + app.ids.job_id().removeprefix(_JOB_PREFIX)),
        submitted,
        correlation_id=request.id,
        payloads={**payloads, **texts},
        is_checked=is_checked,
    )


def later(moment: datetime, seconds: float) -> str:
    """Return the instant some seconds after a moment, as the log writes them."""
    return rfc3339(moment + timedelta(seconds=seconds))


async def blocks_of(
    lines: Iterator[bytes], call: Callable[..., Awaitable[bytes]]
) -> AsyncIterator[bytes]:
    """Yield lines as the pieces of a ``StreamReply``, made a block at a time by ``call``."""
    while block := await call(_next_block, lines):
        yield block


def _next_block(lines: Iterator[bytes]) -> bytes:
    block = bytearray()
    for line in lines:
        block += line
        if len(block) >= BLOCK_BYTES:
            break
    return bytes(block)


class BatchCounts(TypedDict):
    """Numbers of requests by state."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


def batch_progress(batch: Batch, app: App) -> BatchCounts:
    """Return the numbers of requests by state as they are now; blocks."""
    if (counts := batch.counts) is not None:
        return shown(BatchCounts, counts, processing=batch.facts.lines - counts.lines)
    by_status = app.batch_records.views.tally(batch.id).by_status
    ended = {status: by_status.get(status, 0) for status in JobStatus if status.is_terminal}
    return {
        "processing": batch.facts.lines - sum(ended.values()),
        "succeeded": ended[JobStatus.COMPLETED],
        "errored": ended[JobStatus.FAILED],
        "canceled": ended[JobStatus.CANCELLED],
        "expired": ended[JobStatus.EXPIRED],
    }


_ENDS: Final = ("succeeded", "errored", "canceled", "expired")


def batch_message(batch: Batch) -> dict[str, Any]:
    """Return the body of a message about a batch; both dialects share it."""
    is_anthropic = batch.facts.protocol == ANTHROPIC
    name = (MESSAGE_BATCHES if is_anthropic else OPENAI_BATCHES).name(batch)
    counts = batch.counts or BatchEnded()
    return {
        "id": name,
        "object": "batch",
        "status": batch_event(batch).removeprefix("batch."),
        "endpoint": batch.facts.endpoint,
        "lines": batch.facts.lines,
        "counts": {name: getattr(counts, name) for name in _ENDS},
        "created_at": batch.created_at,
        "ended_at": batch.ended_at,
        "links": {"self": f"/v1/{'messages/' if is_anthropic else ''}batches/{name}"},
    }
