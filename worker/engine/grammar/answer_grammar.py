"""Write the grammars of answers with a schema and of tool calls, in llguidance's Lark dialect.

JSON is written on one line, with at most one space after commas and colons: where a grammar allows
unlimited white space, some models never stop writing it.
Properties follow the order of ``required``, then the others. A grammar must fix an order, and the
order of ``required`` is the author's, while requests are stored with sorted keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from worker.engine.grammar.schema_rules import SchemaRules
from worker.engine.grammar.tagged_grammar import TaggedGrammar
from worker.engine.grammar.text_grammar import quoted
from worker.engine.output.tool_calls.reader import JsonCallStyle, Tool, ToolFormat

_log = structlog.get_logger(__name__)

#: White space inside a call, and around it or before an answer, where templates put line breaks.
_SPACE: Final = "ws: / ?/\nbefore: /[ \\t\\r\\n]{0,4}/"
_ARGS_TAG: Final = "[ARGS]"
_NUMBERED_TAGS: Final = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)


class GrammarWriter:
    """Writes grammars that the library can follow.

    Args:
        refusal: Returns why the library cannot follow a grammar, ``None`` if it can.
        tag: Returns a tag as a grammar writes it: by token id, or as text.
    """

    def __init__(self, refusal: Callable[[str], str | None], tag: Callable[[str], str]) -> None:
        self._schemas = SchemaRules(refusal)
        self._tag = tag

    def schema_rule(self, schema: Mapping[str, Any]) -> tuple[str, str | None]:
        """Return the narrowest rule for a schema that the library can follow.

        Args:
            schema: The caller's schema; an empty one allows any object.

        Returns:
            The rule, and the reason if it allows more than the schema, else ``None``.
        """
        return self._schemas.schema_rule(schema)

    def calls(self, tool_format: ToolFormat, tools: Sequence[Tool]) -> str:
        """Return the grammar of the text after the start tag, up to the end of the calls."""
        return "\n".join(["start: before calls", *self._calls(tool_format, tools), _SPACE])

    def answer(
        self,
        rule: str,
        *,
        alternatives: Sequence[str] = (),
        calls: tuple[ToolFormat, Sequence[Tool]] | None = None,
    ) -> str:
        """Return the grammar of an answer with a schema.

        Args:
            rule: The rule of its schema.
            alternatives: Tags with which the answer may begin instead; the rest is free then.
            calls: The format and the tools of calls that may replace the answer, if the format
                has a grammar.
        """
        choices, rules = ["answer", *map(self._tag, alternatives)], [f"answer: {rule}", _SPACE]
        if calls is not None:
            tool_format, tools = calls
            start = self._tag(tool_format.start)
            several = f"({start} before calls before)+"
            repeated = {
                JsonCallStyle.BARE: f"({start} before)? calls",
                JsonCallStyle.LIST: f"{start} before calls",
            }
            style = tool_format.json
            choices.append(repeated.get(style, several) if style else several)
            rules += self._calls(tool_format, tools)
        return "\n".join([f"start: before ({' | '.join(choices)})", *rules])

    def why_wider(self, tool_format: ToolFormat | None, tool: Tool) -> str | None:
        """Return why the grammar allows more than a tool's schema, ``None`` if it is exact.

        Args:
            tool_format: How calls are written; ``None`` if arguments are JSON.
            tool: The tool, in OpenAI's function format.
        """
        if tool_format is None or tool_format.syntax is None:
            return self._arguments(tool)[1]
        grammar = TaggedGrammar(tool_format.syntax, self._schemas, self._tag)
        grammar.rules([tool], tool_format.end)
        return grammar.wider.get(tool["function"]["name"])

    def _calls(self, tool_format: ToolFormat, tools: Sequence[Tool]) -> list[str]:
        assert tools, "there are no tools"
        if tool_format.syntax is None:
            return self._json_calls(tool_format, tools)
        grammar = TaggedGrammar(tool_format.syntax, self._schemas, self._tag)
        rules = grammar.rules(tools, tool_format.end)
        if grammar.wider:
            _log.info("arguments_wider_than_schema", tools=len(grammar.wider), of=len(tools))
        return rules

    def _json_calls(self, tool_format: ToolFormat, tools: Sequence[Tool]) -> list[str]:
        style = tool_format.json
        assert style is not None, "calls in JSON only"
        if style is JsonCallStyle.NUMBERED:
            return self._numbered_calls(tool_format, tools)
        has_header = style is JsonCallStyle.HEADED
        key = "parameters" if style is JsonCallStyle.BARE else "arguments"
        between = self._tag(_ARGS_TAG) if has_header else f'ws "," ws {_key(key)} ws ":" ws'
        names = [
            quoted(name if has_header else json.dumps(name, ensure_ascii=False))
            for name in (tool["function"]["name"] for tool in tools)
        ]
        named = " | ".join(f"{name} {between} args{n}" for n, name in enumerate(names))
        call = named if has_header else f'"{{" ws {_key("name")} ws ":" ws ({named}) ws "}}"'
        end = self._tag(tool_format.end) if tool_format.end else ""
        calls = {
            JsonCallStyle.TAGGED: f"one before {end}",
            JsonCallStyle.BARE: 'one (ws ";" ws one)*',
            JsonCallStyle.LIST: '"[" ws one (ws "," ws one)* ws "]"',
            JsonCallStyle.HEADED: "one",
        }[style]
        return [f"calls: {calls}", f"one: {call}", *self._arguments_of(tools)]

    def _numbered_calls(self, tool_format: ToolFormat, tools: Sequence[Tool]) -> list[str]:
        begin, between, end = map(self._tag, _NUMBERED_TAGS)
        names = [quoted(f"functions.{tool['function']['name']}:") for tool in tools]
        named = " | ".join(
            f"{name} /[0-9]{{1,4}}/ {between} args{n}" for n, name in enumerate(names)
        )
        calls = f"calls: one+ {self._tag(tool_format.end)}"
        return [calls, f"one: {begin} ({named}) {end} before", *self._arguments_of(tools)]

    def _arguments_of(self, tools: Sequence[Tool]) -> list[str]:
        return [f"args{number}: {self.arguments(tool)}" for number, tool in enumerate(tools)]

    def arguments(self, tool: Tool) -> str:
        """Return the rule of the arguments of a tool."""
        rule, reason = self._arguments(tool)
        if reason is not None:
            _log.info("arguments_wider_than_schema", tools=1)
        return rule

    def _arguments(self, tool: Tool) -> tuple[str, str | None]:
        schema: Mapping[str, Any] = tool["function"].get("parameters") or {}
        if schema.get("type") != "object":
            schema = {**schema, "type": "object"}
        return self.schema_rule(schema)


def _key(name: str) -> str:
    return quoted(f'"{name}"')
