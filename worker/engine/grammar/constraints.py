"""The grammar and the constraint of an answer in tagged output; strict requests that have none."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog

from domain.chat.generation import PreparedPrompt
from domain.errors import InvalidRequest
from worker.engine.grammar.answer_constraint import AnswerConstraint, AnswerPlan
from worker.engine.grammar.bare_grammar import BareGrammar
from worker.engine.grammar.guidance import GuidanceGrammars, GuidanceMatcher
from worker.engine.grammar.ports import Constraint, GrammarRefused
from worker.engine.grammar.tagged_grammar import TaggedGrammar
from worker.engine.grammar.text_grammar import SchemaRules, quoted
from worker.engine.output.detokenizer import Detokenizer
from worker.engine.output.output_parser import ThinkTags
from worker.engine.output.tool_calls.reader import JsonCallStyle, Tool, ToolFormat, ToolSyntax

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
        self.schemas = SchemaRules(refusal)
        self._tag = tag

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
        """
        if tool_format is None or tool_format.syntax is None:
            return self._arguments(tool)[1]
        grammar = self._tagged(tool_format.syntax)
        grammar.rules([tool], tool_format.end)
        return grammar.wider.get(tool["function"]["name"])

    def _tagged(self, syntax: ToolSyntax) -> TaggedGrammar:
        kind = BareGrammar if syntax.quote else TaggedGrammar
        return kind(syntax, self.schemas, self._tag)

    def _calls(self, tool_format: ToolFormat, tools: Sequence[Tool]) -> list[str]:
        assert tools, "there are no tools"
        if tool_format.syntax is None:
            return self._json_calls(tool_format, tools)
        grammar = self._tagged(tool_format.syntax)
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
        return self.schemas.schema_rule(schema)


def _key(name: str) -> str:
    return quoted(f'"{name}"')


def require_exact_schemas(prompt: PreparedPrompt, why_wider: Callable[[Tool], str | None]) -> None:
    """Refuse a prompt if a strict tool's schema cannot be enforced exactly.

    Args:
        why_wider: Returns why a tool's grammar allows more than its schema, ``None`` if it is
            exact.

    Raises:
        InvalidRequest: The message names the tool and the unsupported keyword.
    """
    for tool in prompt.tools:
        name = tool["function"]["name"]
        if name in prompt.strict_tools and (reason := why_wider(tool)) is not None:
            msg = f"the tool {name} is strict, and its schema cannot be kept: {reason}"
            raise InvalidRequest(msg, field="tools")


def answer_rule(writer: GrammarWriter, prompt: PreparedPrompt) -> str:
    """Return the rule of the answer's schema; it may allow more if the request is not strict.

    Raises:
        InvalidRequest: The request is strict and the schema cannot be enforced exactly.
    """
    assert prompt.answer_schema is not None, "the answer has no schema"
    rule, reason = writer.schemas.schema_rule(prompt.answer_schema)
    if reason is not None:
        if prompt.is_strict:
            raise InvalidRequest(f"the schema of the answer cannot be kept: {reason}")
        _log.warning("answer_wider_than_schema")  # the reason quotes the schema
    return rule


@dataclass(frozen=True, slots=True)
class Constraints:
    """Makes the constraints of one model's answers. Safe to use from any thread.

    Answers with a schema are constrained, and tool calls of families with a grammar: from the start
    tag on if the model may call a tool, from the first token on if it must.
    """

    library: GuidanceGrammars
    detokenizer: Callable[[], Detokenizer]
    opens_thinking: Callable[[Sequence[int]], bool]
    tags: ThinkTags | None
    tool_format: ToolFormat | None

    def constraint(self, prompt: PreparedPrompt) -> Constraint | None:
        """Return the constraint of the answer to a prompt, ``None`` if all tokens are allowed.

        Raises:
            InvalidRequest: A strict schema cannot be enforced.
        """
        tool_format = self.tool_format if prompt.tools else None
        has_grammar = tool_format is not None and tool_format.has_grammar
        is_opened = bool(prompt.opened)
        if not has_grammar and (prompt.answer_schema is None or is_opened):
            return None
        grammars = self.library.of(prompt.claim)
        writer = GrammarWriter(grammars.refusal, grammars.tag)
        if has_grammar and tool_format is not None:
            require_exact_schemas(prompt, partial(writer.why_wider, tool_format))
        thinking = self.tags is not None and not is_opened and self.opens_thinking(prompt.tokens)
        try:
            call: Callable[[], GuidanceMatcher] | None = None
            if has_grammar and tool_format:
                call = grammars.matchers(writer.calls(tool_format, prompt.tools))
            answer: Callable[[], GuidanceMatcher] | None = None
            free_tags: tuple[str, ...] = ()
            if prompt.answer_schema is not None and not is_opened:
                grammar, free_tags = self._answer(writer, prompt, tool_format, thinking=thinking)
                answer = grammars.matchers(grammar)
        except GrammarRefused:
            _log.warning("answer_unconstrained")  # the reason quotes the schema
            return None
        plan = AnswerPlan(
            end_ids=grammars.end_ids,
            max_tokens=prompt.max_tokens,
            tags=self.tags,
            thinking=thinking,
            opened=prompt.opened,
            answer=answer,
            call=call,
            # A call without the outer start tag begins with its inner tag.
            starts=tuple(
                (tag, "" if tag == tool_format.start else tag) for tag in tool_format.starts
            )
            if tool_format
            else (),
            is_bare=tool_format is not None and tool_format.is_bare,
            free_tags=free_tags,
        )
        return AnswerConstraint(plan, self.detokenizer())

    def _answer(
        self,
        writer: GrammarWriter,
        prompt: PreparedPrompt,
        tool_format: ToolFormat | None,
        *,
        thinking: bool,
    ) -> tuple[str, tuple[str, ...]]:
        """Return the grammar of an answer, and the tags with which it may begin instead."""
        rule = answer_rule(writer, prompt)
        has_grammar = tool_format is not None and tool_format.has_grammar
        free_tags = tool_format.starts if tool_format is not None and not has_grammar else ()
        others = free_tags
        if self.tags is not None and prompt.thinking and not thinking:
            others = (*free_tags, self.tags.start)
        calls = (tool_format, prompt.tools) if tool_format is not None and has_grammar else None
        return writer.answer(rule, alternatives=others, calls=calls), free_tags
