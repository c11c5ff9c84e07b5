"""Constrain one answer in tagged output: some parts follow a grammar, the others are free.

Reasoning is free, and so is text before a call if the answer has no schema. In a free part, the
constraint only searches each token's text for tags. It finds the part of a token from the tokens
alone, so a resumed answer continues in the same part.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import structlog

from worker.engine.grammar.closing import Closing
from worker.engine.grammar.guidance import GuidanceMatcher
from worker.engine.output.detokenizer import Detokenizer
from worker.engine.output.output_parser import ThinkTags
from worker.engine.output.stop_sequences import TagScanner

_log = structlog.get_logger(__name__)

#: The beginning of a call without a start tag, and the most characters examined for it.
_BARE_CALL: Final = re.compile(r'\s*\{\s*"name"\s*:\s*"')
_BARE_CHARS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPlan:
    """The grammars of the parts of an answer.

    Attributes:
        thinking: Whether the prompt opened a reasoning section.
        opened: The beginning of a call at the end of the prompt.
        answer: Makes a matcher of the answer's schema; ``None`` without a schema.
        call: Makes a matcher of a call, from the end of its start tag on.
        starts: Pairs of a start tag and the part of it that the matcher must accept.
        is_bare: Whether an answer that begins with a brace may be a call without a start tag.
        free_tags: Tags with which an answer may begin instead of following its schema; the rest of
            the answer is free then.
        max_tokens: Most tokens of the answer. An answer with a schema ends within them; calls do
            not, because a client would run them with half of their arguments.
    """

    end_ids: frozenset[int]
    max_tokens: int
    tags: ThinkTags | None = None
    thinking: bool = False
    opened: str = ""
    answer: Callable[[], GuidanceMatcher] | None = None
    call: Callable[[], GuidanceMatcher] | None = None
    starts: tuple[tuple[str, str], ...] = ()
    is_bare: bool = False
    free_tags: tuple[str, ...] = ()


class _Part(Enum):
    THINKING = auto()
    #: Text without a schema, in which a call may begin.
    TEXT = auto()
    ANSWER = auto()
    CALL = auto()
    #: All further tokens are unconstrained.
    FREE = auto()
    OVER = auto()


class AnswerConstraint:
    """``Constraint`` that follows an ``AnswerPlan``.

    Args:
        detokenizer: A fresh one.
    """

    looks_ahead = True

    def __init__(self, plan: AnswerPlan, detokenizer: Detokenizer) -> None:
        self._plan = plan
        self._detokenizer = detokenizer
        self.accepted_count = 0
        self._matcher: GuidanceMatcher | None = None
        self._limit: Closing | None = None
        #: Text of a free part that may contain the beginning of a tag, or the answer's beginning.
        self._buffer = ""
        self._has_begun = False
        self._closing = TagScanner((plan.tags.end,) if plan.tags else ())
        self._call_prefixes = dict(plan.starts) if plan.call is not None else {}
        self._starts = TagScanner(tag for tag in self._call_prefixes if tag)
        self._part = _Part.THINKING if plan.thinking else _Part.FREE
        if plan.opened:
            tags = (tag for tag in self._call_prefixes if tag and plan.opened.startswith(tag))
            self._enter_call(plan.opened.removeprefix(next(tags, "")))
        elif not plan.thinking:
            self._enter_text("")

    @property
    def is_over(self) -> bool:
        """Whether the answer has ended."""
        return self._part is _Part.OVER

    @property
    def is_free(self) -> bool:
        """Whether all further tokens are unconstrained."""
        return self._part is _Part.FREE

    def accept(self, token: int) -> None:
        """Accept the next token of the answer."""
        self.accepted_count += 1
        if token in self._plan.end_ids:
            self._part, self._matcher = _Part.OVER, None
            return
        text = self._detokenizer.feed(token)
        if self._matcher is not None:
            if not self._matcher.accept(token):
                # An earlier attempt without this constraint may have sampled the token.
                self._give_up()
                return
            self._after_match(text)
        elif self._part is _Part.THINKING:
            self._read_thinking(text)
        elif self._part is _Part.TEXT:
            self._read_text(text)

    def mask(self) -> bytes | None:
        """Return the mask of allowed next tokens, ``None`` for any token."""
        return None if self._matcher is None else self._matcher.mask()

    @property
    def is_near_limit(self) -> bool:
        """Whether the limit of tokens may change one of the next draws."""
        closing = None if self._matcher is None else self._matcher.closing
        return closing is not None and closing.is_near

    @property
    def is_cut(self) -> bool:
        """Whether the limit of tokens has changed a draw."""
        return self._limit is not None and self._limit.is_cut

    def within_limit(self, token: int) -> int:
        """Return the token that comes in the place of a drawn one, usually the same."""
        closing = None if self._matcher is None else self._matcher.closing
        return token if closing is None else closing.within(token)

    def ahead(self) -> AnswerConstraint:
        """Return a copy, to follow tokens that may come."""
        other = copy(self)
        other._detokenizer = self._detokenizer.copied()  # noqa: SLF001 - a copy of this one
        if self._matcher is not None:
            other._matcher = self._matcher.copied()  # noqa: SLF001 - a copy of this one
        return other

    # -- parts without a grammar -----------------------------------------------------------------

    def _read_thinking(self, text: str) -> None:
        self._buffer += text
        hit = self._closing.search(self._buffer)
        if hit is None:
            self._buffer = self._buffer[self._closing.safe_length(self._buffer) :]
            return
        rest, self._buffer = self._buffer[hit.end :], ""
        self._enter_text(rest)

    def _enter_text(self, text: str) -> None:
        """Begin the part after reasoning or after a call."""
        self._has_begun, self._buffer = False, ""
        if self._plan.answer is not None:
            self._start_matcher(_Part.ANSWER, self._plan.answer(), text)
        elif self._plan.call is not None:
            self._part, self._matcher = _Part.TEXT, None
            self._read_text(text)
        else:
            self._part, self._matcher = _Part.FREE, None

    def _read_text(self, text: str) -> None:
        """Search free text for the start of a call; at its beginning, also for reasoning."""
        self._buffer += text
        if not self._has_begun and self._read_beginning(self._buffer):
            return
        hit = self._starts.search(self._buffer)
        if hit is not None:
            self._enter_call(self._call_prefixes[hit.tag] + self._buffer[hit.end :])
        elif self._has_begun:
            self._buffer = self._buffer[self._starts.safe_length(self._buffer) :]

    def _read_beginning(self, text: str) -> bool:
        """Examine the first visible characters; return whether they begin reasoning or a call."""
        text = text.lstrip()
        tags = self._plan.tags
        if tags is not None and text.startswith(tags.start):
            self._part, self._buffer = _Part.THINKING, ""
            self._read_thinking(text.removeprefix(tags.start))
            return True
        if self._plan.is_bare and _BARE_CALL.match(text):
            self._enter_call(text)
            return True
        may_think = tags is not None and tags.start.startswith(text)
        may_call = self._plan.is_bare and text[:1] == "{" and len(text) <= _BARE_CHARS_MAX
        self._has_begun = bool(text) and not may_think and not may_call
        return False

    # -- parts with a grammar --------------------------------------------------------------------

    def _enter_call(self, text: str) -> None:
        assert self._plan.call is not None, "the plan has no calls"
        self._buffer = ""
        self._start_matcher(_Part.CALL, self._plan.call(), text)

    def _start_matcher(self, part: _Part, matcher: GuidanceMatcher, text: str) -> None:
        """Continue with a matcher that first accepts ``text``."""
        self._part, self._matcher = part, matcher
        if part is _Part.ANSWER:
            self._limit = matcher.limit(self._plan.max_tokens - self.accepted_count)
        if text and not matcher.accept_text(text):
            self._give_up()
            return
        self._after_match(text)

    def _after_match(self, text: str) -> None:
        assert self._matcher is not None, "no matcher is active"
        if self._part is _Part.ANSWER:
            self._begin_answer(text)
        elif self._matcher.is_over:
            self._enter_text("")

    def _begin_answer(self, text: str) -> None:
        """Detect an answer that begins with a tag instead of following its schema."""
        assert self._matcher is not None, "no matcher is active"
        if self._has_begun:
            return
        self._buffer += text
        text, tags = self._buffer.strip(), self._plan.tags
        is_bare_call = self._plan.is_bare and _BARE_CALL.match(text) is not None
        if is_bare_call or text.startswith(tuple(filter(None, self._call_prefixes))):
            self._matcher.closing = None
        if not self._matcher.is_over:
            self._has_begun = len(text) > _BARE_CHARS_MAX
        elif tags is not None and text == tags.start:
            self._part, self._matcher, self._buffer = _Part.THINKING, None, ""
        elif text in self._plan.free_tags:
            self._part, self._matcher = _Part.FREE, None

    def _give_up(self) -> None:
        _log.warning("constraint_given_up", part=self._part.name, accepted=self.accepted_count)
        self._part, self._matcher = _Part.FREE, None
