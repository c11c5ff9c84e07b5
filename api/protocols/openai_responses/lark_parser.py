"""Parses Lark grammars, which constrain the input of OpenAI's custom tools.

Supported of https://lark-parser.readthedocs.io/en/stable/grammar.html: rules, terminals, operators,
ranges, aliases, priorities and ``%import common``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

#: Deepest nesting of parentheses.
_NESTING_MAX: Final = 64

_TOKEN: Final = re.compile(
    r"(?P<skip>(?:\s|//[^\n]*|\#[^\n]*)+)"
    r'|(?P<string>"(?:\\.|[^"\\\n])*"i?)'
    r"|(?P<regexp>/(?:\\.|[^/\\\n])+/[imslux]*)"
    r"|(?P<name>[?!]{0,2}[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<directive>%[a-z]+)"
    r"|(?P<number>-?\d{1,6})"
    r"|(?P<sign>\.\.|->|[:|()\[\]?*+~.,{}])"
)
_META: Final = re.compile(r"[\\.^$|()\[\]{}*+?&~#-]")
#: Regular expressions of the terminals of ``%import common``.
_COMMON: Final[Mapping[str, str]] = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
    "FLOAT": r"(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "NUMBER": r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[a-zA-Z_][a-zA-Z0-9_]*",
    "ESCAPED_STRING": r'"(?:\\.|[^"\\\n])*"',
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
}


class LarkError(Exception):
    """A text is not a Lark grammar; the message is the reason."""


@dataclass(frozen=True, slots=True)
class LarkText:
    """Text that matches a regular expression."""

    pattern: str


@dataclass(frozen=True, slots=True)
class LarkRef:
    """A reference to a rule or a terminal."""

    name: str


@dataclass(frozen=True, slots=True)
class LarkSequence:
    """All parts in order."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class LarkChoice:
    """One of the parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class LarkRepeat:
    """A repeated part; ``times`` is a quantifier of regular expressions."""

    part: Node
    times: str


Node = LarkText | LarkRef | LarkSequence | LarkChoice | LarkRepeat


class LarkParser:
    """Parses a grammar into nodes.

    Args:
        definition: The grammar.

    Attributes:
        rules: Rules and terminals by name.
        is_unsupported: Whether the grammar uses a feature that this parser does not support.
    """

    def __init__(self, definition: str) -> None:
        self._tokens = [*_tokens(definition), ("end", "")]
        self._position = 0
        self._nesting = 0
        self.rules: dict[str, Node] = {}
        self.is_unsupported = False

    def parse(self) -> None:
        """Parse the whole grammar.

        Raises:
            LarkError: The text is not a Lark grammar.
        """
        while self._kind != "end" and not self.is_unsupported:
            if self._kind == "directive":
                self._directive()
            elif self._kind == "name":
                self._definition()
            else:
                self._fail()
        for name in ("start", *sorted(_referenced_names(self.rules.values()))):
            if name not in self.rules and not self.is_unsupported:
                msg = f"there is no rule {name}"
                raise LarkError(msg)

    @property
    def _kind(self) -> str:
        return self._tokens[self._position][0]

    @property
    def _text(self) -> str:
        return self._tokens[self._position][1]

    def _next(self) -> str:
        text = self._text
        self._position += 1
        return text

    def _takes(self, sign: str) -> bool:
        if self._kind != "sign" or self._text != sign:
            return False
        self._position += 1
        return True

    def _expect(self, sign: str) -> None:
        if not self._takes(sign):
            self._fail()

    def _expect_name(self) -> str:
        if self._kind != "name":
            self._fail()
        return self._next().lstrip("?!")

    def _fail(self) -> None:
        msg = f"{self._text or 'the end'!r} is not expected"
        raise LarkError(msg)

    def _directive(self) -> None:
        if self._next() != "%import" or self._kind != "name" or self._next() != "common":
            self.is_unsupported = True
            return
        if self._takes("."):
            name = self._expect_name()
            self._import(name, self._expect_name() if self._takes("->") else name)
            return
        self._expect("(")
        while not self._takes(")"):
            name = self._expect_name()
            self._import(name, name)
            self._takes(",")

    def _import(self, name: str, known_as: str) -> None:
        if name not in _COMMON:
            self.is_unsupported = True
            return
        self.rules[known_as] = LarkText(f"(?:{_COMMON[name]})")

    def _definition(self) -> None:
        name = self._expect_name()
        if self._takes("{"):
            self.is_unsupported = True  # a template
            return
        if self._takes("."):
            self._next()
        self._expect(":")
        self.rules[name] = self._choice()

    def _choice(self) -> Node:
        self._nesting += 1
        if self._nesting > _NESTING_MAX:
            msg = f"parentheses are more than {_NESTING_MAX} deep"
            raise LarkError(msg)
        self._takes("|")
        parts = [self._sequence()]
        while self._takes("|"):
            parts.append(self._sequence())
        self._nesting -= 1
        return parts[0] if len(parts) == 1 else LarkChoice(tuple(parts))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while (atom := self._atom()) is not None:
            parts.append(self._repeated(atom))
        if self._takes("->"):
            self._expect_name()
        return parts[0] if len(parts) == 1 else LarkSequence(tuple(parts))

    def _repeated(self, atom: Node) -> Node:
        for sign in "?*+":
            if self._takes(sign):
                return LarkRepeat(atom, sign)
        if self._takes("~"):
            least = self._number()
            most = self._number() if self._takes("..") else least
            return LarkRepeat(atom, f"{{{least},{most}}}")
        return atom

    def _number(self) -> int:
        if self._kind != "number":
            self._fail()
        return int(self._next())

    def _atom(self) -> Node | None:
        if self._kind == "string":
            return self._string()
        if self._kind == "regexp":
            return LarkText(_regexp(self._next()))
        if self._kind == "name" and not self._begins_definition():
            return LarkRef(self._expect_name())
        if self._takes("("):
            inner = self._choice()
            self._expect(")")
            return inner
        if self._takes("["):
            inner = self._choice()
            self._expect("]")
            return LarkRepeat(inner, "?")
        return None

    def _begins_definition(self) -> bool:
        (kind, text), (more, _) = (
            self._tokens[self._position + 1],
            self._tokens[min(self._position + 2, len(self._tokens) - 1)],
        )
        return kind == "sign" and (text in (":", "{") or (text == "." and more == "number"))

    def _string(self) -> Node:
        first = self._next()
        if self._takes(".."):
            if self._kind != "string":
                self._fail()
            ends = _literal(first), _literal(self._next())
            if any(len(end) != 1 for end in ends):
                msg = "a range has one character at each end"
                raise LarkError(msg)
            return LarkText(f"[{_escaped(ends[0])}-{_escaped(ends[1])}]")
        text = _escaped(_literal(first))
        return LarkText(f"(?i:{text})" if first.endswith("i") else text)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            msg = f"{text[at : at + 16]!r} is not expected"
            raise LarkError(msg)
        at = found.end()
        assert found.lastgroup is not None, "each choice has a name"  # noqa: S101 - type checker
        if found.lastgroup != "skip":
            yield found.lastgroup, found[0]


def _referenced_names(nodes: Iterable[Node]) -> set[str]:
    """Return the names of all references in nodes."""
    found: set[str] = set()
    left = list(nodes)
    while left:
        match left.pop():
            case LarkRef(name):
                found.add(name)
            case LarkSequence(parts) | LarkChoice(parts):
                left.extend(parts)
            case LarkRepeat(part, _):
                left.append(part)
            case _:
                pass
    return found


def _literal(token: str) -> str:
    try:
        text = ast.literal_eval(token.removesuffix("i"))
    except (ValueError, SyntaxError) as error:
        msg = f"{token} is no string"
        raise LarkError(msg) from error
    return str(text)


def _escaped(text: str) -> str:
    return _META.sub(r"\\\g<0>", text).replace("\n", r"\n").replace("\r", r"\r")


def _regexp(token: str) -> str:
    body, _, flags = token[1:].rpartition("/")
    body = body.replace(r"\/", "/")
    wanted = "".join(sorted(set(flags) & set("imsx")))
    return f"(?{wanted}:{body})" if wanted else f"(?:{body})"
