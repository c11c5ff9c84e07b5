"""Write the grammars of tool calls whose arguments stand between tags (``ToolSyntax``).

The grammar allows the arguments in any order, because models of these families vary it. Each
argument may occur once, and a call may end when all required arguments are present. The rules
track this in a parameter with one bit for each argument.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from domain.chat.schema_bounds import excess_of
from worker.engine.grammar.ports import GrammarRefused
from worker.engine.grammar.text_grammar import (
    ANY_TEXT,
    LENGTH_MAX,
    SchemaRules,
    UnsupportedKeyword,
    containing,
    has_reference,
    is_bound_by_length_alone,
    lengths,
    literal,
    one_of,
    quoted,
    text_terminal,
    without,
)
from worker.engine.output.tool_calls.json_text import STRING_ONLY, type_of, types_of
from worker.engine.output.tool_calls.reader import Tool, ToolSyntax

#: Most bits in the parameter of a rule; with more arguments the order is fixed.
ORDERED_MAX: Final = 64
#: Most characters of a schema, times the arguments with references into it: their rules repeat it.
_FOLLOWED_CHARS_MAX: Final = 1 << 22
_TAG: Final = re.compile(r"<\|[^|<>]*\|>|</?[^<>\s]+>")
_NAME: Final = re.compile(r"[^\s<>\"'][^<>\"'\n]*(?<!\s)")
_KEYWORD: Final = re.compile(r"[A-Za-z0-9_.-]+")
_OTHER_NAME: Final = "/[A-Za-z_][A-Za-z0-9_]*/"
_CONTAINERS: Final = ("object", "array")
_WHOLE: Final = "-?(?:0|[1-9][0-9]{0,17})"
#: Regular expressions for scalars, where a string is allowed as well.
_SCALARS: Final[Mapping[str, str]] = {
    "boolean": "true|false",
    "null": "null",
    "integer": _WHOLE,
    "number": rf"{_WHOLE}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{{1,2}})?",
}
#: Texts that a reader takes for a value of another type; a string must not match them.
_READ_AS: Final[Mapping[str, str]] = {
    "boolean": "/true|false/",
    "null": "/null/",
    "integer": "/-?[0-9]+/",
    "number": r"/-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/",
    "object": r"/\{(?s:.*)/",
    "array": r"/\[(?s:.*)/",
}
_NO_TERMINAL: Final = "none of its texts can be written"
#: Types of an optional string.
_OPTIONAL_TEXT: Final = frozenset({"string", "null"})
#: Python's literals, which models write whose template prints Python values.
_PYTHON: Final[Mapping[str, tuple[str, ...]]] = {"boolean": ("True", "False"), "null": ("None",)}
#: A text that is not marked as CDATA, and one that is.
_UNMARKED: Final = r"(?:[^<](?s:.)*)?"
_MARKED: Final = r"<!\[CDATA\[(?s:.)*\]\]>"
_NARROWING: Final = frozenset(
    {
        "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
        "multipleOf", "allOf", "anyOf", "oneOf", "$ref", "not", "if",
    }
)  # fmt: skip
#: Unsupported keywords of the schema of all arguments.
_UNSUPPORTED: Final = (
    "patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentRequired",
    "dependentSchemas", "dependencies", "unevaluatedProperties", "anyOf", "oneOf", "allOf", "not",
    "if", "$ref", "enum", "const",
)  # fmt: skip


class TaggedGrammar:
    """Writes the rules of the calls of some tools, in the syntax of one model family."""

    def __init__(self, syntax: ToolSyntax, rules: SchemaRules, tag: Callable[[str], str]) -> None:
        self._syntax = syntax
        self._schemas = rules
        self._tag = tag
        self._rules: list[str] = []
        self._terminals: dict[str, str] = {}
        self._lazy: dict[str, str] = {}
        self._closing = syntax.quote or syntax.after_value.strip()
        #: Why the grammar of a tool allows more than its schema, by the tool's name.
        self.wider: dict[str, str] = {}

    def rules(self, tools: Sequence[Tool], end: str) -> list[str]:
        """Return the rule ``calls``, which follows the start tag, and the rules it refers to."""
        named = []
        for number, tool in enumerate(tools):
            function = tool["function"]
            if not _NAME.fullmatch(function["name"]):
                self.wider[function["name"]] = "its name"
                continue
            opening = self._syntax.before_name + function["name"] + self._syntax.after_name
            others = [self._written(opening)]
            if not self._syntax.after_name and not self._syntax.separator:
                others.append(self._written(f"{opening}\n"))
            schema = function.get("parameters") or {}
            arguments, reasons = self._arguments(str(number), schema, schema)
            named.append(f"({' | '.join(others)}) {arguments}")
            if reasons:
                self.wider[function["name"]] = ", ".join(reasons)
        if not named:
            raise GrammarRefused("no tool has a name that can be written")
        one_call = " | ".join(named)
        calls = "one+" if self._syntax.is_repeated else "one"
        if self._syntax.separator and self._syntax.is_repeated:
            calls = f'"[" one ({quoted(self._syntax.separator)} one)* "]"'
        terminals = [f"{name}: {body}" for body, name in self._terminals.items()]
        terminals += [f"{name}[lazy]: {body}" for body, name in self._lazy.items()]
        return [
            f"calls: {calls} before {self._tag(end)}",
            f"one: {one_call}",
            *self._rules,
            *terminals,
        ]

    # -- arguments -------------------------------------------------------------------------------

    def _arguments(
        self, number: str, schema: Mapping[str, Any], root: Mapping[str, Any]
    ) -> tuple[str, list[str]]:
        """Write the rule for the arguments of a tool; return its name, and why it allows more."""
        reasons = [keyword for keyword in _UNSUPPORTED if keyword in schema]
        properties = schema.get("properties")
        known = dict(properties) if isinstance(properties, Mapping) else {}
        listed = schema.get("required")
        required = (
            [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
        )
        regular = _KEYWORD if self._syntax.is_quoted or self._syntax.quote else _NAME
        odd = [name for name in {**known, **dict.fromkeys(required)} if not regular.fullmatch(name)]
        wanted = {name: known.get(name, schema.get("additionalProperties", True))
                  for name in dict.fromkeys((*required, *known)) if name not in odd}  # fmt: skip
        reasons += [f"the name {name!r}" for name in odd]
        values: dict[str, str] = {}
        referring = sum(has_reference(part) for part in wanted.values())
        if referring and referring * len(json.dumps(schema)) > _FOLLOWED_CHARS_MAX:
            root, reasons = {}, [*reasons, "its references lead to too much"]
        for place, (name, inner) in enumerate(wanted.items()):
            value, inner_reason = self._value(f"{number}_{place}", inner, root)
            reasons += [f"{name}: {inner_reason}"] if inner_reason else []
            if value is not None:
                values[name] = value
        other = self._other(number, schema, root, (*known, *required))
        needed = [name for name in required if name in values]
        return self._in_any_order(f"args{number}", values, needed, other), reasons

    def _in_any_order(
        self, rule: str, values: Mapping[str, str], required: Sequence[str], other: str | None
    ) -> str:
        done = self._written(self._syntax.after_call) if self._syntax.after_call else '""'
        before, after = self._syntax.before_key, self._syntax.after_key
        written = {
            name: f"{self._written(before + name + after)} {value}"
            for name, value in values.items()
        }
        comma = quoted(self._syntax.separator) if self._syntax.separator else ""
        if not written or len(written) > ORDERED_MAX:
            # Optional arguments are left out here: their separators would need too many rules.
            wanted = written if not comma else {name: written[name] for name in required}
            parts = [part if name in required else f"({part})?" for name, part in wanted.items()]
            more = f"({other})*" if other is not None and not comma else ""
            if other is not None and not written:
                more = f"({other} ({comma} {other})*)?"
            self._rules.append(f"{rule}: {f' {comma} '.join(parts)} {more} {done}")
            return rule
        places = {name: bit for bit, name in enumerate(written)}
        condition = "true"
        for name in required:
            condition = f"and(bit_set({places[name]}), {condition})"
        following = f"{rule}_more" if comma else rule
        for current, before in {rule: "", following: comma}.items():
            choices = [f"{done} %if {condition}"]
            for name, argument in written.items():
                bit = places[name]
                choices.append(
                    f"{before} {argument} {following}::set_bit({bit}) %if bit_clear({bit})"
                )
            if other is not None:
                choices.append(f"{before} {other} {following}::_")
            self._rules.append(f"{current}::_: " + "\n  | ".join(choices))
        return f"{rule}::0x0"

    def _other(
        self, number: str, schema: Mapping[str, Any], root: Mapping[str, Any], known: Sequence[str]
    ) -> str | None:
        """Return the rule for an argument that the schema does not name, if it allows one."""
        wanted = schema.get("additionalProperties", True)
        if wanted is False or "patternProperties" in schema:
            return None
        value, _ = self._value(f"{number}_x", wanted, root)
        if value is None:
            return None
        name = without(_OTHER_NAME, one_of(list(known))) if known else _OTHER_NAME
        before, after = self._pieces(self._syntax.before_key), self._pieces(self._syntax.after_key)
        if all(piece[0] == '"' for piece in (*before, *after)):
            # One terminal, because it shares its beginning with the known names.
            return f"{self._terminal(' '.join([*before, f'({name})', *after]))} {value}"
        return f"{' '.join(before)} {self._terminal(name)} {' '.join(after)} {value}"

    # -- values ----------------------------------------------------------------------------------

    def _value(
        self, place: str, schema: object, root: Mapping[str, Any]
    ) -> tuple[str | None, str | None]:
        """Return the rule for a value and the tag after it, and why it allows more than the schema.

        The rule is ``None`` if no value matches the schema.
        """
        types = types_of(schema, root)
        if not types:
            return None, "no value matches it"
        if "string" not in types or self._syntax.is_quoted:
            return self._json(place, schema, root, types)
        plain = _length_bound(schema)
        if self._syntax.has_cdata and plain is not None and any(lengths(plain)):
            plain = None
        if plain is not None and types <= _OPTIONAL_TEXT:
            return self._any_string(plain, types)
        body, reason = self._string(schema, root, types)
        if reason == _NO_TERMINAL and types - STRING_ONLY:
            return self._json(place, schema, root, types - STRING_ONLY)
        end = self._pieces(self._syntax.after_value)
        if end[0][0] == '"':
            text = " ".join([self._terminal(f"({body}) {end[0]}"), *end[1:]])
        else:
            text = " ".join([self._terminal(body), *end])
        containers = [name for name in _CONTAINERS if name in types]
        if not containers:
            return text, reason
        rule, inner_reason = self._schemas.part_rule(schema, root, containers)
        return f"({text} | {self._rule(f'v{place}', rule)})", reason or inner_reason

    def _json(
        self, place: str, schema: object, root: Mapping[str, Any], types: frozenset[str]
    ) -> tuple[str, str | None]:
        rule, reason = self._schemas.part_rule(schema, root, types)
        is_narrowed = isinstance(schema, Mapping) and not schema.keys().isdisjoint(_NARROWING)
        words = [] if is_narrowed else sorted(types & _PYTHON.keys())
        choices = [rule, *(quoted(word) for name in words for word in _PYTHON[name])]
        return self._rule(f"v{place}", " | ".join(choices)), reason

    def _string(
        self, schema: object, root: Mapping[str, Any], types: frozenset[str]
    ) -> tuple[str, str | None]:
        """Return a terminal for a string or scalar, and why it allows more than the schema."""
        read_as = [_READ_AS[name] for name in sorted(types - STRING_ONLY)]
        forbidden = (containing(self._closing), *read_as)
        if self._syntax.has_cdata:
            forbidden += ("/<(?s:.*)/",)
        beside = "".join(f" | /{scalar}/" for scalar in _scalars(schema, types))
        if (excess := excess_of(schema, root)) is not None:
            return f"({without(ANY_TEXT, *forbidden)}){beside}", excess
        try:
            texts = text_terminal(schema, root) or ANY_TEXT
        except UnsupportedKeyword as error:
            return f"({without(ANY_TEXT, *forbidden)}){beside}", str(error)
        except (TypeError, ValueError) as error:
            return f"({without(ANY_TEXT, *forbidden)}){beside}", f"no schema: {error}"
        body = f"({without(f'({texts})', *forbidden)}){beside}"
        if self._schemas.refusal(f'start: T\nT: ({body}) "<"') is None:
            return body, None
        can_follow = self._schemas.refusal(f'start: T\nT: ({texts}) "<"') is None
        reason = _NO_TERMINAL if can_follow else "pattern"
        return f"({without(ANY_TEXT, *forbidden)}){beside}", reason

    def _any_string(
        self, schema: Mapping[str, Any], types: frozenset[str]
    ) -> tuple[str, str | None]:
        """Return the rule for a string that only its length restricts; cheapest as a lazy terminal.

        If the schema allows ``null``, so does the rule.
        """
        try:
            low, high = lengths(schema)
            body, reason = _sized(low, high, padded=self._syntax.is_padded), None
        except (TypeError, ValueError):
            low, high, body, reason = 0, None, "(?s:.)*", "its length"
        if self._syntax.has_cdata:
            body = _UNMARKED
        elif "null" in types:
            body = f"(?:{body}|null)"
        end = self._pieces(self._syntax.after_value)
        if end[0][0] != '"':
            # A long count and a forbidden text exceed the library; the tag is one token anyway.
            forbidden = [containing(self._closing)] if max(low, high or 0) <= LENGTH_MAX else []
            text = without(f"/{body}/", *forbidden)
            if self._syntax.has_cdata:
                text = f"({text}) | /{_MARKED}/"
            return " ".join([self._terminal(text), *end]), reason
        padding = "\\n?" if self._syntax.is_padded else ""
        bodies = [body, _MARKED] if self._syntax.has_cdata else [body]
        lazies = [f"/{one}{padding}{literal(self._closing)}/" for one in bodies]
        names = [self._lazy.setdefault(lazy, f"t{len(self._lazy)}") for lazy in lazies]
        name = names[0] if len(names) == 1 else f"({' | '.join(names)})"
        rest = self._syntax.after_value[
            self._syntax.after_value.index(self._closing) + len(self._closing) :
        ]
        return f"{name} {quoted(rest)}" if rest else name, reason

    def _rule(self, name: str, body: str) -> str:
        self._rules.append(f"{name}: {body}")
        return " ".join([name, *self._pieces(self._syntax.after_value)])

    # -- tags ------------------------------------------------------------------------------------

    def _terminal(self, body: str) -> str:
        return self._terminals.setdefault(body, f"T{len(self._terminals)}")

    def _written(self, text: str) -> str:
        return " ".join(self._pieces(text))

    def _pieces(self, text: str) -> list[str]:
        """Return a text as a grammar writes it: tags that are tokens are separate pieces."""
        pieces, plain, at = [], "", 0
        for match in _TAG.finditer(text):
            plain += text[at : match.start()]
            at = match.end()
            tag = self._tag(match[0])
            if tag.startswith('"'):
                plain += match[0]
                continue
            pieces += [quoted(plain)] if plain else []
            pieces.append(tag)
            plain = ""
        plain += text[at:]
        return [*pieces, quoted(plain)] if plain else pieces


def _length_bound(schema: object) -> Mapping[str, Any] | None:
    """Return the schema with the length of a string, ``None`` if more restricts the string."""
    if is_bound_by_length_alone(schema):
        return schema if isinstance(schema, Mapping) else {}
    known = schema if isinstance(schema, Mapping) else {}
    choices, others = known.get("anyOf"), {k: v for k, v in known.items() if k != "anyOf"}
    if not isinstance(choices, list) or not is_bound_by_length_alone(others):
        return None
    texts = [choice for choice in choices if "string" in types_of(choice, {})]
    is_alone = len(texts) == 1 and is_bound_by_length_alone(texts[0])
    return {**others, **texts[0]} if is_alone and isinstance(texts[0], Mapping) else None


def _sized(low: int, high: int | None, *, padded: bool) -> str:
    """Return a regular expression for a text with ``low`` to ``high`` characters."""
    if high is not None and high < low:
        raise ValueError("no text is so long and so short")
    if low == 0:
        return "(?s:.)*" if high is None else f"(?s:.){{0,{high}}}"
    # With padding, the last line break belongs to the syntax and must not count as a character.
    last = "[^\\n]" if padded else "(?s:.)"
    return f"(?s:.){{{low - 1},{'' if high is None else high - 1}}}{last}"


def _scalars(schema: object, types: frozenset[str]) -> list[str]:
    """Return regular expressions for the scalars that a schema allows besides strings."""
    known = schema if isinstance(schema, Mapping) else {}
    if "const" in known or isinstance(known.get("enum"), list):
        values = [known["const"]] if "const" in known else known["enum"]
        return [literal(json.dumps(value)) for value in values if type_of(value) in _SCALARS]
    choices = known.get("anyOf")
    if isinstance(choices, list) and len(known.keys() & _NARROWING) == 1:
        found = [_scalars(choice, types & types_of(choice, {})) for choice in choices]
        return [scalar for scalars in found for scalar in scalars]
    if known.keys() & _NARROWING:
        return []
    numbers = {"number"} if "number" in types else {"integer"}
    return [_SCALARS[name] for name in sorted(types & ({"boolean", "null"} | numbers))]
