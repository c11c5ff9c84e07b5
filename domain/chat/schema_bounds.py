"""Bounds of JSON schemas that are compiled to grammars: what is refused before it is compiled.

A grammar counts remainders and repetitions in states. A schema of a few hundred bytes can demand
more states than there is memory, so these figures are computed from the schema alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

from domain.chat.request import ChatRequest
from domain.errors import InvalidRequest

#: Greatest numerator of ``multipleOf``, of all that hold for one number together: the states of a
#: grammar grow with it.
MULTIPLE_MAX: Final = 10_000
#: Most patterns and formats that one text must match at once; the states multiply.
PATTERNS_MAX: Final = 8
#: Most characters that the counts of one pattern demand; counts within counts multiply.
REPETITIONS_MAX: Final = 100_000
#: Most parts that hold for one value, each inside the other or by reference.
CHAIN_MAX: Final = 64
#: Keywords whose value is a mapping of schemas, a list of schemas, or one schema.
NAMED: Final = frozenset(
    {"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"}
)
LISTED: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
SINGLE: Final = frozenset(
    {"items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains"}
)
_CHOICES: Final = ("anyOf", "oneOf")
_TEXTS: Final = ("pattern", "format")
#: Decimal places of a number: of more, the library refuses the keyword by itself.
_PLACES_MAX: Final = 400
#: What matters in a pattern: an escape, a class, a group, or a count.
_PIECE: Final = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<open>\()|(?P<close>\))"
    r"|\{(?P<low>\d{1,9})(?:,(?P<high>\d{0,9}))?\}",
    re.DOTALL,
)


def excess_of(schema: object, root: Mapping[str, Any] | None = None) -> str | None:
    """Return why a schema is not compiled, ``None`` if it is within the bounds.

    Args:
        schema: The schema; a value that is no schema has no bounds.
        root: The schema that references point into, by default the schema itself.
    """
    if root is None:
        root = schema if isinstance(schema, Mapping) else {}
    figures = _Figures(root)
    return next((excess for part in _parts(schema, root) if (excess := figures.excess(part))), None)


def require_bounded_schemas(request: ChatRequest) -> tuple[str, ...]:
    """Return which schemas of a request are not enforced since they exceed the bounds, and why.

    Raises:
        InvalidRequest: The request demands one of them.
    """
    ignored = []
    if request.answer_schema is not None and (excess := excess_of(request.answer_schema)):
        if request.is_strict:
            raise InvalidRequest(f"the schema of the answer cannot be kept: {excess}")
        ignored.append(f"schema of the answer: {excess}")
    for tool in request.callable_tools:
        name = tool["function"]["name"]
        excess = excess_of(tool["function"].get("parameters"))
        if excess is None:
            continue
        if name in request.strict_tools:
            msg = f"the tool {name} is strict, and its schema cannot be kept: {excess}"
            raise InvalidRequest(msg, field="tools")
        ignored.append(f"tool {name}: {excess}")
    return tuple(ignored)


def resolve_reference(reference: str, root: Mapping[str, Any]) -> object:
    """Return the part of a schema that a reference points to, ``True`` if there is none.

    Args:
        reference: ``#`` and a JSON pointer (RFC 6901).
    """
    place: object = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not reference.startswith("#") or not isinstance(place, Mapping) or name not in place:
            return True
        place = place[name]
    return place if reference.startswith("#") else True


def _parts(schema: object, root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and all schemas in it, also those that it refers to, each once."""
    seen: set[int] = set()
    left = [schema]
    while left:
        part = left.pop()
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        for key, value in part.items():
            left += _inner(key, value, root)


def _inner(key: str, value: object, root: Mapping[str, Any]) -> Collection[object]:
    """Return the schemas in the value of a keyword."""
    if key in NAMED and isinstance(value, Mapping):
        return value.values()
    if key in LISTED | SINGLE and isinstance(value, list):
        return value
    if key == "$ref" and isinstance(value, str):
        return [resolve_reference(value, root)]
    return [value] if key in SINGLE else []


@dataclass(frozen=True, slots=True)
class _Conjunction:
    """What holds for one value at once."""

    #: The least common multiple of all ``multipleOf``, in units of ``10 ** -places``; 0 if it is
    #: too large, ``None`` without one.
    multiple: int | None = None
    places: int = 0
    patterns: int = 0

    def __and__(self, other: _Conjunction) -> _Conjunction:
        """Return both together."""
        patterns = self.patterns + other.patterns
        if self.multiple is None or other.multiple is None:
            bound = other if self.multiple is None else self
            return replace(bound, patterns=patterns)
        places = max(self.places, other.places)
        ours = self.multiple * 10 ** (places - self.places)
        multiple = math.lcm(ours, other.multiple * 10 ** (places - other.places))
        both = _Conjunction(multiple, places, patterns)
        return both if both.is_small else _Conjunction(0, 0, patterns)

    def rank(self) -> tuple[bool, int]:
        """Return a key that is greater for a greater multiple."""
        return not self.is_small, self.multiple or 0

    @property
    def is_small(self) -> bool:
        """Whether the remainders of the multiple can be counted; a shift by ten costs nothing."""
        multiple = 1 if self.multiple is None else self.multiple
        while multiple and multiple % 10 == 0:
            multiple //= 10
        return 0 < multiple <= MULTIPLE_MAX


class _Figures:
    """Computes the figures of the parts of one schema, each once.

    Args:
        root: The schema that references point into.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._found: dict[int, _Conjunction] = {}
        self._depth = 0
        self._is_deep = False

    def excess(self, part: Mapping[str, Any]) -> str | None:
        """Return which figure of a part exceeds its bound."""
        found = self._of(part)
        if self._is_deep:
            return f"allOf and $ref: more than {CHAIN_MAX} parts in a row hold for one value"
        if not found.is_small:
            return f"multipleOf: its numerator, over all of allOf, is above {MULTIPLE_MAX}"
        if found.patterns > PATTERNS_MAX:
            return f"allOf: more than {PATTERNS_MAX} patterns hold for one text"
        named = part.get("patternProperties")
        patterns = [part.get("pattern"), *(named if isinstance(named, Mapping) else ())]
        if any(_repetitions(one) > REPETITIONS_MAX for one in patterns if isinstance(one, str)):
            return f"pattern: its counts demand more than {REPETITIONS_MAX} repetitions"
        return None

    def _of(self, schema: object) -> _Conjunction:
        if not isinstance(schema, Mapping):
            return _Conjunction()
        if id(schema) not in self._found:
            self._found[id(schema)] = _Conjunction()  # where it refers to itself
            self._is_deep = self._is_deep or self._depth > CHAIN_MAX
            if not self._is_deep:
                self._depth += 1
                self._found[id(schema)] = self._computed(schema)
                self._depth -= 1
        return self._found[id(schema)]

    def _computed(self, schema: Mapping[str, Any]) -> _Conjunction:
        found = _own(schema)
        every = schema.get("allOf")
        for part in every if isinstance(every, list) else ():
            found &= self._of(part)
        if isinstance(schema.get("$ref"), str):
            found &= self._of(resolve_reference(schema["$ref"], self._root))
        for key in _CHOICES:
            choices = schema.get(key)
            if isinstance(choices, list) and choices:
                both = [found & self._of(choice) for choice in choices]
                worst = max(both, key=_Conjunction.rank)
                found = replace(worst, patterns=max(one.patterns for one in both))
        return found


def _own(schema: Mapping[str, Any]) -> _Conjunction:
    patterns = sum(isinstance(schema.get(key), str) for key in _TEXTS)
    wanted = schema.get("multipleOf")
    if not isinstance(wanted, int | float) or isinstance(wanted, bool):
        return _Conjunction(patterns=patterns)
    number = Decimal(str(wanted)) if isinstance(wanted, float) else Decimal(wanted)
    if not number.is_finite() or number <= 0:
        return _Conjunction(patterns=patterns)  # the library refuses it
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int), "a finite number has an exponent"
    if abs(exponent) > _PLACES_MAX or len(digits) > _PLACES_MAX:
        return _Conjunction(0, 0, patterns)
    whole = int("".join(map(str, digits)))
    return _Conjunction(whole * 10 ** max(0, exponent), max(0, -exponent), patterns)


def _repetitions(pattern: str) -> int:
    """Return how many repetitions the counts of a pattern demand, those of groups multiplied."""
    if "{" not in pattern:
        return 0
    totals, last = [0], 1
    for piece in _PIECE.finditer(pattern):
        if piece["open"]:
            totals.append(0)
        elif piece["close"] and len(totals) > 1:
            last = max(1, totals.pop())
            totals[-1] += last
            continue
        elif piece["low"] is not None:
            count = int(piece["high"] or piece["low"])
            is_group = pattern[piece.start() - 1] == ")" and piece.start() > 0
            totals[-1] += (count - 1) * last if is_group else count
        last = 1
    return sum(totals)
