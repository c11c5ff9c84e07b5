"""Write the grammars of calls whose arguments stand between marks.

Arguments come in any order, each at most once, and a call ends when all that are required are
there: models of these families write them as it occurs to them. The library counts them in a
number that a rule carries along, a bit for each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from worker.engine.grammar.ports import GrammarRefused
from worker.engine.grammar.schema_rules import SchemaRules
from worker.engine.grammar.text_grammar import (
    ANY_TEXT,
    LENGTH_MAX,
    UnsupportedKeyword,
    containing,
    is_bound_by_length_alone,
    lengths,
    literal,
    one_of,
    quoted,
    text_terminal,
    without,
)
from worker.engine.output.tool_calls.json_types import STRING_ONLY, type_of, types_of
from worker.engine.output.tool_calls.reader import Tool
from worker.engine.output.tool_calls.tool_syntax import ToolSyntax

#: Bits of the number that the library's rules can carry.
ORDERED_MAX: Final = 64
_MARK: Final = re.compile(r"<\|[^|<>]*\|>|</?[^<>\s]+>")
_NAME: Final = re.compile(r"[^\s<>\"'][^<>\"'\n]*(?<!\s)")
_KEYWORD: Final = re.compile(r"[A-Za-z0-9_.-]+")
_OTHER_NAME: Final = "/[A-Za-z_][A-Za-z0-9_]*/"
_CONTAINERS: Final = ("object", "array")
_WHOLE: Final = "-?(?:0|[1-9][0-9]{0,17})"
#: How scalars are written beside texts.
_SCALARS: Final[Mapping[str, str]] = {
    "boolean": "true|false",
    "null": "null",
    "integer": _WHOLE,
    "number": rf"{_WHOLE}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{{1,2}})?",
}
#: What of that a reader would take for one of them.
_READ_AS: Final[Mapping[str, str]] = {
    "boolean": "/true|false/",
    "null": "/null/",
    "integer": "/-?[0-9]+/",
    "number": r"/-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/",
    "object": r"/\{(?s:.*)/",
    "array": r"/\[(?s:.*)/",
}
_NO_TEXT: Final = "none of its texts can be written"
#: What may be left out.
_OPTIONAL_TEXT: Final = frozenset({"string", "null"})
#: Models that learnt from templates which print Python's values write them so.
_PYTHON: Final[Mapping[str, tuple[str, ...]]] = {"boolean": ("True", "False"), "null": ("None",)}
_NARROWING: Final = frozenset(
    {
        "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
        "multipleOf", "allOf", "anyOf", "oneOf", "$ref", "not", "if",
    }
)  # fmt: skip
#: Keywords on all arguments together that are not followed.
_UNKEPT: Final = (
    "patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentRequired",
    "dependentSchemas", "dependencies", "unevaluatedProperties", "anyOf", "oneOf", "allOf", "not",
    "if", "$ref", "enum", "const",
)  # fmt: skip


class TaggedGrammar:
    """The rules of the calls of one family, of some tools.

    Args:
        syntax: How the family writes them.
        rules: Which schemas the library can follow.
        tag: How a grammar writes a tag, which may be a token of its own.
    """

    def __init__(self, syntax: ToolSyntax, rules: SchemaRules, tag: Callable[[str], str]) -> None:
        self._syntax = syntax
        self._schemas = rules
        self._tag = tag
        self._rules: list[str] = []
        self._terminals: dict[str, str] = {}
        self._lazy: dict[str, str] = {}
        self._closing = syntax.after_value.strip()
        #: Why a tool is held to less than its schema, by its name.
        self.wider: dict[str, str] = {}

    def rules(self, tools: Sequence[Tool], end: str) -> list[str]:
        """Return the rules behind ``calls``, what follows the tag before calls.

        Args:
            tools: What may be called.
            end: The tag behind calls.
        """
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
            named.append(f"({' | '.join(others)}) {self._arguments(number, function, schema)}")
        if not named:
            msg = "no tool has a name that can be written"
            raise GrammarRefused(msg)
        one = " | ".join(named)
        calls = "one+" if self._syntax.is_repeated else "one"
        if self._syntax.separator:
            calls = f'"[" one ({quoted(self._syntax.separator)} one)* "]"'
        terminals = [f"{name}: {body}" for body, name in self._terminals.items()]
        terminals += [f"{name}[lazy]: {body}" for body, name in self._lazy.items()]
        return [f"calls: {calls} before {self._tag(end)}", f"one: {one}", *self._rules, *terminals]

    # -- arguments -------------------------------------------------------------------------------

    def _arguments(
        self, number: int, function: Mapping[str, Any], schema: Mapping[str, Any]
    ) -> str:
        """Write the rule for the arguments of a tool and return how it is called."""
        why = [keyword for keyword in _UNKEPT if keyword in schema]
        properties = schema.get("properties")
        known = dict(properties) if isinstance(properties, Mapping) else {}
        listed = schema.get("required")
        required = (
            [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
        )
        regular = _KEYWORD if self._syntax.is_quoted else _NAME
        odd = [name for name in {**known, **dict.fromkeys(required)} if not regular.fullmatch(name)]
        wanted = {name: known.get(name, schema.get("additionalProperties", True))
                  for name in dict.fromkeys((*required, *known)) if name not in odd}  # fmt: skip
        why += [f"the name {name!r}" for name in odd]
        values: dict[str, str] = {}
        for place, (name, inner) in enumerate(wanted.items()):
            value, inner_why = self._value(f"{number}_{place}", inner, schema)
            why += [f"{name}: {inner_why}"] if inner_why else []
            if value is not None:
                values[name] = value
        if why:
            self.wider[function["name"]] = ", ".join(why)
        other = self._other(number, schema, (*known, *required))
        needed = [name for name in required if name in values]
        return self._in_any_order(f"args{number}", values, needed, other)

    def _in_any_order(
        self, rule: str, values: Mapping[str, str], required: Sequence[str], other: str | None
    ) -> str:
        done = self._written(self._syntax.after_call) if self._syntax.after_call else '""'
        written = {name: f"{self._before(name)} {value}" for name, value in values.items()}
        comma = quoted(self._syntax.separator) if self._syntax.separator else ""
        if not written or len(written) > ORDERED_MAX:
            # Where something may be left out, commas are not worth the rules.
            wanted = written if not comma else {name: written[name] for name in required}
            parts = [one if name in required else f"({one})?" for name, one in wanted.items()]
            more = f"({other})*" if other is not None and not comma else ""
            self._rules.append(f"{rule}: {f' {comma} '.join(parts)} {more} {done}")
            return rule
        places = {name: bit for bit, name in enumerate(written)}
        condition = "true"
        for name in required:
            condition = f"and(bit_set({places[name]}), {condition})"
        following = f"{rule}_more" if comma else rule
        for current, before in {rule: "", following: comma}.items():
            choices = [f"{done} %if {condition}"]
            for name, one in written.items():
                bit = places[name]
                choices.append(f"{before} {one} {following}::set_bit({bit}) %if bit_clear({bit})")
            if other is not None:
                choices.append(f"{before} {other} {following}::_")
            self._rules.append(f"{current}::_: " + "\n  | ".join(choices))
        return f"{rule}::0x0"

    def _before(self, name: str) -> str:
        return self._written(self._syntax.before_key + name + self._syntax.after_key)

    def _other(self, number: int, schema: Mapping[str, Any], known: Sequence[str]) -> str | None:
        """Return the rule for an argument that the schema does not name, if it allows one."""
        wanted = schema.get("additionalProperties", True)
        if wanted is False or "patternProperties" in schema:
            return None
        value, _ = self._value(f"{number}_x", wanted, schema)
        if value is None:
            return None
        name = without(_OTHER_NAME, one_of(list(known))) if known else _OTHER_NAME
        key, keyed = self._pieces(self._syntax.before_key), self._pieces(self._syntax.after_key)
        if all(piece[0] == '"' for piece in (*key, *keyed)):
            # One piece, since the names that are known begin in the same way.
            return f"{self._terminal(' '.join([*key, f'({name})', *keyed]))} {value}"
        return f"{' '.join(key)} {self._terminal(name)} {' '.join(keyed)} {value}"

    # -- values ----------------------------------------------------------------------------------

    def _value(
        self, place: str, schema: object, root: Mapping[str, Any]
    ) -> tuple[str | None, str | None]:
        """Return the rule for a value and the mark behind it, and why it is wider, if it is.

        There is no rule for what no value matches.
        """
        kinds = types_of(schema, root)
        if not kinds:
            return None, "no value matches it"
        if "string" not in kinds or self._syntax.is_quoted:
            return self._json(place, schema, root, kinds)
        plain = _of_any_text(schema)
        if plain is not None and kinds <= _OPTIONAL_TEXT:
            return self._any_text(plain, kinds)
        body, why = self._text(schema, root, kinds)
        if why == _NO_TEXT and kinds - STRING_ONLY:
            return self._json(place, schema, root, kinds - STRING_ONLY)
        end = self._pieces(self._syntax.after_value)
        if end[0][0] == '"':
            text = " ".join([self._terminal(f"({body}) {end[0]}"), *end[1:]])
        else:
            text = " ".join([self._terminal(body), *end])
        containers = [kind for kind in _CONTAINERS if kind in kinds]
        if not containers:
            return text, why
        rule, inner_why = self._schemas.part_rule(schema, root, containers)
        return f"({text} | {self._rule(f'v{place}', rule)})", why or inner_why

    def _json(
        self, place: str, schema: object, root: Mapping[str, Any], kinds: frozenset[str]
    ) -> tuple[str, str | None]:
        rule, why = self._schemas.part_rule(schema, root, kinds)
        choices = [rule, *self._python(schema, kinds)]
        return self._rule(f"v{place}", " | ".join(choices)), why

    def _text(
        self, schema: object, root: Mapping[str, Any], kinds: frozenset[str]
    ) -> tuple[str, str | None]:
        """Return a terminal for a text or a scalar in its place, and why it is wider, if it is."""
        read_as = [_READ_AS[kind] for kind in sorted(kinds - STRING_ONLY)]
        forbidden = (containing(self._closing), *read_as)
        beside = "".join(f" | /{scalar}/" for scalar in _scalars(schema, kinds))
        try:
            texts = text_terminal(schema, root) or ANY_TEXT
        except UnsupportedKeyword as error:
            return f"({without(ANY_TEXT, *forbidden)}){beside}", str(error)
        except (TypeError, ValueError) as error:
            return f"({without(ANY_TEXT, *forbidden)}){beside}", f"no schema: {error}"
        body = f"({without(f'({texts})', *forbidden)}){beside}"
        if self._schemas.refusal(f'start: T\nT: ({body}) "<"') is None:
            return body, None
        why = _NO_TEXT if self._can_follow(texts) else "pattern"
        return f"({without(ANY_TEXT, *forbidden)}){beside}", why

    def _can_follow(self, texts: str) -> bool:
        return self._schemas.refusal(f'start: T\nT: ({texts}) "<"') is None

    def _any_text(self, schema: Mapping[str, Any], kinds: frozenset[str]) -> tuple[str, str | None]:
        """Return the rule for a text of some length, which costs least if it ends lazily.

        A ``null`` in its place is read as such, and allowed.
        """
        try:
            low, high = lengths(schema)
            body, why = _sized(low, high, padded=self._syntax.is_padded), None
        except (TypeError, ValueError):
            low, high, body, why = 0, None, "(?s:.)*", "its length"
        if "null" in kinds:
            body = f"(?:{body}|null)"
        end = self._pieces(self._syntax.after_value)
        if end[0][0] != '"':
            # The library cannot count far and look for a text at once; the mark is a token anyway.
            forbidden = [containing(self._closing)] if max(low, high or 0) <= LENGTH_MAX else []
            return " ".join([self._terminal(without(f"/{body}/", *forbidden)), *end]), why
        padding = "\\n?" if self._syntax.is_padded else ""
        lazy = f"/{body}{padding}{literal(self._closing)}/"
        name = self._lazy.setdefault(lazy, f"t{len(self._lazy)}")
        behind = self._syntax.after_value[
            self._syntax.after_value.index(self._closing) + len(self._closing) :
        ]
        return f"{name} {quoted(behind)}" if behind else name, why

    def _python(self, schema: object, kinds: frozenset[str]) -> list[str]:
        if isinstance(schema, Mapping) and not schema.keys().isdisjoint(_NARROWING):
            return []
        return [quoted(word) for kind in sorted(kinds & _PYTHON.keys()) for word in _PYTHON[kind]]

    def _rule(self, name: str, body: str) -> str:
        self._rules.append(f"{name}: {body}")
        return " ".join([name, *self._pieces(self._syntax.after_value)])

    # -- marks -----------------------------------------------------------------------------------

    def _terminal(self, body: str) -> str:
        return self._terminals.setdefault(body, f"T{len(self._terminals)}")

    def _written(self, text: str) -> str:
        return " ".join(self._pieces(text))

    def _pieces(self, text: str) -> list[str]:
        """Return a text as a grammar writes it: tags that are tokens stand alone."""
        pieces, plain, at = [], "", 0
        for match in _MARK.finditer(text):
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


def _of_any_text(schema: object) -> Mapping[str, Any] | None:
    """Return what says how long a text must be, ``None`` if more is asked of it."""
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
    """Return a regular expression for a text of some length."""
    if high is not None and high < low:
        msg = "no text is so long and so short"
        raise ValueError(msg)
    if low == 0:
        return "(?s:.)*" if high is None else f"(?s:.){{0,{high}}}"
    # Which line break at the end belongs to the marks must be plain where the length counts.
    last = "[^\\n]" if padded else "(?s:.)"
    return f"(?s:.){{{low - 1},{'' if high is None else high - 1}}}{last}"


def _scalars(schema: object, kinds: frozenset[str]) -> list[str]:
    """Return what may stand beside texts, where it is plain which values are allowed."""
    known = schema if isinstance(schema, Mapping) else {}
    if "const" in known or isinstance(known.get("enum"), list):
        values = [known["const"]] if "const" in known else known["enum"]
        return [literal(json.dumps(one)) for one in values if type_of(one) in _SCALARS]
    choices = known.get("anyOf")
    if isinstance(choices, list) and len(known.keys() & _NARROWING) == 1:
        found = [_scalars(choice, kinds & types_of(choice, {})) for choice in choices]
        return [one for several in found for one in several]
    if known.keys() & _NARROWING:
        return []
    numbers = {"number"} if "number" in kinds else {"integer"}
    return [_SCALARS[kind] for kind in sorted(kinds & ({"boolean", "null"} | numbers))]
