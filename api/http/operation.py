"""One operation of the API and its parameters; routing and the OpenAPI document derive from it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property, partial
from types import UnionType
from typing import Any, Final, Generic, TypeVar, get_args, get_type_hints

from api.http.bodies import REQUEST, BodyT, JsonBounds, VendorBody, parse_body, without_effect
from api.http.messages import Access, Listing, Reply, Request, StreamReply, listing_of
from domain.errors import InvalidRequest
from domain.values import rfc3339

T = TypeVar("T")
D = TypeVar("D")
E = TypeVar("E", bound=StrEnum)
N = TypeVar("N", bound=int | None)

#: The values of a flag, the true one first.
_FLAGS: Final = ("true", "false")
_DIGITS: Final = re.compile(r"[0-9]{1,19}")


class Place(StrEnum):
    """Where a request has a parameter."""

    PATH = "path"
    QUERY = "query"
    HEADER = "header"


class Order(StrEnum):
    """Order of the rows of a page by creation."""

    ASC = "asc"
    DESC = "desc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter(Generic[T]):
    """A value that a request has outside its body.

    Attributes:
        name: As clients write it; names of headers in any case.
        schema: JSON Schema of one value.
        parse: Converts the values in the request, none if it is absent.
        description: One line; empty for a part of the path.
        example: A value that fits; only for a part of the path.
        has_keys: Whether it is an object of texts: ``name.KEY=VALUE`` or ``name[KEY]=VALUE`` in the
            query, and ``KEY=VALUE`` for ``parse``.
    """

    name: str
    place: Place
    schema: Mapping[str, Any]
    parse: Callable[[Sequence[str]], T]
    description: str = ""
    example: str | None = None
    has_keys: bool = False

    def read(self, request: Request) -> T:
        """Return the value in a request, the default if it is absent.

        Raises:
            InvalidRequest: The value does not fit the schema; names the parameter.
        """
        return self.parse(self._values(request))

    def described(self) -> dict[str, Any]:
        """Return the parameter object of OpenAPI."""
        described: dict[str, Any] = {"name": self.name, "in": self.place.value}
        if self.place is Place.PATH:
            described["required"] = True
        described["schema"] = self.schema
        if self.description:
            described["description"] = self.description
        if self.example is not None:
            described["example"] = self.example
        if self.has_keys:
            described |= {"style": "deepObject", "explode": True}
        return described

    def takes(self, name: str) -> bool:
        """Whether it is this parameter of a query."""
        return self.place is Place.QUERY and (
            self._key(name) is not None if self.has_keys else name == self.name
        )

    def _key(self, name: str) -> str | None:
        if name.startswith(f"{self.name}."):
            return name[len(self.name) + 1 :]
        is_bracketed = name.startswith(f"{self.name}[") and name.endswith("]")
        return name[len(self.name) + 1 : -1] if is_bracketed else None

    def _values(self, request: Request) -> Sequence[str]:
        if self.has_keys:
            found = ((self._key(name), values) for name, values in request.query.items())
            return [f"{key}={value}" for key, values in found if key for value in values]
        if self.place is Place.QUERY:
            return request.query.get(self.name, ())
        if self.place is Place.HEADER:
            value = request.headers.get(self.name.lower())
        else:
            value = request.params.get(self.name)
        return () if value is None else (value,)


def path(name: str, *, pattern: str | None = None, example: str) -> Parameter[str]:
    """Return a part of the path.

    A value that does not match ``pattern`` is not refused: the operation finds nothing, and
    answers 404.
    """
    shape: Mapping[str, Any] = {"minLength": 1} if pattern is None else {"pattern": pattern}
    return Parameter(
        name=name,
        place=Place.PATH,
        schema={"type": "string", **shape},
        parse=lambda values: values[0],
        example=example,
    )


def header(
    name: str, schema: Mapping[str, Any], parse: Callable[[str], T], default: D, description: str
) -> Parameter[T | D]:
    """Return a header, which may be absent; ``parse`` refuses what ``schema`` refuses."""
    return Parameter(
        name=name,
        place=Place.HEADER,
        schema=schema,
        parse=_single(name, parse, default),
        description=description,
    )


def query(
    name: str, schema: Mapping[str, Any], parse: Callable[[str], T], default: D, description: str
) -> Parameter[T | D]:
    """Return a query parameter, which may be absent; ``parse`` refuses what ``schema`` refuses."""
    return Parameter(
        name=name,
        place=Place.QUERY,
        schema=schema,
        parse=_single(name, parse, default),
        description=description,
    )


def text(name: str, description: str, *, pattern: str | None = None) -> Parameter[str | None]:
    """Return a query parameter that is a text."""

    def parse(value: str) -> str:
        if pattern is not None and not re.fullmatch(pattern, value):
            raise InvalidRequest(f"must match {pattern}", field=name)
        return value

    shape = {} if pattern is None else {"pattern": pattern}
    return query(name, {"type": "string", **shape}, parse, None, description)


def texts(
    name: str, description: str, *, most: int, pattern: str | None = None
) -> Parameter[tuple[str, ...]]:
    """Return a query parameter that may stand up to ``most`` times."""
    one = text(name, description, pattern=pattern)

    def parse(values: Sequence[str]) -> tuple[str, ...]:
        if len(values) > most:
            raise InvalidRequest(f"must stand at most {most} times", field=name)
        return tuple(value for each in values if (value := one.parse([each])) is not None)

    schema = {"type": "array", "items": one.schema, "maxItems": most}
    return Parameter(
        name=name, place=Place.QUERY, schema=schema, parse=parse, description=description
    )


def pairs(name: str, description: str, *, most: int) -> Parameter[tuple[str, ...]]:
    """Return a query parameter with up to ``most`` keys; each value is ``KEY=VALUE``."""
    many = texts(name, description, most=most)
    schema = {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": most}
    return replace(many, schema=schema, has_keys=True)


def refuse_unknown(parameters: Sequence[Parameter[Any]], request: Request) -> None:
    """Refuse a query with a parameter that an operation does not read.

    Raises:
        InvalidRequest: Naming the first one.
    """
    for name in request.query:
        if not any(parameter.takes(name) for parameter in parameters):
            known = sorted(one.name for one in parameters if one.place is Place.QUERY)
            msg = f"there is no such parameter; this operation takes {', '.join(known)}"
            raise InvalidRequest(msg, field=name)


def whole_number(
    name: str,
    description: str,
    *,
    default: N,
    least: int = 0,
    most: int,
    place: Place = Place.QUERY,
) -> Parameter[int | N]:
    """Return a parameter from ``least`` to ``most``."""

    def parse(value: str) -> int:
        if not _DIGITS.fullmatch(value) or not least <= int(value) <= most:
            raise InvalidRequest(f"must be a whole number from {least} to {most}", field=name)
        return int(value)

    schema = {"type": "integer", "minimum": least, "maximum": most}
    if default is not None:
        schema["default"] = default
    make = header if place is Place.HEADER else query
    return make(name, schema, parse, default, description)


def page_size(
    *, default: int, most: int, description: str = "largest number of rows of the page"
) -> Parameter[int]:
    """Return the query parameter ``limit``."""
    return whole_number("limit", description, default=default, least=1, most=most)


@dataclass(frozen=True, slots=True)
class PageOfRows:
    """The page that a request wants of rows which are all at hand.

    Attributes:
        after: Id of the row before the page, in its order; the page behind an unknown one is empty.
    """

    limit: int
    order: Order
    after: str | None

    def of(self, rows: Sequence[dict[str, Any]]) -> Listing[dict[str, Any]]:
        """Return the page of rows, which are oldest first."""
        ordered = list(reversed(rows) if self.order is Order.DESC else rows)
        if self.after is not None:
            names = [row["id"] for row in ordered]
            ordered = ordered[names.index(self.after) + 1 :] if self.after in names else []
        return listing_of(ordered[: self.limit], has_more=len(ordered) > self.limit)


def choice(name: str, description: str, options: type[E], *, default: D) -> Parameter[E | D]:
    """Return a query parameter that is one of the values of ``options``."""
    values = [option.value for option in options]

    def parse(value: str) -> E:
        if value not in values:
            raise InvalidRequest(f"must be one of {', '.join(values)}", field=name)
        return options(value)

    schema: dict[str, Any] = {"type": "string", "enum": values}
    if default is not None:
        schema["default"] = str(default)
    return query(name, schema, parse, default, description)


def flag(name: str, description: str) -> Parameter[bool]:
    """Return a query parameter that is ``true`` or, by default, ``false``."""

    def parse(value: str) -> bool:
        if value not in _FLAGS:
            raise InvalidRequest(f"must be one of {', '.join(_FLAGS)}", field=name)
        return value == _FLAGS[0]

    schema = {"type": "string", "enum": list(_FLAGS)}
    return query(name, schema, parse, default=False, description=description)


def moment(name: str, description: str) -> Parameter[str | None]:
    """Return a query parameter that is an RFC 3339 instant; it is read as the log writes it."""
    parse = partial(parse_instant, field=name)
    return query(name, {"type": "string", "format": "date-time"}, parse, None, description)


def parse_instant(value: str, *, field: str) -> str:
    """Return an RFC 3339 instant as the log writes it.

    Raises:
        InvalidRequest: It is none; names the field.
    """
    try:
        at = datetime.fromisoformat(value)
        if at.tzinfo is not None:
            return rfc3339(at.astimezone(UTC))
    except (ValueError, OverflowError):
        pass
    raise InvalidRequest("must be an RFC 3339 instant such as 2026-01-31T12:00:00Z", field=field)


def _single(name: str, parse: Callable[[str], T], default: D) -> Callable[[Sequence[str]], T | D]:
    def read(values: Sequence[str]) -> T | D:
        if not values:
            return default
        if len(values) > 1:
            raise InvalidRequest("given more than once", field=name)
        return parse(values[0])

    return read


#: A function of the app and a request. It returns a ``Reply``, a ``StreamReply``, or the body of a
#: JSON reply, whose type its annotation names. One that is no coroutine function may block: it runs
#: on a thread.
Endpoint = Callable[..., Any]


@dataclass(frozen=True)
class Operation:
    """A method on a path.

    Attributes:
        route: Method and path pattern, such as ``GET /v1/jobs/{job_id}``.
        endpoint: Answers a request; see ``Endpoint``.
        id: ``operationId`` in the document, by default the name of the function in camel case.
        summary: By default the first line of the function's docstring, without its full stop.
        parameters: All that ``endpoint`` reads, and those in the path.
        body: Type of the JSON body; ``None`` where there is none.
        takes_upload: Whether the body may be as large as an upload; only without ``{…}`` parts.
        body_required: Whether a request without a body is refused.
        example: A body that works.
        reply: Type of the JSON reply of an endpoint that returns a whole one.
        may_be_done: Whether 200 with the same reply means that the work has ended already.
        media: Media type of a reply that is not JSON.
        is_streamed: Whether the reply may be a stream of events.
        has_links: Whether the document links the reply to the operations on its job.
        stops_work: Whether later requests of all clients wait or are refused.
        access: What it needs of a key; ``None``: ``READ`` for GET, ``CHANGE`` for other methods.
        responses: Descriptions of further responses by status, for this operation alone.
    """

    route: str
    endpoint: Endpoint
    _: KW_ONLY
    id: str = ""
    summary: str = ""
    parameters: tuple[Parameter[Any], ...] = ()
    body: Any = None
    body_media: str = "application/json"
    takes_upload: bool = False
    body_required: bool = True
    example: Mapping[str, Any] | None = None
    reply: Any = None
    status: int = 200
    may_be_done: bool = False
    media: str | None = None
    is_streamed: bool = False
    has_links: bool = False
    stops_work: bool = False
    access: Access | None = None
    responses: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.id:
            first, *rest = self.endpoint.__name__.split("_")
            object.__setattr__(self, "id", first + "".join(map(str.capitalize, rest)))
        if not self.summary:
            line = (self.endpoint.__doc__ or "").partition("\n")[0]
            object.__setattr__(self, "summary", line.removesuffix("."))

    @cached_property
    def returns(self) -> Any:  # noqa: ANN401 - a type
        """Return the type of the JSON reply; ``None`` where there is none."""
        if self.reply is not None:
            return self.reply
        returned = get_type_hints(self.endpoint).get("return")
        options = get_args(returned) if isinstance(returned, UnionType) else (returned,)
        return next((one for one in options if one not in {Reply, StreamReply}), None)

    @property
    def method(self) -> str:
        """Return the method in upper case."""
        return self.route.partition(" ")[0]

    @property
    def has_query(self) -> bool:
        """Return whether it reads parameters of the query."""
        return any(parameter.place is Place.QUERY for parameter in self.parameters)

    @property
    def needs(self) -> Access:
        """Return what a key needs for the operation."""
        if self.access is not None:
            return self.access
        return Access.READ if self.method == "GET" else Access.CHANGE

    @property
    def path(self) -> str:
        """Return the path pattern."""
        return self.route.partition(" ")[2]


#: Characters of an idempotency key.
KEY_CHARS_MAX: Final = 255
#: Longest that a reply is held back for the end of its job (``Prefer: wait``), in seconds.
WAIT_MAX_S: Final = 60
#: The official SDKs send it; it is above 0 on a request that they repeat.
RETRY_COUNT_HEADER: Final = "x-stainless-retry-count"

KEY_HEADER: Final = "Idempotency-Key"
#: Printable ASCII without a space at either end.
_KEY_PATTERN: Final = r"^[!-~]([ -~]*[!-~])?$"
_PRINTABLE: Final = re.compile(_KEY_PATTERN)
_WAIT: Final = re.compile(r"\s*wait\s*=\s*\"?(\d{1,9})\"?\s*", re.IGNORECASE)


def is_retry(headers: Mapping[str, str]) -> bool:
    """Return whether the client repeats a request; a count that is no number means it does not."""
    count = headers.get(RETRY_COUNT_HEADER, "0")
    return count.isascii() and count.isdigit() and int(count[:9]) > 0


def _key(value: str) -> str:
    if len(value) > KEY_CHARS_MAX or not _PRINTABLE.fullmatch(value):
        msg = f"must be 1 to {KEY_CHARS_MAX} printable ASCII characters"
        raise InvalidRequest(msg, field=KEY_HEADER)
    return value


def _wait_s(value: str) -> int | None:
    for preference in value.split(","):
        found = _WAIT.fullmatch(preference.split(";")[0])
        if found is not None:
            return min(int(found[1]), WAIT_MAX_S)
    return None


#: The key that a client gives a request, so that a repeat of it makes no second job.
IDEMPOTENCY_KEY: Final = header(
    KEY_HEADER,
    {"type": "string", "minLength": 1, "maxLength": KEY_CHARS_MAX, "pattern": _KEY_PATTERN},
    _key,
    None,
    "Requests with the same key create one job. The same key with another request is refused.",
)


def for_further_job(request: Request, purpose: str) -> Request:
    """Return a request for one more job of its client, under a key that follows from its own."""
    key = IDEMPOTENCY_KEY.read(request)
    if key is None:
        return request
    derived = hashlib.sha256(f"{purpose} {key}".encode()).hexdigest()
    return replace(request, headers={**request.headers, KEY_HEADER.lower(): derived})


#: Seconds that the client waits for the end (RFC 7240), lowered to ``WAIT_MAX_S``. Other
#: preferences, and those that cannot be read, are ignored, as the RFC asks.
PREFERRED_WAIT_S: Final = header(
    "Prefer",
    {"type": "string", "example": "wait=30"},
    _wait_s,
    None,
    "wait=n delays the reply until the job has ended, by at most n seconds.",
)


def body_of(
    model: type[BodyT], request: Request, *, empty: bytes = b"", bounds: JsonBounds = REQUEST
) -> BodyT:
    """Return the body of a request as ``model``; the reply names its fields without effect.

    Args:
        empty: What an empty body stands for.

    Raises:
        InvalidRequest: See ``parse_body``.
    """
    wire = parse_body(model, request.body or empty, bounds)
    if isinstance(wire, VendorBody):
        request.marks.warning = without_effect(wire.unknown)
    return wire
