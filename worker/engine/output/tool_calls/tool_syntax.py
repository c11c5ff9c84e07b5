"""Tool syntaxes: the texts that model families write between the parts of a tool call.

They follow the models' chat templates. ``tagged_calls`` reads calls by them, and
``grammar.tagged_grammar`` constrains calls to them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSyntax:
    r"""The texts around the parts of a call, as a model usually writes them.

    A call is: ``before_name`` NAME ``after_name``
    (``before_key`` KEY ``after_key`` VALUE ``after_value``)* ``after_call``.
    White space at either end of these texts is part of the syntax; a reader accepts less of it.

    Attributes:
        before_name: Text before the tool's name.
        after_name: Text after the tool's name.
        before_key: Text before the name of an argument.
        after_key: Text between the name and the value of an argument.
        after_value: Text after a value.
        after_call: Text after the last value; empty if only the end tag of the calls follows.
        is_repeated: Whether several calls may stand between the start tag and the end tag.
        is_quoted: Whether strings are written as in JSON, so that no tag can stand in one.
        separator: Text between two arguments, and between two calls.
    """

    before_name: str
    after_name: str
    before_key: str
    after_key: str
    after_value: str
    after_call: str
    is_repeated: bool = False
    is_quoted: bool = False
    separator: str = ""

    @property
    def is_padded(self) -> bool:
        """Whether one line break on each side of a value belongs to the syntax."""
        return self.after_key.endswith("\n") and self.after_value.startswith("\n")


QWEN_SYNTAX: Final = ToolSyntax(
    before_name="<function=",
    after_name=">\n",
    before_key="<parameter=",
    after_key=">\n",
    after_value="\n</parameter>\n",
    after_call="</function>\n",
)
#: GLM 4.7 and Laguna.
GLM_SYNTAX: Final = ToolSyntax(
    before_name="",
    after_name="",
    before_key="<arg_key>",
    after_key="</arg_key><arg_value>",
    after_value="</arg_value>",
    after_call="",
)
#: GLM 4.5 and 4.6, which write each part on its own line.
GLM_LINES_SYNTAX: Final = replace(
    GLM_SYNTAX, after_name="\n", after_key="</arg_key>\n<arg_value>", after_value="</arg_value>\n"
)
LONGCAT_SYNTAX: Final = ToolSyntax(
    before_name="",
    after_name="\n",
    before_key="<longcat_arg_key>",
    after_key="</longcat_arg_key>\n<longcat_arg_value>",
    after_value="</longcat_arg_value>\n",
    after_call="",
)
MINIMAX_SYNTAX: Final = ToolSyntax(
    before_name='<invoke name="',
    after_name='">\n',
    before_key='<parameter name="',
    after_key='">',
    after_value="</parameter>\n",
    after_call="</invoke>\n",
    is_repeated=True,
)
#: LFM and other families that write Python: ``[f(a="x", b=2)]``.
PYTHON_SYNTAX: Final = ToolSyntax(
    before_name="",
    after_name="(",
    before_key="",
    after_key="=",
    after_value="",
    after_call=")",
    is_repeated=True,
    is_quoted=True,
    separator=", ",
)
