"""Hold one answer to its form: free where it may say anything, a grammar where it may not.

Free are reasoning and, without a form, the text up to a call. What is free costs a search for a
tag in each token's text. Which part a token belongs to is told from the tokens alone, so an answer
that is resumed stands where it stood.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import structlog

from worker.engine.grammar.ports import Matcher
from worker.engine.output.detokenizer import Detokenizer
from worker.engine.output.output_parser import ThinkTags
from worker.engine.output.stop_sequences import TagScanner

_log = structlog.get_logger(__name__)

#: The beginning of a call that has no tag before it, and how much text may go into seeing it.
_BARE_CALL: Final = re.compile(r'\s*\{\s*"name"\s*:\s*"')
_BARE_CHARS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPlan:
    """What the parts of an answer are held to.

    Attributes:
        end_ids: Tokens that end a turn.
        tags: The model's reasoning tags, if it has any.
        thinking: Whether the prompt has opened a reasoning section.
        opened: The beginning of a call that the prompt has written.
        answer: Makes what follows an answer that has a form.
        call: Makes what follows a call from behind its start tag.
        starts: The tags that begin calls, each with what of it belongs to the call.
        is_bare: An answer that begins with a brace may be a call without the tag.
        free_tags: Tags that an answer with a form may begin with instead; what follows is free.
    """

    end_ids: frozenset[int]
    tags: ThinkTags | None = None
    thinking: bool = False
    opened: str = ""
    answer: Callable[[], Matcher] | None = None
    call: Callable[[], Matcher] | None = None
    starts: tuple[tuple[str, str], ...] = ()
    is_bare: bool = False
    free_tags: tuple[str, ...] = ()


class _Part(Enum):
    THINKING = auto()
    #: Text without a form, in which a call may begin.
    TEXT = auto()
    ANSWER = auto()
    CALL = auto()
    #: Nothing that follows is held to anything.
    FREE = auto()
    OVER = auto()


class AnswerConstraint:
    """``constraint.Constraint`` for a plan.

    Args:
        plan: What is asked.
        detokenizer: Fresh.
    """

    def __init__(self, plan: AnswerPlan, detokenizer: Detokenizer) -> None:
        self._plan = plan
        self._detokenizer = detokenizer
        self._accepted_count = 0
        self._matcher: Matcher | None = None
        #: Text of a free part in which a tag may begin, or the beginning of an answer.
        self._held = ""
        self._visible = False
        tags = plan.tags
        self._closing = TagScanner((tags.end,) if tags else ())
        self._within = dict(plan.starts) if plan.call is not None else {}
        self._starts = TagScanner(tag for tag in self._within if tag)
        self._part = _Part.THINKING if plan.thinking else _Part.FREE
        if plan.opened:
            self._enter_call(_behind(plan.opened, self._within))
        elif not plan.thinking:
            self._enter_text("")

    @property
    def accepted_count(self) -> int:
        """How many tokens of the answer it knows."""
        return self._accepted_count

    @property
    def is_over(self) -> bool:
        """Whether the answer has ended."""
        return self._part is _Part.OVER

    @property
    def is_free(self) -> bool:
        """Whether nothing is held to anything any more."""
        return self._part is _Part.FREE

    def accept(self, token: int) -> None:
        """Take the next token."""
        self._accepted_count += 1
        if token in self._plan.end_ids:
            self._part, self._matcher = _Part.OVER, None
            return
        text = self._detokenizer.feed(token)
        if self._matcher is not None:
            if not self._matcher.accept(token):
                # It was said before anybody was held to anything, by an earlier version perhaps.
                self._give_up()
                return
            self._matched(text)
        elif self._part is _Part.THINKING:
            self._think(text)
        elif self._part is _Part.TEXT:
            self._read(text)

    def mask(self) -> bytes | None:
        """Return which tokens may come next, ``None`` for any."""
        return None if self._matcher is None else self._matcher.mask()

    # -- parts without a grammar -----------------------------------------------------------------

    def _think(self, text: str) -> None:
        self._held += text
        hit = self._closing.search(self._held)
        if hit is None:
            self._held = self._held[self._closing.safe_length(self._held) :]
            return
        rest, self._held = self._held[hit.end :], ""
        self._enter_text(rest)

    def _enter_text(self, text: str) -> None:
        """Begin what is said after reasoning, or after a call."""
        self._visible, self._held = False, ""
        if self._plan.answer is not None:
            self._follow(_Part.ANSWER, self._plan.answer(), text)
        elif self._plan.call is not None:
            self._part, self._matcher = _Part.TEXT, None
            self._read(text)
        else:
            self._part, self._matcher = _Part.FREE, None

    def _read(self, text: str) -> None:
        """Look for the beginning of a call in plain text, and of reasoning before it."""
        self._held += text
        if not self._visible and self._begins(self._held):
            return
        hit = self._starts.search(self._held)
        if hit is not None:
            self._enter_call(self._within[hit.tag] + self._held[hit.end :])
        elif self._visible:
            self._held = self._held[self._starts.safe_length(self._held) :]

    def _begins(self, held: str) -> bool:
        """Look at the first visible characters; return whether it is decided what they begin."""
        said = held.lstrip()
        tags = self._plan.tags
        if tags is not None and said.startswith(tags.start):
            self._part, self._held = _Part.THINKING, ""
            self._think(said.removeprefix(tags.start))
            return True
        if self._plan.is_bare and _BARE_CALL.match(said):
            self._enter_call(said)
            return True
        may_think = tags is not None and tags.start.startswith(said)
        may_call = self._plan.is_bare and said[:1] == "{" and len(said) <= _BARE_CHARS_MAX
        self._visible = bool(said) and not may_think and not may_call
        return False

    # -- parts with a grammar --------------------------------------------------------------------

    def _enter_call(self, text: str) -> None:
        assert self._plan.call is not None, "no calls are read"
        self._held = ""
        self._follow(_Part.CALL, self._plan.call(), text)

    def _follow(self, part: _Part, matcher: Matcher, text: str) -> None:
        """Go on by a grammar, of which a text is said already."""
        self._part, self._matcher = part, matcher
        if text and not matcher.accept_text(text):
            self._give_up()
            return
        self._matched(text)

    def _matched(self, text: str) -> None:
        assert self._matcher is not None, "nothing is followed"
        if self._part is _Part.ANSWER:
            self._begin_answer(text)
        elif self._matcher.is_over:
            self._enter_text("")

    def _begin_answer(self, text: str) -> None:
        """See whether an answer with a form has begun with something else."""
        assert self._matcher is not None, "nothing is followed"
        if self._visible:
            return
        self._held += text
        said, tags = self._held.strip(), self._plan.tags
        if not self._matcher.is_over:
            self._visible = len(said) > _BARE_CHARS_MAX
        elif tags is not None and said == tags.start:
            self._part, self._matcher, self._held = _Part.THINKING, None, ""
        elif said in self._plan.free_tags:
            self._part, self._matcher = _Part.FREE, None

    def _give_up(self) -> None:
        _log.warning("constraint_given_up", part=self._part.name, accepted=self._accepted_count)
        self._part, self._matcher = _Part.FREE, None


def _behind(opened: str, starts: Iterable[str]) -> str:
    """Return the beginning of a call behind the tag that it begins with."""
    tag = next((tag for tag in starts if tag and opened.startswith(tag)), "")
    return opened.removeprefix(tag)
