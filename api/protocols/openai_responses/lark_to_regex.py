"""Lark grammars as one regular expression, which a JSON schema can hold a string to.

A rule that refers to itself is written out as deep as there is room for: what is said is then a
text of the grammar, and texts that nest deeper are not said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from api.protocols.openai_responses.lark_parser import (
    LarkChoice,
    LarkParser,
    LarkRef,
    LarkRepeat,
    LarkSequence,
    LarkText,
    Node,
)

#: Of the expression; some grammars multiply when they are written out.
PATTERN_CHARS_MAX: Final = 16_384
#: How deep a rule may stand in itself, tried from the first on.
_DEPTHS: Final = (6, 4, 3, 2, 1)
_STEPS_MAX: Final = 5_000
#: Of rules in rules.
_LEVELS_MAX: Final = 64


def regex_of_grammar(definition: str) -> str | None:
    """Return an expression for the texts of a grammar.

    Args:
        definition: In Lark's syntax, with a rule ``start``.

    Returns:
        ``None`` if the grammar uses what no expression can say (``%ignore``, templates), or has no
        text short enough.

    Raises:
        LarkError: It is no grammar.
    """
    reader = LarkParser(definition)
    reader.read()
    if reader.unread:
        return None
    for depth in _DEPTHS:
        writer = _RegexWriter(reader.rules, depth)
        try:
            pattern = writer.rule("start", 0)
        except _RegexTooLong:
            pattern = None
        if pattern is not None and len(pattern) <= PATTERN_CHARS_MAX:
            return pattern
        if not writer.is_shortened:
            return None
    return None


class _RegexTooLong(Exception):
    pass


class _RegexWriter:
    """Writes nodes out.

    Args:
        rules: By name.
        depth: How often a rule may stand in itself.

    Attributes:
        is_shortened: Whether a rule stood deeper in itself.
    """

    def __init__(self, rules: Mapping[str, Node], depth: int) -> None:
        self._rules = rules
        self._depth = depth
        self._open: dict[str, int] = {}
        self._steps = 0
        self.is_shortened = False

    def rule(self, name: str, level: int) -> str | None:
        """Return what a rule stands for, ``None`` if it would stand too deep in itself.

        Raises:
            _TooMuch: It is too long.
        """
        if self._open.get(name, 0) >= self._depth:
            self.is_shortened = True
            return None
        if level > _LEVELS_MAX:
            raise _RegexTooLong
        self._open[name] = self._open.get(name, 0) + 1
        written = self._node(self._rules[name], level + 1)
        self._open[name] -= 1
        return written

    def _node(self, node: Node, level: int) -> str | None:
        self._steps += 1
        if self._steps > _STEPS_MAX:
            raise _RegexTooLong
        match node:
            case LarkText(pattern):
                return pattern
            case LarkRef(name):
                return self.rule(name, level)
            case LarkSequence(parts):
                return self._sequence(parts, level)
            case LarkChoice(parts):
                said = [one for part in parts if (one := self._node(part, level)) is not None]
                return f"(?:{'|'.join(said)})" if said else None
            case LarkRepeat(part, times):
                inner = self._node(part, level)
                if inner is None:
                    return "" if times in "?*" or times.startswith("{0,") else None
                return f"(?:{inner}){times}"

    def _sequence(self, parts: tuple[Node, ...], level: int) -> str | None:
        said: list[str] = []
        for part in parts:
            one = self._node(part, level)
            if one is None:
                return None
            said.append(one)
        whole = "".join(said)
        if len(whole) > PATTERN_CHARS_MAX:
            raise _RegexTooLong
        return whole
