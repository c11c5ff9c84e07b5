"""Parameters of operations: each reads its value from a request and describes itself in OpenAPI."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from api.http.messages import Request
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
        place: Where it is.
        schema: JSON Schema of one value.
        parse: Converts the values in the request, none if it is absent.
        description: One line; empty for a part of the path.
        example: A value that fits; only for a part of the path.
    """

    name: str
    place: Place
    schema: Mapping[str, Any]
    parse: Callable[[Sequence[str]], T]
    description: str = ""
    example: str | None = None

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
        return described

    def _values(self, request: Request) -> Sequence[str]:
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
            msg = f"must match {pattern}"
            raise InvalidRequest(msg, field=name)
        return value

    shape = {} if pattern is None else {"pattern": pattern}
    return query(name, {"type": "string", **shape}, parse, None, description)


def texts(name: str, description: str, *, most: int) -> Parameter[tuple[str, ...]]:
    """Return a query parameter that may stand up to ``most`` times."""

    def parse(values: Sequence[str]) -> tuple[str, ...]:
        if len(values) > most:
            msg = f"must stand at most {most} times"
            raise InvalidRequest(msg, field=name)
        return tuple(values)

    schema = {"type": "array", "items": {"type": "string"}, "maxItems": most}
    return Parameter(
        name=name, place=Place.QUERY, schema=schema, parse=parse, description=description
    )


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
            msg = f"must be a whole number from {least} to {most}"
            raise InvalidRequest(msg, field=name)
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


def choice(name: str, description: str, options: type[E], *, default: D) -> Parameter[E | D]:
    """Return a query parameter that is one of the values of ``options``."""
    values = [option.value for option in options]

    def parse(value: str) -> E:
        if value not in values:
            msg = f"must be one of {', '.join(values)}"
            raise InvalidRequest(msg, field=name)
        return options(value)

    schema: dict[str, Any] = {"type": "string", "enum": values}
    if default is not None:
        schema["default"] = str(default)
    return query(name, schema, parse, default, description)


def flag(name: str, description: str) -> Parameter[bool]:
    """Return a query parameter that is ``true`` or, by default, ``false``."""

    def parse(value: str) -> bool:
        if value not in _FLAGS:
            msg = f"must be one of {', '.join(_FLAGS)}"
            raise InvalidRequest(msg, field=name)
        return value == _FLAGS[0]

    schema = {"type": "string", "enum": list(_FLAGS)}
    return query(name, schema, parse, default=False, description=description)


def moment(name: str, description: str) -> Parameter[str | None]:
    """Return a query parameter that is an RFC 3339 instant; it is read as the log writes it."""

    def parse(value: str) -> str:
        try:
            at = datetime.fromisoformat(value)
            if at.tzinfo is not None:
                return rfc3339(at.astimezone(UTC))
        except (ValueError, OverflowError):
            pass
        msg = "must be an RFC 3339 instant such as 2026-01-31T12:00:00Z"
        raise InvalidRequest(msg, field=name)

    return query(name, {"type": "string", "format": "date-time"}, parse, None, description)


def _single(name: str, parse: Callable[[str], T], default: D) -> Callable[[Sequence[str]], T | D]:
    def read(values: Sequence[str]) -> T | D:
        if not values:
            return default
        if len(values) > 1:
            raise InvalidRequest("given more than once", field=name)
        return parse(values[0])

    return read
