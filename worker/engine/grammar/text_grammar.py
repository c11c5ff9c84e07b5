"""Write JSON schemas as rules of llguidance's Lark dialect, and unquoted strings as one terminal.

Families that write arguments between tags do not quote strings, so the library's JSON schemas do
not apply. Terminals can be intersected and negated, which suffices for most keywords on strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from domain.chat.schema_bounds import LISTED, NAMED, SINGLE, excess_of, resolve_reference
from worker.engine.output.tool_calls.json_text import SchemaTypes, types_of

ANY_TEXT: Final = "/(?s:.*)/"
_REFERENCES_MAX: Final = 16
#: Longest length that is enforced; with a forbidden text, more would need too many states.
LENGTH_MAX: Final = 300
#: Most characters of a terminal; choices within choices multiply them.
_TERMINAL_CHARS_MAX: Final = 1 << 20
_ESCAPED: Final = re.compile(r'["\\\x00-\x1f\x7f]')
_SPECIAL: Final = re.compile(r"[\\^$.|?*+()\[\]{}/&~#-]")
_DAY: Final = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE: Final = rf"[0-9]{{4}}-{_DAY}"
_TIME: Final = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_BYTE: Final = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#: For each ``format``, a subset of its texts that all validators accept.
_FORMATS: Final[Mapping[str, str]] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "hostname": rf"{_LABEL}(?:\.{_LABEL}){{0,3}}",
    "email": rf"[A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*@{_LABEL}(?:\.{_LABEL}){{1,3}}",
    "uri": r"[a-z][a-z0-9+.-]*:\/\/[A-Za-z0-9.-]+(?::[0-9]{1,4})?(?:[\/?#][A-Za-z0-9._~\/?=&+-]*)?",
}
_CONDITIONS: Final = ("not", "if", "contentEncoding", "contentMediaType")
_BINDING: Final = frozenset(
    {"const", "enum", "pattern", "format", "anyOf", "oneOf", "allOf", "$ref", *_CONDITIONS}
)


class UnsupportedKeyword(ValueError):
    """No terminal can express a keyword of the schema; the message names the keyword."""


def text_terminal(schema: object, root: Mapping[str, Any]) -> str | None:
    """Return a terminal for the strings that match a schema, ``None`` if it allows none.

    Args:
        schema: Any value; one that is no schema allows all strings.

    Raises:
        UnsupportedKeyword: No terminal can express the schema.
    """
    return _Terminals(root).of(schema, 0)


class _Terminals:
    """Writes the terminals of the parts of one schema, each once: many references may share one."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._types = SchemaTypes(root)
        self._found: dict[int, str] = {}

    def of(self, schema: object, depth: int) -> str | None:
        """Return the terminal of a part, after ``depth`` references and choices."""
        if depth > _REFERENCES_MAX:
            raise UnsupportedKeyword("$ref")
        if "string" not in self._types.of(schema):
            return None
        if not isinstance(schema, Mapping):
            return ANY_TEXT
        if id(schema) not in self._found:
            self._found[id(schema)] = self._written(schema, depth)
        return self._found[id(schema)]

    def _written(self, schema: Mapping[str, Any], depth: int) -> str:
        for keyword in _CONDITIONS:
            if keyword in schema:
                raise UnsupportedKeyword(keyword)
        parts = _own(schema)
        parts += [_needed(self.of(one, depth + 1)) for one in _inner(schema, self._root)]
        for keyword in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list):
                found = [self.of(one, depth + 1) for one in schema[keyword]]
                parts.append(_needed(_choice(found, keyword)))
        return _joined(" & ", [part for part in dict.fromkeys(parts) if part != ANY_TEXT])


def lengths(schema: Mapping[str, Any]) -> tuple[int, int | None]:
    """Return the least and the greatest length of a string; ``None`` is unlimited."""
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    return int(low), None if high is None else int(high)


def is_bound_by_length_alone(schema: object) -> bool:
    """Whether nothing but its length restricts a string."""
    return not isinstance(schema, Mapping) or schema.keys().isdisjoint(_BINDING)


def without(texts: str, *others: str) -> str:
    """Return a terminal that excludes other terminals."""
    return " & ".join([texts, *(f"~{other}" for other in others)])


def containing(text: str) -> str:
    """Return a terminal for all strings that contain a text."""
    return f"/(?s:.*){literal(text)}(?s:.*)/"


def literal(text: str) -> str:
    """Return a text escaped for a regular expression of the dialect."""
    escaped = _SPECIAL.sub(lambda match: f"\\{match[0]}", text)
    return re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\x{ord(match[0]):02x}", escaped)


def quoted(text: str) -> str:
    """Return a text as a string literal of the grammar."""
    return '"' + _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + '"'


def one_of(texts: list[str]) -> str:
    """Return a terminal for any of the texts."""
    # The group avoids ``//``, which would begin a comment.
    return f"/(?:{'|'.join(map(literal, dict.fromkeys(texts)))})/"


def _own(schema: Mapping[str, Any]) -> list[str]:
    """Return the terminals of the keywords without subschemas."""
    parts = []
    values = [schema["const"]] if "const" in schema else None
    if isinstance(schema.get("enum"), list):
        listed = schema["enum"]
        values = listed if values is None else [value for value in values if value in listed]
    if values is not None:
        parts.append(one_of([value for value in values if isinstance(value, str)]))
    low, high = lengths(schema)
    if max(low, high or 0) > LENGTH_MAX:
        raise UnsupportedKeyword("maxLength" if high else "minLength")
    if low or high is not None:
        parts.append(f"/(?s:.{{{low},{'' if high is None else high}}})/")
    if isinstance(schema.get("pattern"), str):
        parts.append(_pattern(schema["pattern"]))
    if isinstance(schema.get("format"), str):
        if schema["format"] not in _FORMATS:
            raise UnsupportedKeyword(f'format "{schema["format"]}"')
        parts.append(f"/{_FORMATS[schema['format']]}/")
    return parts


def _inner(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[object]:
    parts = schema.get("allOf")
    inner = list(parts) if isinstance(parts, list) else []
    if isinstance(schema.get("$ref"), str):
        inner.append(resolve_reference(schema["$ref"], root))
    return inner


def _needed(terminal: str | None) -> str:
    """Return the terminal of a part of a schema that allows strings."""
    if terminal is None:  # its types are behind too many references
        raise UnsupportedKeyword("$ref")
    return terminal


def _choice(found: list[str | None], keyword: str) -> str | None:
    possible = [terminal for terminal in found if terminal is not None]
    if keyword == "oneOf" and len(possible) > 1:
        raise UnsupportedKeyword(keyword)
    terminals = list(dict.fromkeys(possible))
    if ANY_TEXT in terminals:
        return ANY_TEXT
    if len(terminals) > 1:
        return f"({_joined(' | ', terminals)})"
    return terminals[0] if terminals else None


def _joined(operator: str, terminals: list[str]) -> str:
    if sum(map(len, terminals)) > _TERMINAL_CHARS_MAX:
        raise UnsupportedKeyword("too many choices")
    return operator.join(terminals) or ANY_TEXT


def _pattern(pattern: str) -> str:
    """Return a terminal for the strings in which a pattern (ECMA 262) matches somewhere."""
    branches = []
    for branch in _branches(pattern):
        begins, ends = branch.startswith("^"), branch.endswith("$") and not branch.endswith("\\$")
        body = branch[int(begins) : len(branch) - int(ends)]
        before, after = "" if begins else "(?s:.*)", "" if ends else "(?s:.*)"
        branches.append(f"{before}(?:{_translated(body)}){after}")
    return f"/{'|'.join(branches)}/"


def _branches(pattern: str) -> list[str]:
    """Return the top-level alternatives of a pattern."""
    branches, depth, in_class, escaped = [""], 0, False, False
    for char in pattern:
        if escaped or char == "\\":
            escaped = not escaped
        elif in_class or char == "[":
            in_class = char != "]"
        elif char == "|" and depth == 0:
            branches.append("")
            continue
        else:
            depth += {"(": 1, ")": -1}.get(char, 0)
        branches[-1] += char
    return branches


def _translated(body: str) -> str:
    r"""Return a pattern in the dialect, where ``\d`` and ``\w`` would include all of Unicode."""
    translated, in_class, at = "", False, 0
    while at < len(body):
        char, size = body[at], 1
        if char == "\\":
            size = 2
            char = _escape(body[at : at + 2], in_class=in_class)
        elif in_class or char == "[":
            in_class = char != "]"
        elif char in "^$" or body.startswith(("(?=", "(?!", "(?<"), at):
            raise UnsupportedKeyword("pattern")
        translated += "\\/" if char == "/" else f"\\x{ord(char):02x}" if char < " " else char
        at += size
    return translated


def _escape(escape: str, *, in_class: bool) -> str:
    plain = {"\\d": "0-9", "\\w": "A-Za-z0-9_"}.get(escape)
    if plain is not None:
        return plain if in_class else f"[{plain}]"
    if escape in ("\\D", "\\W") and not in_class:
        return {"\\D": "[^0-9]", "\\W": "[^A-Za-z0-9_]"}[escape]
    if escape[1:] in ("D", "W", "b", "B", "c", "k", "") or escape[1:].isdigit():
        raise UnsupportedKeyword("pattern")
    return escape


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
    """Writes the rules of schemas."""

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
    whole = {**_normalized(schema, left_out), "x-guidance": options}
    return "%json " + json.dumps(whole, ensure_ascii=False)


def _normalized(schema: Mapping[str, Any], left_out: Collection[str]) -> dict[str, Any]:
    """Return an equivalent schema that the library handles better.

    Required properties come first, in the caller's order.

    Args:
        left_out: Keywords to drop, which makes the schema wider.
    """
    normalized: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "propertyNames" and value in ({}, True, {"type": "string"}):
            continue  # The library does not support the keyword, and all names are strings.
        if key not in left_out:
            normalized[key] = _normalized_value(key, value, left_out)
    properties, required = normalized.get("properties"), schema.get("required")
    if isinstance(properties, dict) and isinstance(required, list):
        first = [name for name in required if isinstance(name, str) and name in properties]
        normalized["properties"] = {name: properties[name] for name in (*first, *properties)}
    return normalized


def _normalized_value(key: str, value: object, left_out: Collection[str]) -> object:
    def one(inner: object) -> object:
        return _normalized(inner, left_out) if isinstance(inner, Mapping) else inner

    if key in NAMED and isinstance(value, Mapping):
        return {name: one(inner) for name, inner in value.items()}
    if key in LISTED and isinstance(value, list):
        return [one(inner) for inner in value]
    return one(value) if key in SINGLE else value
