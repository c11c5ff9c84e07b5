"""Grammars of custom tools as expressions: which texts they let pass, and what is refused."""

from __future__ import annotations

import re
from itertools import product

import pytest

from api.protocols.openai_responses.lark_parser import LarkError
from api.protocols.openai_responses.lark_to_regex import PATTERN_CHARS_MAX, regex_of_grammar

#: Like that of coding agents: lines, each with a mark before it.
_PATCH = r"""
start: begin hunk+ end
begin: "*** Begin" LF
end: "*** End" LF?
hunk: add | delete   // two kinds
add: "*** Add: " filename LF line+
delete: "*** Delete: " filename LF
filename: /(.+)/
line: "+" /(.*)/ LF -> line
%import common.LF
"""
_SUM = """
start: expr
?expr: term (SP "+" SP term)* -> add
     | term
term.2: INT | "(" expr ")"
SP: " "
%import common (INT, WS)
"""


@pytest.mark.parametrize(
    ("grammar", "text", "fits"),
    [
        (_PATCH, '*** Begin\n*** Add: a "b".txt\n+x\n+\n*** End', True),
        (_PATCH, "*** Begin\n*** Delete: a\n*** Add: b\n+x\n*** End\n", True),
        (_PATCH, "*** Begin\n*** End\n", False),
        (_PATCH, "*** Begin\n*** Add: a\nx\n*** End\n", False),
        (_SUM, "1 + (2 + 34)", True),
        (_SUM, "((1))", True),
        (_SUM, "1 + (2", False),
        ('start: "a".."c" ~ 2 ["x"i]', "abX", True),
        ('start: "a".."c" ~ 2 ["x"i]', "adX", False),
        ('start: "a"~1..3 | /[0-9]\\/+/i', "7//", True),
        ('start: "+*.[]()\\\\" "\\n"', "+*.[]()\\\n", True),
        ("start: A\nA: B+ # as in C\nB: /x/i\n", "xX", True),
        ("start: NUMBER", "1.5e7", True),
    ],
)  # fmt: skip
def test_a_grammar_lets_its_texts_pass(grammar: str, text: str, *, fits: bool) -> None:
    if "NUMBER" in grammar:
        grammar += "\n%import common.NUMBER"
    pattern = regex_of_grammar(grammar)
    assert pattern is not None
    assert bool(re.fullmatch(pattern, text)) is fits


def test_what_refers_to_itself_is_written_out_as_deep_as_there_is_room() -> None:
    pattern = regex_of_grammar('start: "(" start ")" | "x"')
    assert pattern is not None
    texts = {"".join(signs) for n in range(6) for signs in product("(x)", repeat=n)}
    assert {text for text in texts if re.fullmatch(pattern, text)} == {"x", "(x)", "((x))"}
    assert re.fullmatch(pattern, "((((x))))")
    many = " | ".join(f'"{n}" start start' for n in range(8))
    wide = regex_of_grammar(f'start: {many} | "x"')
    assert wide is not None
    assert len(wide) <= PATTERN_CHARS_MAX
    assert re.fullmatch(wide, "0xx")


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a"\n%ignore " "',
        "start: start",
        'start: pair{"a"}\npair{x}: x x',
        "start: X\n%import common.UNHEARD_OF",
        "start: X\n%import python.NAME",
        "\n".join(["start: a0", *(f"a{n}: a{n + 1} a{n + 1}" for n in range(40)), 'a40: "x"']),
    ],
)
def test_unsupported_grammar_has_no_expression(grammar: str) -> None:
    assert regex_of_grammar(grammar) is None


@pytest.mark.parametrize(
    "grammar",
    ["", "start", "start: x", "start: (", 'start: "a', "start: )", "%%", 'start: "a" ~ b',
     'start: "ab".."c"', "x: /a/", ": x", "start: " + "(" * 99 + '"a"' + ")" * 99,
     'start: "\\x"'],
)  # fmt: skip
def test_what_is_no_grammar_is_refused(grammar: str) -> None:
    with pytest.raises(LarkError):
        regex_of_grammar(grammar)
