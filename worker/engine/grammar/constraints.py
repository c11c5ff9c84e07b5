"""Make the constraint of an answer in tagged output, from the request and the model's formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import structlog

from domain.chat.generation import PreparedPrompt
from worker.engine.grammar.answer_constraint import AnswerConstraint, AnswerPlan
from worker.engine.grammar.answer_grammar import GrammarWriter
from worker.engine.grammar.ports import Constraint, GrammarLibrary, GrammarRefused, Matcher
from worker.engine.grammar.strictness import answer_rule, require_exact_schemas
from worker.engine.output.detokenizer import Detokenizer
from worker.engine.output.output_parser import ThinkTags
from worker.engine.output.tool_calls.reader import ToolFormat

_log = structlog.get_logger(__name__)


class Constraints:
    """Makes the constraints of one model's answers. Safe to use from any thread.

    Answers with a schema are constrained, and tool calls of families with a grammar: from the start
    tag on if the model may call a tool, from the first token on if it must.

    Args:
        library: The grammars for the model's vocabulary.
        detokenizer: Makes a fresh detokenizer.
        opens_thinking: Whether a prompt ends inside a reasoning section.
        tags: The model's reasoning tags, if it has any.
        tool_format: How the model writes calls, if it can.
    """

    def __init__(
        self,
        library: GrammarLibrary,
        detokenizer: Callable[[], Detokenizer],
        opens_thinking: Callable[[Sequence[int]], bool],
        *,
        tags: ThinkTags | None,
        tool_format: ToolFormat | None,
    ) -> None:
        self._library = library
        self._detokenizer = detokenizer
        self._opens_thinking = opens_thinking
        self._tags = tags
        self._tool_format = tool_format

    def constraint(self, prompt: PreparedPrompt) -> Constraint | None:
        """Return the constraint of the answer to a prompt, ``None`` if all tokens are allowed.

        Raises:
            InvalidRequest: A strict schema cannot be enforced.
        """
        tool_format = self._tool_format if prompt.tools else None
        has_grammar = tool_format is not None and tool_format.has_grammar
        is_opened = bool(prompt.opened)
        if not has_grammar and (prompt.answer_schema is None or is_opened):
            return None
        grammars = self._library.of(prompt.claim)
        writer = GrammarWriter(grammars.refusal, grammars.tag)
        if has_grammar and tool_format is not None:
            require_exact_schemas(prompt, partial(writer.why_wider, tool_format))
        thinking = self._tags is not None and not is_opened and self._opens_thinking(prompt.tokens)
        try:
            call: Callable[[], Matcher] | None = None
            if has_grammar and tool_format:
                call = grammars.matchers(writer.calls(tool_format, prompt.tools))
            answer: Callable[[], Matcher] | None = None
            free_tags: tuple[str, ...] = ()
            if prompt.answer_schema is not None and not is_opened:
                grammar, free_tags = self._answer(writer, prompt, tool_format, thinking=thinking)
                answer = grammars.matchers(grammar)
        except GrammarRefused:
            _log.warning("answer_unconstrained")  # the reason quotes the schema
            return None
        plan = AnswerPlan(
            end_ids=grammars.end_ids,
            tags=self._tags,
            thinking=thinking,
            opened=prompt.opened,
            answer=answer,
            call=call,
            starts=_starts(tool_format),
            is_bare=tool_format is not None and tool_format.is_bare,
            free_tags=free_tags,
        )
        return AnswerConstraint(plan, self._detokenizer())

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
        if self._tags is not None and prompt.thinking and not thinking:
            others = (*free_tags, self._tags.start)
        calls = (tool_format, prompt.tools) if tool_format is not None and has_grammar else None
        return writer.answer(rule, alternatives=others, calls=calls), free_tags


def _starts(tool_format: ToolFormat | None) -> tuple[tuple[str, str], ...]:
    """Return the start tags of calls, each with the part of it that the grammar begins with."""
    if tool_format is None:
        return ()
    # A call without the outer start tag begins with its inner tag.
    return tuple((tag, "" if tag == tool_format.start else tag) for tag in tool_format.starts)
