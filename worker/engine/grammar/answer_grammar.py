"""Write the grammars of answers and of calls, in the Lark dialect of llguidance.

JSON is one line, with a space behind commas and colons or without: a model that may write white
space for ever sometimes does.
Properties come in the order of ``required``, then the others: a grammar must choose one, and a
request is kept with its keys sorted, while the order in that list is the author's own.
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

#: Inside a call, and around it or before an answer, where templates like line breaks.
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
        refusal: Whether the library can follow a grammar; else why not.
        tag: How a grammar writes a tag, which may be a token of its own.
    """

    def __init__(self, refusal: Callable[[str], str | None], tag: Callable[[str], str]) -> None:
        self._schemas = SchemaRules(refusal)
        self._tag = tag

    def schema_rule(self, schema: Mapping[str, Any]) -> tuple[str, str | None]:
        """Return the narrowest rule for a schema that the library can follow.

        Args:
            schema: As the caller gave it; an empty one asks for any object.

        Returns:
            The rule, and why it is wider than the schema, if it is.
        """
        return self._schemas.schema_rule(schema)

    def calls(self, tool_format: ToolFormat, tools: Sequence[Tool]) -> str:
        """Return the grammar of what follows the start tag, up to the end of the call."""
        return "\n".join(["start: before calls", *self._calls(tool_format, tools), _SPACE])

    def answer(
        self,
        rule: str,
        *,
        others: Sequence[str] = (),
        calls: tuple[ToolFormat, Sequence[Tool]] | None = None,
    ) -> str:
        """Return the grammar of an answer that has a form.

        Args:
            rule: The rule of its schema.
            others: Tags that may stand in its place; what follows them is free.
            calls: What may be called instead, by a family that is held.
        """
        choices, rules = ["answer", *map(self._tag, others)], [f"answer: {rule}", _SPACE]
        if calls is not None:
            tool_format, tools = calls
            start = self._tag(tool_format.start)
            several = f"({start} before calls before)+"
            repeated = {
                JsonCallStyle.BARE: f"({start} before)? calls",
                JsonCallStyle.LIST: f"{start} before calls",
            }
            spelling = tool_format.json
            choices.append(repeated.get(spelling, several) if spelling else several)
            rules += self._calls(tool_format, tools)
        return "\n".join([f"start: before ({' | '.join(choices)})", *rules])

    def why_wider(self, tool_format: ToolFormat | None, tool: Tool) -> str | None:
        """Return what of a tool's schema cannot be kept, ``None`` if all of it can.

        Args:
            tool_format: How calls are written; ``None`` if arguments are JSON.
            tool: In function format.
        """
        if tool_format is None or tool_format.syntax is None:
            return self._arguments(tool)[1]
        grammar = TaggedGrammar(tool_format.syntax, self._schemas, self._tag)
        grammar.rules([tool], tool_format.end)
        return grammar.wider.get(tool["function"]["name"])

    def _calls(self, tool_format: ToolFormat, tools: Sequence[Tool]) -> list[str]:
        assert tools, "nothing may be called"
        if tool_format.syntax is None:
            return self._json_calls(tool_format, tools)
        grammar = TaggedGrammar(tool_format.syntax, self._schemas, self._tag)
        rules = grammar.rules(tools, tool_format.end)
        for name, why in grammar.wider.items():
            _log.info("arguments_wider_than_schema", tool=name, why=why)
        return rules

    def _json_calls(self, tool_format: ToolFormat, tools: Sequence[Tool]) -> list[str]:
        spelling = tool_format.json
        assert spelling is not None, "calls in JSON only"
        if spelling is JsonCallStyle.NUMBERED:
            return self._numbered_calls(tool_format, tools)
        is_headed = spelling is JsonCallStyle.HEADED
        key = "parameters" if spelling is JsonCallStyle.BARE else "arguments"
        between = self._tag(_ARGS_TAG) if is_headed else f'ws "," ws {_key(key)} ws ":" ws'
        names = [
            quoted(name if is_headed else json.dumps(name, ensure_ascii=False))
            for name in (tool["function"]["name"] for tool in tools)
        ]
        named = " | ".join(f"{name} {between} args{n}" for n, name in enumerate(names))
        one = named if is_headed else f'"{{" ws {_key("name")} ws ":" ws ({named}) ws "}}"'
        end = self._tag(tool_format.end) if tool_format.end else ""
        calls = {
            JsonCallStyle.TAGGED: f"one before {end}",
            JsonCallStyle.BARE: 'one (ws ";" ws one)*',
            JsonCallStyle.LIST: '"[" ws one (ws "," ws one)* ws "]"',
            JsonCallStyle.HEADED: "one",
        }[spelling]
        return [f"calls: {calls}", f"one: {one}", *self._arguments_of(tools)]

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
        """Return the rule that the arguments of a tool are held to."""
        rule, why = self._arguments(tool)
        if why is not None:
            _log.info("arguments_wider_than_schema", tool=tool["function"]["name"], why=why)
        return rule

    def _arguments(self, tool: Tool) -> tuple[str, str | None]:
        schema: Mapping[str, Any] = tool["function"].get("parameters") or {}
        if schema.get("type") != "object":
            schema = {**schema, "type": "object"}
        return self.schema_rule(schema)


def _key(name: str) -> str:
    return quoted(f'"{name}"')
