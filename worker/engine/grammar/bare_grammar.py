"""Write the grammars of calls in which values within values stand between tags too (Gemma 4)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from domain.chat.schema_bounds import excess_of, resolve_reference
from worker.engine.grammar.tagged_grammar import TaggedGrammar
from worker.engine.grammar.text_grammar import (
    ANY_TEXT,
    SchemaRules,
    UnsupportedKeyword,
    containing,
    quoted,
    text_terminal,
    without,
)
from worker.engine.output.tool_calls.json_text import type_of, types_of
from worker.engine.output.tool_calls.reader import ToolSyntax

#: Most items that an array must have, and most that are counted; each is a state.
_ITEMS_MAX: Final = 64
_SCALARS: Final = frozenset({"boolean", "null", "integer", "number"})
#: Keywords that these rules do not read, where no other part of the schema does.
_UNREAD: Final = ("allOf", "not", "if", "prefixItems", "uniqueItems", "contains")
_CHOICES: Final = ("anyOf", "oneOf")
_ANNOTATIONS: Final = frozenset(
    {"description", "title", "default", "examples", "$comment", "$defs", "definitions"}
)


class BareGrammar(TaggedGrammar):
    """Writes the rules of calls whose values have bare names and strings between ``quote`` tags."""

    def __init__(self, syntax: ToolSyntax, rules: SchemaRules, tag: Callable[[str], str]) -> None:
        super().__init__(syntax, rules, tag)
        #: The rules of values by their schema, and why they allow more.
        self._values: dict[str, tuple[str, str | None]] = {}

    def _value(
        self, place: str, schema: object, root: Mapping[str, Any]
    ) -> tuple[str | None, str | None]:
        """Return the rule for a value, and why it allows more than the schema.

        A schema gets one rule, which also ends the recursion of schemas that contain themselves.
        """
        known = schema if isinstance(schema, Mapping) else {}
        types = types_of(schema, root)
        if not types:
            return None, "no value matches it"
        tool = place.split("_", 1)[0]
        key = f"{tool} {json.dumps(known, sort_keys=True)}"
        if key not in self._values:
            name = f"n{len(self._values)}"
            self._values[key] = name, None
            parts, reasons = self._parts(f"{tool}_{name}", known, root, types)
            self._rules.append(f"{name}: {' | '.join(parts)}")
            self._values[key] = name, ", ".join(reasons) or None
        return self._values[key]

    def _parts(
        self, place: str, schema: Mapping[str, Any], root: Mapping[str, Any], types: frozenset[str]
    ) -> tuple[list[str], list[str]]:
        """Return the choices of a value, at least one, and why they allow more than the schema."""
        reasons = [keyword for keyword in _UNREAD if keyword in schema]
        if "const" in schema or isinstance(schema.get("enum"), list):
            values = [schema["const"]] if "const" in schema else schema["enum"]
            written = [self._literal(one) for one in values if type_of(one) in types]
            others = sorted(schema.keys() - {"const", "enum", "type", *_ANNOTATIONS})
            possible = [one for one in written if one]
            reasons += others if possible else [*others, "none of its values can be written"]
            return possible or [self._literal("") or ""], reasons
        parts: list[str] = []
        for inner in self._inner(schema, root):
            rule, reason = self._value(place, inner, root)
            parts += [rule] if rule is not None else []
            reasons += [reason] if reason else []
        if parts:
            return parts, [*reasons, *self._beside_choices(schema, root, types)]
        if "string" in types:
            text, reason = self._text(schema, root)
            parts.append(text)
            reasons += [reason] if reason else []
        if scalars := types & _SCALARS:
            rule, reason = self._schemas.part_rule(schema, root, scalars)
            self._rules.append(f"s{place}: {rule}")
            parts.append(f"s{place}")
            reasons += [reason] if reason else []
        if "array" in types:
            parts.append(self._array(place, schema, root, reasons))
        if "object" in types:
            arguments, found = self._arguments(place, schema, root)
            parts.append(f'"{{" {arguments}')
            reasons += found
        return parts, reasons

    @staticmethod
    def _inner(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[object]:
        """Return the schemas of which a value must match one; empty where there is no choice."""
        if isinstance(schema.get("$ref"), str):
            return [resolve_reference(schema["$ref"], root)]
        found = [schema[key] for key in _CHOICES if isinstance(schema.get(key), list)]
        return list(found[0]) if found else []

    @staticmethod
    def _beside_choices(
        schema: Mapping[str, Any], root: Mapping[str, Any], types: frozenset[str]
    ) -> list[str]:
        """Return the keywords that restrict the values of a schema with choices further."""
        others = sorted(schema.keys() - {"$ref", "type", *_CHOICES, *_ANNOTATIONS})
        found = [types_of(one, root) for one in BareGrammar._inner(schema, root)]
        if "type" in schema and not frozenset().union(*found) <= types:
            others.append("type")
        if "oneOf" in schema and sum(map(len, found)) > len(frozenset().union(*found)):
            others.append("oneOf")
        return others

    def _literal(self, value: object) -> str | None:
        """Return a value as the grammar writes it; ``None`` if it cannot be written."""
        quote = self._written(self._syntax.quote)
        if isinstance(value, str):
            text = quoted(value) if value else ""
            return None if self._syntax.quote in value else f"{quote} {text} {quote}"
        if isinstance(value, list):
            items = [self._literal(one) for one in value]
            inside = ' "," '.join(filter(None, items))
            return None if None in items else f'"[" {inside} "]"'
        if isinstance(value, dict):
            members = [(name, self._literal(one)) for name, one in value.items()]
            inside = ' "," '.join(f"{quoted(f'{name}:')} {one}" for name, one in members)
            return None if any(one is None for _, one in members) else f'"{{" {inside} "}}"'
        return quoted(json.dumps(value))

    def _text(self, schema: Mapping[str, Any], root: Mapping[str, Any]) -> tuple[str, str | None]:
        """Return the rule for a string, and why it allows more than the schema."""
        reason = excess_of(schema, root)
        texts: str | None = ANY_TEXT
        try:
            texts = text_terminal(schema, root) if reason is None else ANY_TEXT
        except UnsupportedKeyword as error:
            reason = str(error)
        except (TypeError, ValueError) as error:
            reason = f"no schema: {error}"
        body = without(f"({texts or ANY_TEXT})", containing(self._syntax.quote))
        if self._schemas.refusal(f'start: T\nT: ({body}) "<"') is not None:
            body, reason = without(ANY_TEXT, containing(self._syntax.quote)), reason or "pattern"
        quote = self._pieces(self._syntax.quote)
        if quote[0][0] == '"':
            return f"{quote[0]} {self._terminal(f'({body}) {quote[0]}')}", reason
        return f"{quote[0]} {self._terminal(body)} {quote[0]}", reason

    def _array(
        self, place: str, schema: Mapping[str, Any], root: Mapping[str, Any], reasons: list[str]
    ) -> str:
        """Return the rule for an array; add why it allows more than the schema."""
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        item, reason = self._value(f"{place}_i", schema.get("items", {}), root)
        reasons += [f"items: {reason}"] if reason and item is not None else []
        if low > _ITEMS_MAX or (high is not None and high > _ITEMS_MAX):
            reasons.append("minItems" if low > _ITEMS_MAX else "maxItems")
            low, high = min(low, _ITEMS_MAX), None
        if item is None or high == 0:
            return '"[" "]"'
        needed = max(low, 1) - 1
        several = " ".join([item, *[f'"," {item}'] * needed])
        rest = "*" if high is None else f"{{0,{high - needed - 1}}}"
        if high is None or high - needed > 1:
            several += f' ("," {item}){rest}'
        return f'"[" {several} "]"' if low else f'"[" ({several})? "]"'
