"""The answer of a job in the read protocol of Durable Streams.

Messages are the parts of the answer and its end. An offset counts what precedes it in the answer:
it is valid after restarts of any process, and after the items of the job have been lost, since the
log has the answer.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from api.app import App
from api.errors import TransportError
from api.http.messages import JOB_HEADER, Reply, Request, StreamReply
from api.http.operation import Parameter, choice, header, query, whole_number
from api.http.sse import Comment, Frame, Part, encode
from api.streaming.answers import JobStream
from api.streaming.feed import ClientGone, OpenJob
from domain.chat.items import Body, StreamItem, Text, Thinking, ToolEnd, ToolInput, ToolStart
from domain.chat.stored_answer import ReaderPosition
from domain.errors import InvalidRequest, ModelChanged, SemanticError
from domain.log.codec import item_to_dict
from domain.values import JobId

#: How long a long poll waits for the next message, in seconds.
LONG_POLL_S: Final = 20.0
#: Cursors are numbered intervals of this many seconds since ``_CURSORS_SINCE``.
_CURSOR_S: Final = 20
_CURSORS_SINCE: Final = datetime(2024, 10, 9, tzinfo=UTC).timestamp()
_CURSOR_MAX: Final = 2**53 - 1

#: Keys of an item that messages lack: they differ between the items of a worker and the log.
_ITEM_KEYS: Final = frozenset({"n", "a", "e", "ids", "later", "logprobs"})
_OFFSET: Final = re.compile(r"([0-9]{9})-([0-9]{12})-([01])")
_OFFSET_PATTERN: Final = r"^(-1|now|[0-9]{9}-[0-9]{12}-[01])$"


@dataclass(frozen=True, slots=True)
class Offset:
    """A place in the answer; later places have greater texts.

    Attributes:
        epoch: Epoch of the job, which begins the answer anew; see ``Job.epoch``.
        units: Characters of text, reasoning and arguments before it; a tool call has one more at
            each end.
        has_end: Whether the end of the job is before it.
    """

    epoch: int
    units: int = 0
    has_end: bool = False

    def __str__(self) -> str:
        return f"{self.epoch:09}-{self.units:012}-{self.has_end:d}"


#: The offsets ``-1`` and ``now``, before the epoch of the job is known.
_BEGINNING: Final = Offset(0)
_TAIL: Final = Offset(-1)


class Live(StrEnum):
    """How a reader waits for messages that do not exist yet."""

    LONG_POLL = "long-poll"
    SSE = "sse"


def parse_offset(text: str) -> Offset:
    """Return the offset of a request.

    Raises:
        InvalidRequest: It is none.
    """
    if text in ("-1", "now"):
        return _BEGINNING if text == "-1" else _TAIL
    found = _OFFSET.fullmatch(text)
    if found is None:
        msg = "an offset is -1, now, or a Stream-Next-Offset of this stream"
        raise InvalidRequest(msg, field="offset")
    return Offset(int(found[1]), int(found[2]), has_end=found[3] == "1")


_OFFSET_OF_READER: Final = query(
    "offset",
    {"type": "string", "pattern": _OFFSET_PATTERN},
    parse_offset,
    None,
    "read by the protocol of Durable Streams from here: -1, now, or a Stream-Next-Offset",
)
_LIVE: Final = choice("live", "with offset: wait for further messages", Live, default=None)
_CURSOR: Final = whole_number(
    "cursor", "the Stream-Cursor of the reply before", default=None, most=_CURSOR_MAX
)
_IF_NONE_MATCH: Final = header(
    "If-None-Match", {"type": "string"}, str, "", "with offset: the ETag of an earlier reply"
)
DURABLE_PARAMETERS: Final[tuple[Parameter[Any], ...]] = (
    _OFFSET_OF_READER,
    _LIVE,
    _CURSOR,
    _IF_NONE_MATCH,
)


def is_durable(request: Request) -> bool:
    """Whether a request for a stream is one of Durable Streams; HEAD without a query is.

    Raises:
        InvalidRequest: A parameter is invalid, it has a cursor of the native stream too, or
            ``live`` without ``offset``.
    """
    for parameter in DURABLE_PARAMETERS:
        parameter.read(request)
    asked = {"offset", "live"} & request.query.keys()
    native = "after" in request.query or "last-event-id" in request.headers
    if asked and native:
        raise InvalidRequest("offset goes with neither after nor Last-Event-ID", field="offset")
    if asked == {"live"}:
        raise InvalidRequest("live needs an offset", field="offset")
    return bool(asked) or (request.method == "HEAD" and not native)


class MessagesBeyond:
    """Turns the items of a job into the messages behind an offset.

    Args:
        offset: Where the reader is.

    Attributes:
        offset: Behind the last message that was returned.
    """

    def __init__(self, offset: Offset) -> None:
        self.offset = offset
        self._at = 0

    def add(self, items: Iterable[StreamItem]) -> list[dict[str, Any]]:
        """Return the messages of the next items, the first of which is the first of its epoch.

        Raises:
            ModelChanged: The answer begins anew, and the reader has a part of the one before.
        """
        return [message for item in items if (message := self._message(item)) is not None]

    def _message(self, item: StreamItem) -> dict[str, Any] | None:
        if item.epoch > self.offset.epoch:
            if self.offset.units:
                raise ModelChanged
            self.offset, self._at = Offset(item.epoch), 0
        if item.is_terminal:
            is_new = not self.offset.has_end
            self.offset = replace(self.offset, has_end=True)
            return _message_of(item.body) if is_new else None
        units = _units_of(item.body)
        self._at += units
        fresh = min(units, self._at - self.offset.units)
        if fresh <= 0:
            return None
        self.offset = replace(self.offset, units=self._at)
        return _message_of(_last_units(item.body, fresh))


def _units_of(body: Body) -> int:
    match body:
        case Text() | Thinking():
            return len(body.text)
        case ToolInput():
            return len(body.fragment)
        case ToolStart() | ToolEnd():
            return 1
        case _:
            return 0


def _last_units(body: Body, units: int) -> Body:
    match body:
        case Text() | Thinking():
            return replace(body, text=body.text[-units:])
        case ToolInput():
            return replace(body, fragment=body.fragment[-units:])
        case _:
            return body


def _message_of(body: Body) -> dict[str, Any]:
    whole = item_to_dict(StreamItem(n=None, attempt=1, body=body))
    return {key: value for key, value in whole.items() if key not in _ITEM_KEYS}


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a reader gets at once.

    Attributes:
        items: Of the answer so far, from its beginning.
        reader: Behind ``messages``.
        messages: Behind the offset of the request.
        cursor: The Stream-Cursor of the reply.
    """

    job_id: JobId
    items: Sequence[StreamItem]
    reader: MessagesBeyond
    messages: list[dict[str, Any]]
    cursor: int

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a reply that ends with the last message."""
        offset = self.reader.offset
        closed = {"stream-closed": "true"} if offset.has_end else {}
        return {
            JOB_HEADER: self.job_id,
            "stream-next-offset": str(offset),
            "stream-up-to-date": "true",
            **closed,
        }

    @property
    def control(self) -> Mapping[str, Any]:
        """The control event behind the last message."""
        offset = self.reader.offset
        control: dict[str, Any] = {"streamNextOffset": str(offset), "upToDate": True}
        if offset.has_end:
            return control | {"streamClosed": True}
        return control | {"streamCursor": str(self.cursor)}

    def parts(self, messages: Sequence[Mapping[str, Any]]) -> list[Part]:
        """Return the events of messages, and the control event behind them."""
        data = [Frame(event="data", data=_json(messages), is_tight=True)] if messages else []
        return [*data, Frame(event="control", data=self.control, is_tight=True)]

    def follow(self, app: App, request: Request) -> OpenJob:
        """Return the items that follow, as they come."""
        epoch = self.items[-1].epoch if self.items else self.reader.offset.epoch
        position = ReaderPosition.after(self.items, epoch=epoch)
        job = OpenJob(self.job_id, app.feed, request, position)
        job.start()
        return job


async def read_durable(app: App, job_id: JobId, request: Request) -> Reply | StreamReply:
    """Reply with the messages behind an offset, and with later ones where the reader waits."""
    offset, live = _OFFSET_OF_READER.read(request) or _BEGINNING, _LIVE.read(request)
    epoch, items = await app.call(app.records.answer_so_far, job_id, app.backlog)
    tail = MessagesBeyond(Offset(epoch))
    tail.add(items)
    if request.method == "HEAD" and live is None:
        offset = _TAIL
    reader = tail if offset == _TAIL else MessagesBeyond(begin_at(offset, tail.offset))
    messages = [] if offset == _TAIL else reader.add(items)
    reading = _Reading(job_id, items, reader, messages, _next_cursor(app, request))
    if live is Live.SSE:
        headers = {JOB_HEADER: job_id, "cache-control": "no-cache"}
        return StreamReply(pieces=_events(reading, app, request), headers=headers)
    if live is Live.LONG_POLL:
        return await _poll(reading, app, request)
    if offset == _TAIL:
        return _reply(reading, {"cache-control": "no-store"})
    etag = f'W/"{job_id}:{offset if offset.epoch else -1}:{reader.offset}"'
    caching = {"cache-control": "no-cache", "etag": etag}
    if etag in [known.strip() for known in _IF_NONE_MATCH.read(request).split(",")]:
        return Reply(status=304, headers=reading.headers | caching)
    return _reply(reading, caching)


def begin_at(offset: Offset, tail: Offset) -> Offset:
    """Return the offset of a reader in the present answer.

    Raises:
        TransportError: 410, the answer has begun anew since.
    """
    if offset == _BEGINNING:
        return Offset(tail.epoch)
    # A retry may go on in the epoch, and then the end of an earlier life is not that of this one.
    is_earlier_end = offset.has_end and (not tail.has_end or tail.units > offset.units)
    if offset.epoch != tail.epoch or is_earlier_end:
        raise _gone()
    return offset


def _gone() -> TransportError:
    msg = "the answer of this job has begun anew; read it from the offset -1"
    return TransportError(410, "offset_gone", msg)


def _next_cursor(app: App, request: Request) -> int:
    """Return the number of the present interval, or one above that of the request."""
    present = int(app.clock.now().timestamp() - _CURSORS_SINCE) // _CURSOR_S
    given = _CURSOR.read(request)
    return present if given is None else max(present, given + 1)


def _reply(reading: _Reading, more: dict[str, str]) -> Reply:
    body = _json(reading.messages).encode("utf-8", "replace")
    return Reply(headers=reading.headers | more, body=body)


async def _poll(reading: _Reading, app: App, request: Request) -> Reply:
    """Wait for messages where there are none yet; 204 if none come in time.

    Raises:
        TransportError: 410, the answer began anew meanwhile.
        SemanticError: The process ends, or the broker stays unreachable.
    """
    messages, reader = reading.messages, reading.reader
    if not messages and not reader.offset.has_end:
        job = reading.follow(app, request)
        try:
            async with asyncio.timeout(LONG_POLL_S):
                while not messages:
                    messages += reader.add(await job.batch(None))
        except (TimeoutError, ClientGone):
            pass
        except ModelChanged:
            raise _gone() from None
        finally:
            await job.close()
    more = {"cache-control": "no-store", "stream-cursor": str(reading.cursor)}
    if not messages:
        return Reply(status=204, headers=reading.headers | more)
    return _reply(reading, more)


class _EventEncoder:
    """Encodes the messages of a reader: a control event behind each event with messages."""

    def __init__(self, reading: _Reading) -> None:
        self._reading = reading

    def open(self) -> list[Part]:
        """Return what the reader gets at once."""
        return self._reading.parts(self._reading.messages)

    def item(self, item: StreamItem) -> list[Part]:
        """Return the events of an item."""
        messages = self._reading.reader.add([item])
        return self._reading.parts(messages) if messages else []

    def ping(self) -> list[Part]:
        """Return a comment."""
        return [Comment("ping")]

    def fail(self, error: SemanticError) -> list[Part]:
        """Return nothing: a reader that connects again gets the error as a status."""
        del error
        return []


def _events(reading: _Reading, app: App, request: Request) -> AsyncIterator[bytes]:
    encoder = _EventEncoder(reading)
    if reading.reader.offset.has_end:
        return _once(encode(encoder.open()))
    return JobStream(reading.follow(app, request), encoder, ping_s=app.ping_s)


async def _once(piece: bytes) -> AsyncIterator[bytes]:
    yield piece


def _json(messages: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(messages, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
