"""Read JSON as a model writes it, and the types that a schema allows."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final

from domain.chat.schema_bounds import resolve_reference

_SPACE = " \t\n\r"
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_ESCAPED = '"\\/bfnrt'
_HEX = "0123456789abcdefABCDEF"
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_BEGUN = re.compile(
    r"-?(?:(?:0|[1-9][0-9]*)(?:\.(?:[0-9]+(?:[eE](?:[+-]?[0-9]*)?)?)?|[eE](?:[+-]?[0-9]*)?)?)?"
)
#: Most nested objects and arrays, as in request bodies.
NESTING_MAX = 64


class MalformedJson(ValueError):
    """The text cannot be continued to valid JSON."""


class _State(Enum):
    VALUE = auto()
    FIRST_VALUE = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    NEXT = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    LITERAL = auto()
    NUMBER = auto()
    DONE = auto()


class JsonValue:
    """A reader of one JSON value. The text that ``feed`` has returned is a prefix of valid JSON."""

    def __init__(self) -> None:
        self.is_complete = False
        self._state = _State.VALUE
        #: Open containers, by the character that closes each.
        self._open: list[str] = []
        self._is_key = False
        #: The rest of a literal, one dot for each missing digit of an escape, or a number so far.
        self._rest = ""

    @property
    def is_inside_string(self) -> bool:
        """Whether the next character belongs to a string, or ends it."""
        return self._state in _IN_STRING

    def feed(self, char: str) -> str | None:
        """Feed a character and return it as valid JSON; ``None`` if it follows the value, a number.

        Control characters inside a string, which models write unescaped, are returned escaped.

        Raises:
            MalformedJson: ``char`` cannot follow here.
        """
        assert not self.is_complete, "the value is over"
        if self._state in _IN_STRING:
            return self._in_string(char)
        if self._state is _State.NUMBER:
            return self._in_number(char)
        if self._state is _State.LITERAL:
            return self._in_literal(char)
        if char in _SPACE:
            return char
        self._structure(char)
        return char

    def _structure(self, char: str) -> None:
        state = self._state
        if state is _State.NEXT:
            self._after_value(char)
        elif state is _State.COLON:
            self._expect(char == ":", char)
            self._state = _State.VALUE
        elif state in (_State.FIRST_KEY, _State.KEY) and char == '"':
            self._state, self._is_key = _State.STRING, True
        elif (state is _State.FIRST_KEY and char == "}") or (
            state is _State.FIRST_VALUE and char == "]"
        ):
            self._close()
        else:
            self._expect(state in (_State.VALUE, _State.FIRST_VALUE), char)
            self._begin(char)

    def _begin(self, char: str) -> None:
        if char in "{[":
            self._expect(len(self._open) < NESTING_MAX, char)
            self._open.append("}" if char == "{" else "]")
            self._state = _State.FIRST_KEY if char == "{" else _State.FIRST_VALUE
        elif char == '"':
            self._state, self._is_key = _State.STRING, False
        elif char in _LITERALS:
            self._state, self._rest = _State.LITERAL, _LITERALS[char][1:]
        else:
            self._expect(char in "-0123456789", char)
            self._state, self._rest = _State.NUMBER, char

    def _after_value(self, char: str) -> None:
        closer = self._open[-1]
        if char == ",":
            self._state = _State.KEY if closer == "}" else _State.VALUE
        else:
            self._expect(char == closer, char)
            self._close()

    def _close(self) -> None:
        self._open.pop()
        self._value_ended()

    def _value_ended(self) -> None:
        self._state = _State.NEXT if self._open else _State.DONE
        self.is_complete = not self._open

    def _in_string(self, char: str) -> str:
        if self._state is _State.STRING:
            return self._plain(char)
        if self._state is _State.HEX:
            self._expect(char in _HEX, char)
            self._rest = self._rest[1:]
            self._state = _State.HEX if self._rest else _State.STRING
        elif char == "u":
            self._state, self._rest = _State.HEX, "...."
        else:
            self._expect(char in _ESCAPED, char)
            self._state = _State.STRING
        return char

    def _plain(self, char: str) -> str:
        if char == "\\":
            self._state = _State.ESCAPE
        elif char == '"':
            if self._is_key:
                self._state = _State.COLON
            else:
                self._value_ended()
        elif char < " ":
            return f"\\u{ord(char):04x}"
        return char

    def _in_literal(self, char: str) -> str:
        self._expect(char == self._rest[0], char)
        self._rest = self._rest[1:]
        if not self._rest:
            self._value_ended()
        return char

    def _in_number(self, char: str) -> str | None:
        if char in "+-.eE0123456789":
            self._rest += char
            self._expect(_NUMBER_BEGUN.fullmatch(self._rest) is not None, char)
            return char
        self._expect(_NUMBER.fullmatch(self._rest) is not None, char)
        self._value_ended()
        if self.is_complete:
            return None
        return self.feed(char)

    def _expect(self, condition: bool, char: str) -> None:  # noqa: FBT001 - reads as an assert
        if not condition:
            raise MalformedJson(f"{char!r} cannot follow here")


_IN_STRING = frozenset({_State.STRING, _State.ESCAPE, _State.HEX})


ALL_TYPES: Final = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
STRING_ONLY: Final = frozenset({"string"})
#: Most references followed in a row.
_REFERENCES_MAX: Final = 16
#: Python's names of types, which some schemas contain.
_TYPE_ALIASES: Final[Mapping[str, str]] = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "dict": "object",
    "list": "array",
}
#: First characters of values that are no strings.
_JSON_BEGINS: Final = frozenset("{[-0123456789tfn")
_TYPE_NAMES: Final[Mapping[type, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
}
_TYPE_LITERALS: Final[Mapping[str, tuple[str, str]]] = {
    "true": ("boolean", "true"),
    "false": ("boolean", "false"),
    "null": ("null", "null"),
    "none": ("null", "null"),
}


def types_of(schema: object, root: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that a schema allows; ``number`` includes ``integer``.

    Args:
        schema: Any value; one that is no schema allows all types.
    """
    return SchemaTypes(root).of(schema)


class SchemaTypes:
    """Finds the types that the parts of one schema allow.

    Each part is read once at each depth, because references may point to the same part, or to
    each other, exponentially often.

    Args:
        root: The schema that references point into; neither it nor its parts change.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        #: By the identity of the part, and the references followed before it.
        self._found: dict[tuple[int, int], frozenset[str]] = {}

    def of(self, schema: object, depth: int = 0) -> frozenset[str]:
        """Return the types that a part allows, all if it is no schema; see ``types_of``."""
        if schema is False:
            return frozenset()
        if not isinstance(schema, Mapping) or depth > _REFERENCES_MAX:
            return ALL_TYPES
        place = id(schema), depth
        if place not in self._found:
            types = _declared_types(schema.get("type")) & _value_types(schema)
            for choices in _parts(schema, self._root):
                types &= frozenset().union(*(self.of(one, depth + 1) for one in choices))
            self._found[place] = types
        return self._found[place]


def _parts(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[list[object]]:
    """Return the subschemas that a value must match as well, each as a list of alternatives."""
    parts: list[list[object]] = [
        schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)
    ]
    all_of = schema.get("allOf")
    parts += [[part] for part in all_of] if isinstance(all_of, list) else []
    if isinstance(schema.get("$ref"), str):
        parts.append([resolve_reference(schema["$ref"], root)])
    return parts


def _value_types(schema: Mapping[str, Any]) -> frozenset[str]:
    types = ALL_TYPES if "const" not in schema else frozenset({type_of(schema["const"])})
    if isinstance(schema.get("enum"), list):
        types &= {type_of(value) for value in schema["enum"]}
    return types


def argument_schema(schema: Mapping[str, Any], name: str) -> object:
    """Return the schema of one argument, given the schema of all arguments."""
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return schema.get("additionalProperties", True)


def type_of(value: object) -> str:
    """Return the narrowest JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "object"
    return _TYPE_NAMES.get(type(value), "array")


def value_json(text: str, types: frozenset[str]) -> str:
    """Return the JSON of a text between tags.

    If the schema allows strings, the text is a string, unless it is exactly the JSON of another
    allowed type. Otherwise the text is read as JSON, else as a Python literal, else as a string.
    """
    if "string" in types or not types:
        found = None if types <= STRING_ONLY or text != text.strip() else _json_in(text)
        is_other = found is not None and type_of(json.loads(found)) in types - STRING_ONLY
        return found if found is not None and is_other else json_string(text)
    stripped = text.strip()
    type_name, literal = _TYPE_LITERALS.get(stripped.lower(), ("", ""))
    if type_name in types:
        return literal
    found = _json_in(stripped)
    return found if found is not None else _python_in(stripped)


def json_string(text: str) -> str:
    """Return a text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def _declared_types(declared: object) -> frozenset[str]:
    named = [declared] if isinstance(declared, str) else declared
    if not isinstance(named, list):
        return ALL_TYPES
    types = {_TYPE_ALIASES.get(name, name) for name in named if isinstance(name, str)} & ALL_TYPES
    # An unknown type restricts nothing.
    return frozenset(types | {"integer"} if "number" in types else types) or ALL_TYPES


def _json_in(text: str) -> str | None:
    """Return a text as valid JSON, ``None`` if it is a string or not exactly one value."""
    if text[:1] not in _JSON_BEGINS:
        return None
    value, valid = JsonValue(), ""
    try:
        for char in text:
            if value.is_complete:
                return None
            piece = value.feed(char)
            if piece is None:
                return None
            valid += piece
        json.loads(valid)
    except (MalformedJson, ValueError):
        return None
    return valid


def _python_in(text: str) -> str:
    try:
        return json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return json_string(text)
