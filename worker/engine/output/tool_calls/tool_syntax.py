"""How families write calls whose arguments stand between marks, one mark to each part.

The formats are those of the models' own chat templates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSyntax:
    r"""What stands around the parts of a call, as a well-behaved model writes it.

    ``call`` NAME ``named`` (``key`` KEY ``keyed`` VALUE ``valued``)* ``done``. White space at their
    ends belongs to them; a reader does not insist on it.

    Attributes:
        call: Before the name.
        named: Behind the name.
        key: Before the name of an argument.
        keyed: Between that name and its value.
        valued: Behind the value.
        done: Behind the last value; empty if the tag behind calls is all there is.
        is_repeated: Between two tags around calls may stand several.
        is_quoted: Strings are written as in JSON, so that no mark can stand in one.
        comma: Between two arguments, and between two calls.
    """

    call: str
    named: str
    key: str
    keyed: str
    valued: str
    done: str
    is_repeated: bool = False
    is_quoted: bool = False
    comma: str = ""

    @property
    def is_padded(self) -> bool:
        """Whether one line break on each side of a value belongs to the marks."""
        return self.keyed.endswith("\n") and self.valued.startswith("\n")


QWEN_SYNTAX: Final = ToolSyntax(
    call="<function=",
    named=">\n",
    key="<parameter=",
    keyed=">\n",
    valued="\n</parameter>\n",
    done="</function>\n",
)
#: GLM 4.7 and Laguna.
GLM_SYNTAX: Final = ToolSyntax(
    call="",
    named="",
    key="<arg_key>",
    keyed="</arg_key><arg_value>",
    valued="</arg_value>",
    done="",
)
#: GLM 4.5 and 4.6, which write each part on a line of its own.
GLM_LINES_SYNTAX: Final = replace(
    GLM_SYNTAX, named="\n", keyed="</arg_key>\n<arg_value>", valued="</arg_value>\n"
)
LONGCAT_SYNTAX: Final = ToolSyntax(
    call="",
    named="\n",
    key="<longcat_arg_key>",
    keyed="</longcat_arg_key>\n<longcat_arg_value>",
    valued="</longcat_arg_value>\n",
    done="",
)
MINIMAX_SYNTAX: Final = ToolSyntax(
    call='<invoke name="',
    named='">\n',
    key='<parameter name="',
    keyed='">',
    valued="</parameter>\n",
    done="</invoke>\n",
    is_repeated=True,
)
#: LFM and others that write Python: ``[f(a="x", b=2)]``.
PYTHON_SYNTAX: Final = ToolSyntax(
    call="",
    named="(",
    key="",
    keyed="=",
    valued="",
    done=")",
    is_repeated=True,
    is_quoted=True,
    comma=", ",
)
