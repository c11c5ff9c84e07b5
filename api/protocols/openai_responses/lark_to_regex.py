"""Converts a Lark grammar to one regular expression, with which a JSON schema constrains a string.

A recursive rule is expanded to the greatest depth whose expression is short enough. The expression
then matches only texts of the grammar, but not the texts that nest deeper.
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

#: Longest expression, in characters; the expansion of some grammars grows exponentially.
PATTERN_CHARS_MAX: Final = 16_384
#: Recursion depths, in the order in which they are tried.
_DEPTHS: Final = (6, 4, 3, 2, 1)
#: Most nodes that one expansion may visit.
_STEPS_MAX: Final = 5_000
#: Deepest nesting of rules.
_LEVELS_MAX: Final = 64


def regex_of_grammar(definition: str) -> str | None:
    """Return an expression for the texts of a grammar.

    Args:
        definition: A Lark grammar with a rule ``start``.

    Returns:
        ``None`` if the grammar uses a feature that no expression has (``%ignore``, templates), or
        if every expression is too long.

    Raises:
        LarkError: The definition is not a Lark grammar.
    """
    parser = LarkParser(definition)
    parser.parse()
    if parser.is_unsupported:
        return None
    for depth in _DEPTHS:
        writer = _RegexWriter(parser.rules, depth)
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
    """Expands nodes to an expression.

    Args:
        rules: Rules and terminals by name.
        depth: Most recursions of a rule.

    Attributes:
        is_shortened: Whether the grammar recurses deeper than ``depth``.
    """

    def __init__(self, rules: Mapping[str, Node], depth: int) -> None:
        self._rules = rules
        self._depth = depth
        self._open: dict[str, int] = {}
        self._steps = 0
        self.is_shortened = False

    def rule(self, name: str, level: int) -> str | None:
        """Return the expression of a rule, ``None`` if it recurses too deep.

        Raises:
            _RegexTooLong: The expansion takes too many steps or levels.
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
                choices = [one for part in parts if (one := self._node(part, level)) is not None]
                return f"(?:{'|'.join(choices)})" if choices else None
            case LarkRepeat(part, times):
                inner = self._node(part, level)
                if inner is None:
                    return "" if times in "?*" or times.startswith("{0,") else None
                return f"(?:{inner}){times}"

    def _sequence(self, parts: tuple[Node, ...], level: int) -> str | None:
        expressions: list[str] = []
        for part in parts:
            one = self._node(part, level)
            if one is None:
                return None
            expressions.append(one)
        whole = "".join(expressions)
        if len(whole) > PATTERN_CHARS_MAX:
            raise _RegexTooLong
        return whole
