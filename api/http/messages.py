"""Requests and replies as handlers know them, and who sent them."""

from __future__ import annotations

import asyncio
import json
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import (
    Any,
    Final,
    Generic,
    Literal,
    NotRequired,
    Protocol,
    TypeVar,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from domain.log.trace import TraceContext, new_trace
from domain.values import JobId, Owner
from ops.settings.api_keys import KeyScope


class Access(StrEnum):
    """What an operation needs; each scope of a key has some of them.

    ``READ`` shows what the key may see, ``CHANGE`` makes or changes things of the key,
    ``READ_ALL`` shows what belongs to no single key, and ``OPERATE`` changes the whole service.
    """

    READ = "read"
    CHANGE = "change"
    READ_ALL = "read_all"
    OPERATE = "operate"


_GRANTED = {
    KeyScope.ADMIN: frozenset(Access),
    KeyScope.OWN: frozenset({Access.READ, Access.CHANGE}),
    KeyScope.READ: frozenset({Access.READ, Access.READ_ALL}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The holder of the key of a request; without keys, all clients are one admin.

    Attributes:
        name: Name of the key; empty without keys.
        is_alone: Whether the service has no other key.
    """

    name: str = ""
    scope: KeyScope = KeyScope.ADMIN
    is_alone: bool = True

    @property
    def owner(self) -> Owner | None:
        """The owner of what the caller makes."""
        return Owner(self.name) if self.name else None

    @property
    def sees(self) -> Owner | None:
        """The only owner whose things the caller may see; ``None`` for all."""
        return Owner(self.name) if self.scope is KeyScope.OWN else None

    @property
    def sharer(self) -> Owner | None:
        """Whose share of common limits counts; ``None`` where the service has no other key."""
        return None if self.is_alone else self.owner

    @property
    def keyspace(self) -> str:
        """As in ``NewJob``."""
        return "" if self.is_alone else self.name

    def may(self, access: Access) -> bool:
        """Return whether the scope of the key has an access."""
        return access in _GRANTED[self.scope]


#: The caller of a service without keys.
KEYLESS = Caller()
#: The caller of the few paths that need no key: it owns nothing and sees nothing.
UNIDENTIFIED = Caller(scope=KeyScope.OWN, is_alone=False)


#: Ids of the jobs of a request, on every reply to a generation, errors included.
JOB_HEADER: Final = "x-semantic-job"


class Dialect(StrEnum):
    """Whose error format a route answers in."""

    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    OLLAMA = "ollama"
    NATIVE = "native"


@dataclass(slots=True, kw_only=True)
class RequestMarks:
    """What happened to a request, for its spans; instants are nanoseconds since the epoch.

    Attributes:
        began_ns: When its body was read.
        route: The pattern of its route, once that is known.
        jobs: The jobs that it reads.
        attached: Why it joined earlier jobs.
        joined: The traces of those jobs, as ``traceparent``.
        accepted_ns: When the last of its jobs was accepted or joined.
        output_ns: When the first output of a job arrived.
        warning: What of the request has no effect; the reply has it as a header.
    """

    began_ns: int = field(default_factory=time.time_ns)
    route: str | None = None
    jobs: list[JobId] = field(default_factory=list)
    attached: list[str] = field(default_factory=list)
    joined: list[str] = field(default_factory=list)
    accepted_ns: int | None = None
    output_ns: int | None = None
    warning: str | None = None

    def accept(
        self, job_id: JobId, *, attached: str | None = None, joined_trace: str | None = None
    ) -> None:
        """Note that a job was accepted, or joined."""
        self.accepted_ns = time.time_ns()
        self.jobs.append(job_id)
        if attached is not None:
            self.attached.append(attached)
        if joined_trace is not None:
            self.joined.append(joined_trace)

    def deliver(self) -> None:
        """Note that output has arrived."""
        self.output_ns = self.output_ns or time.time_ns()


class Signal(asyncio.Event):
    """An event that also calls, so that a stream needs no task that waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: set[Callable[[], None]] = set()

    def set(self) -> None:
        """Set the event, and make the calls."""
        super().set()
        for call in tuple(self._calls):
            call()

    def watch(self, call: Callable[[], None]) -> None:
        """Call ``call`` whenever this is set from now on; it must return at once."""
        self._calls.add(call)

    def unwatch(self, call: Callable[[], None]) -> None:
        """Undo ``watch``; a second call does nothing."""
        self._calls.discard(call)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, parsed and bounded by the server.

    Attributes:
        id: The ``request-id`` of the answer, and the correlation id in the log.
        trace: Its span, in the trace of the client's ``traceparent`` or in one of its own.
        method: Upper case.
        path: Percent-decoded, without the query.
        params: Values of the ``{…}`` parts of the route's pattern, percent-decoded.
        query: Percent-decoded values by name, in order.
        headers: By lower-case name; repeated ones joined by ``, ``.
        body: The whole body, not longer than the limit.
        peer: Address of the client.
        gone: Set as soon as the client has left.
        ending: Set when the process must end its streams now.
    """

    id: str
    trace: TraceContext = field(default_factory=new_trace)
    marks: RequestMarks = field(default_factory=RequestMarks)
    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, Sequence[str]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    peer: str = ""
    caller: Caller = KEYLESS
    gone: Signal = field(default_factory=Signal)
    ending: Signal = field(default_factory=Signal)

    async def ends_within(self, timeout_s: float) -> bool:
        """Return whether the client leaves or the process ends its streams within a time."""
        waits = [
            asyncio.ensure_future(self.gone.wait()),
            asyncio.ensure_future(self.ending.wait()),
        ]
        try:
            done, _ = await asyncio.wait(
                waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for wait in waits:
                wait.cancel()
        return bool(done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole answer; the app adds ``content-type``, ``content-length`` and ``request-id``."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = "application/json"


@runtime_checkable
class Closable(Protocol):
    """An iterator that holds something until it is closed: a generator, or an object."""

    def aclose(self) -> Awaitable[object]:
        """End the iteration; a second call does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReply:
    """An answer that comes piece by piece.

    The server iterates ``pieces`` in the event loop, waits where the client reads slowly, and ends
    a ``Closable`` iterator when the client has gone or the answer is whole.
    """

    pieces: AsyncIterator[bytes]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"


Handler = Callable[[Request], Awaitable[Reply | StreamReply]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A method, a pattern such as ``/v1/jobs/{job_id}``, and the handler.

    Attributes:
        method: Upper case.
        takes_upload: Whether the body may be as large as an upload.
    """

    method: str
    pattern: str
    handler: Handler
    takes_upload: bool = False


def json_reply(
    value: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Reply:
    """Return ``value`` as a whole answer."""
    return Reply(status=status, headers=headers or {}, body=json_bytes(value))


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """Return ``value`` as JSON; an ``array`` becomes a list of its numbers.

    Other threads run between two arrays, since Python code runs there: a reply with millions of
    numbers does not stop the event loop.
    """
    text = json.dumps(
        value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_numbers
    )
    return text.encode("utf-8", "replace")


def _numbers(value: object) -> list[Any]:
    if isinstance(value, array):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON value")


RowT = TypeVar("RowT", bound=Mapping[str, Any])
ObjectT = TypeVar("ObjectT", bound=Mapping[str, Any])


def shown(kind: type[ObjectT], *sources: object, **members: Any) -> ObjectT:  # noqa: ANN401 - any JSON value
    """Return the required members of an object of a reply, in the order of its type.

    A member that is not given is the attribute of that name of the first source that has one.
    """
    found: Any = {
        name: members[name]
        if name in members
        else next(getattr(one, name) for one in sources if hasattr(one, name))
        for name in _required(kind)
    }
    return found  # type: ignore[no-any-return]  # its members are those of the type


@cache
def _required(kind: type) -> tuple[str, ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple(name for name, hint in hints.items() if get_origin(hint) is not NotRequired)


class Rows(TypedDict, Generic[RowT]):
    """A page; ``after`` or ``after_id`` with ``last_id`` returns the next one."""

    data: list[RowT]
    has_more: bool
    first_id: str | None
    last_id: str | None


class Listing(Rows[RowT], Generic[RowT]):
    """A page; ``after=<last_id>`` returns the next one."""

    object: Literal["list"]


class Objects(TypedDict, Generic[RowT]):
    """All rows of a kind."""

    object: Literal["list"]
    data: list[RowT]


class NewestPage(Objects[RowT], Generic[RowT]):
    """A page, newest first; ``before=<next_before>`` returns the next one."""

    has_more: bool
    next_before: str | None


class Deleted(TypedDict):
    """The reply to a deletion."""

    id: str
    object: str
    deleted: Literal[True]


def rows_of(data: list[RowT], *, has_more: bool) -> Rows[RowT]:
    """Return a page of rows that have ids."""
    first, last = (str(data[0]["id"]), str(data[-1]["id"])) if data else (None, None)
    return {"data": data, "has_more": has_more, "first_id": first, "last_id": last}


def listing_of(data: list[RowT], *, has_more: bool) -> Listing[RowT]:
    """Return a page of rows that have ids."""
    return {"object": "list", **rows_of(data, has_more=has_more)}


def newest_page(data: list[RowT], *, has_more: bool) -> NewestPage[RowT]:
    """Return a page of rows that have ids, newest first."""
    before = str(data[-1]["id"]) if has_more else None
    return {"object": "list", "data": data, "has_more": has_more, "next_before": before}
