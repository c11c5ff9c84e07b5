"""Write the narrowest ``%json`` rule for a JSON schema that llguidance can follow."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from domain.chat.schema_bounds import LISTED, NAMED, SINGLE, excess_of
from worker.engine.output.tool_calls.json_text import types_of

_STRICT: Final[Mapping[str, Any]] = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
}
#: Ignores keywords that the library does not support, instead of refusing the schema.
_LENIENT: Final[Mapping[str, Any]] = {**_STRICT, "lenient": True, "coerce_one_of": True}
#: Keywords of which the library supports some values and not others, or not at any cost.
_COSTLY: Final = frozenset({"multipleOf", "pattern", "patternProperties"})
_ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}
_SHARED: Final = ("$defs", "definitions")


class SchemaRules:
    """Writes the rules of schemas.

    Args:
        refusal: Returns why the library cannot follow a grammar, ``None`` if it can.
    """

    def __init__(self, refusal: Callable[[str], str | None]) -> None:
        self.refusal = refusal

    def schema_rule(self, schema: Mapping[str, Any]) -> tuple[str, str | None]:
        """Return the narrowest rule for a schema that the library can follow.

        Args:
            schema: The caller's schema; an empty one allows any object.

        Returns:
            The rule, and the reason if it allows more than the schema, else ``None``.
        """
        return self._narrowest(schema or _ANY_OBJECT, _ANY_OBJECT)

    def part_rule(
        self, schema: object, root: Mapping[str, Any], types: Collection[str]
    ) -> tuple[str, str | None]:
        """Return the same for a part of a schema, restricted to some types.

        Args:
            schema: The part; a value that is no schema allows everything.
            root: The whole schema, which references point into.
            types: The JSON types to allow.
        """
        inner = schema if isinstance(schema, Mapping) else {}
        named = _SHARED if has_reference(inner) else ()
        shared = {name: root[name] for name in named if name in root}
        types = {"type": sorted(types)}
        if types_of(inner, root) > set(types):
            inner = {"allOf": [inner, types]}
        return self._narrowest({**shared, **inner}, types)

    def _narrowest(
        self, wanted: Mapping[str, Any], widest: Mapping[str, Any]
    ) -> tuple[str, str | None]:
        excess = excess_of(wanted)
        rule = _json_rule(wanted, _STRICT)
        reason = excess or self.refusal(_alone(rule))
        if reason is None:
            return rule, None
        wider = [] if excess else [_json_rule(wanted, _LENIENT)]
        wider.append(_json_rule(wanted, _LENIENT, left_out=_COSTLY))
        for rule in wider:
            if self.refusal(_alone(rule)) is None:
                return rule, reason
        return _json_rule(widest, _STRICT), reason


def has_reference(schema: object) -> bool:
    """Return whether a schema may hold a reference; a text that looks like one counts."""
    return '"$ref"' in json.dumps(schema)


def _alone(rule: str) -> str:
    return f"start: answer\nanswer: {rule}"


def _json_rule(
    schema: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    left_out: Collection[str] = (),
) -> str:
    whole = {**_Normalizer(left_out).schema(schema), "x-guidance": options}
    return "%json " + json.dumps(whole, ensure_ascii=False)


class _Normalizer:
    """Rewrites a schema into an equivalent one that the library handles better.

    Args:
        left_out: Keywords to drop, which makes the schema wider.
    """

    def __init__(self, left_out: Collection[str]) -> None:
        self._left_out = left_out

    def schema(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return a normalized schema; required properties come first, in the caller's order."""
        normalized: dict[str, Any] = {}
        for key, value in schema.items():
            if key == "propertyNames" and value in ({}, True, {"type": "string"}):
                continue  # The library does not support the keyword, and all names are strings.
            if key not in self._left_out:
                normalized[key] = self._value(key, value)
        properties, required = normalized.get("properties"), schema.get("required")
        if isinstance(properties, dict) and isinstance(required, list):
            first = [name for name in required if isinstance(name, str) and name in properties]
            normalized["properties"] = {name: properties[name] for name in (*first, *properties)}
        return normalized

    def _value(self, key: str, value: Any) -> Any:  # noqa: ANN401 - any JSON
        if key in NAMED and isinstance(value, Mapping):
            return {name: self._one(inner) for name, inner in value.items()}
        if key in LISTED and isinstance(value, list):
            return [self._one(inner) for inner in value]
        if key in SINGLE:
            return self._one(value)
        return value

    def _one(self, value: Any) -> Any:  # noqa: ANN401 - as above
        return self.schema(value) if isinstance(value, Mapping) else value
