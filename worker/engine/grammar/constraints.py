"""Decide what an answer is held to, from what was asked and how the model writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import structlog

from domain.chat.generation import PreparedPrompt
from domain.errors import InvalidRequest
from worker.engine.grammar.answer_constraint import AnswerConstraint, AnswerPlan
from worker.engine.grammar.answer_grammar import GrammarWriter
from worker.engine.grammar.ports import Constraint, GrammarRefused, Grammars, Matcher
from worker.engine.grammar.strictness import require_exact_schemas
from worker.engine.output.detokenizer import Detokenizer
from worker.engine.output.output_parser import ThinkTags
from worker.engine.output.tool_calls.reader import ToolFormat

_log = structlog.get_logger(__name__)


class Constraints:
    """Makes the constraint of each answer of one model. Safe to use from any thread.

    Held to a form are answers with a schema, and calls of families that have grammars: from the
    start tag on where the model may call, from the first token on where it must.

    Args:
        grammars: For the model's vocabulary.
        detokenizer: Makes a fresh one.
        opens_thinking: Whether a prompt ends inside a reasoning section.
        tags: How the model marks its reasoning, if it does.
        tool_format: How it writes calls, if it can.
    """

    def __init__(
        self,
        grammars: Grammars,
        detokenizer: Callable[[], Detokenizer],
        opens_thinking: Callable[[Sequence[int]], bool],
        *,
        tags: ThinkTags | None,
        tool_format: ToolFormat | None,
    ) -> None:
        self._grammars = grammars
        self._writer = GrammarWriter(grammars.refusal, grammars.tag)
        self._detokenizer = detokenizer
        self._opens_thinking = opens_thinking
        self._tags = tags
        self._tool_format = tool_format

    def constraint(self, prompt: PreparedPrompt) -> Constraint | None:
        """Return what the answer to a prompt is held to, ``None`` if it may say anything.

        Raises:
            InvalidRequest: The form cannot be kept, and the caller would rather know.
        """
        tool_format = self._tool_format if prompt.tools else None
        has_grammar = tool_format is not None and tool_format.has_grammar
        is_opened = bool(prompt.opened)
        if not has_grammar and (prompt.answer_schema is None or is_opened):
            return None
        if has_grammar and tool_format is not None:
            require_exact_schemas(prompt, partial(self._writer.why_wider, tool_format))
        thinking = self._tags is not None and not is_opened and self._opens_thinking(prompt.tokens)
        try:
            call = self._call(tool_format, prompt) if has_grammar and tool_format else None
            answer: Callable[[], Matcher] | None = None
            free_tags: tuple[str, ...] = ()
            if prompt.answer_schema is not None and not is_opened:
                answer, free_tags = self._answer(prompt, tool_format, thinking=thinking)
        except GrammarRefused as error:
            _log.warning("answer_unconstrained", why=str(error))
            return None
        plan = AnswerPlan(
            end_ids=self._grammars.end_ids,
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

    def _call(self, tool_format: ToolFormat, prompt: PreparedPrompt) -> Callable[[], Matcher]:
        return self._maker(self._writer.calls(tool_format, prompt.tools))

    def _answer(
        self, prompt: PreparedPrompt, tool_format: ToolFormat | None, *, thinking: bool
    ) -> tuple[Callable[[], Matcher], tuple[str, ...]]:
        assert prompt.answer_schema is not None, "the answer has no form"
        rule, why = self._writer.schema_rule(prompt.answer_schema)
        if why is not None:
            if prompt.is_strict:
                msg = f"the schema of the answer cannot be kept: {why}"
                raise InvalidRequest(msg)
            _log.warning("answer_wider_than_schema", why=why)
        has_grammar = tool_format is not None and tool_format.has_grammar
        free_tags = tool_format.starts if tool_format is not None and not has_grammar else ()
        others = free_tags
        if self._tags is not None and prompt.thinking and not thinking:
            others = (*free_tags, self._tags.start)
        calls = (tool_format, prompt.tools) if tool_format is not None and has_grammar else None
        grammar = self._writer.answer(rule, others=others, calls=calls)
        return self._maker(grammar), free_tags

    def _maker(self, grammar: str) -> Callable[[], Matcher]:
        """Return a maker of matchers; the first is made now, so that a refusal comes at once."""
        self._grammars.matcher(grammar)
        return lambda: self._grammars.matcher(grammar)


def _starts(tool_format: ToolFormat | None) -> tuple[tuple[str, str], ...]:
    """Return the tags that begin calls, each with what of it the grammar wants to see."""
    if tool_format is None:
        return ()
    # A call without the tag before it begins with its first mark.
    return tuple((tag, "" if tag == tool_format.start else tag) for tag in tool_format.starts)
