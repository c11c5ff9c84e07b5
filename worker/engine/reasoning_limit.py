"""Count the tokens of reasoning, and close it where it may not go on.

What counts is told from the tokens alone, by the same reader that splits the answer for its
clients: so the number is the same in every attempt, and an answer that is resumed in the middle of
a closing tag goes on with the rest of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

import structlog

from domain.chat.generation import PreparedPrompt
from worker.engine.grammar.ports import Constraint
from worker.engine.output.channel_format import ChannelFormat
from worker.engine.output.channel_parser import ChannelParser
from worker.engine.output.output_parser import AnswerParser, SectionParser
from worker.engine.output.tool_calls.reader import CallRules
from worker.engine.ports import LoadedModel

_log = structlog.get_logger(__name__)

_BITS: Final = 8


class ReasoningCount:
    """How many tokens of an answer are reasoning, those of the tags around it included.

    Args:
        parser: What the text of the tokens goes through.
    """

    def __init__(self, parser: AnswerParser) -> None:
        self._parser = parser
        self._was_thinking = parser.is_thinking
        self._sections = parser.thinking_sections
        #: Tokens that have said nothing yet: perhaps the beginning of an opening tag.
        self._undecided_tokens = 0
        self.tokens = 0

    def record_token(self) -> None:
        """Count the token whose text has just gone through."""
        parser = self._parser
        is_new = parser.thinking_sections > self._sections
        if is_new:
            self.tokens += self._undecided_tokens
        if is_new or self._was_thinking or parser.is_thinking:
            self.tokens += 1
            self._undecided_tokens = 0
        else:
            self._undecided_tokens = self._undecided_tokens + 1 if parser.is_undecided else 0
        self._was_thinking, self._sections = parser.is_thinking, parser.thinking_sections


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningEnd:
    """What ends reasoning.

    Attributes:
        tag: Its last tokens; they count.
        header: What is written behind it, before the answer.
        choices: Of which one must come behind that; empty for any.
    """

    tag: tuple[int, ...]
    header: tuple[int, ...] = ()
    choices: frozenset[int] = frozenset()

    @property
    def tokens(self) -> tuple[int, ...]:
        """What is written whole."""
        return self.tag + self.header


class LimitedReasoning:
    """``constraint.Constraint`` that ends reasoning at a limit, and else leaves it to another one.

    The tokens of the closing tag count, so the last that the model may choose is the one before
    them. They are forced one by one; the network reads them like any others.

    Args:
        limit: Most tokens of reasoning; a tag is always written whole.
        ending: What ends it.
        prompt: What is answered.
        model: What answers.
        end_ids: Tokens that end a turn.
        inner: What the answer is held to besides.
    """

    def __init__(
        self,
        limit: int,
        ending: ReasoningEnd,
        *,
        prompt: PreparedPrompt,
        model: LoadedModel,
        end_ids: frozenset[int],
        inner: Constraint | None,
    ) -> None:
        assert ending.tag, "a tag without tokens closes nothing"
        self._limit = limit
        self._ending = ending
        self._end_ids = end_ids
        self._inner = inner
        self._detokenizer = model.detokenizer()
        self._parser = parser_for(model, prompt)
        if prompt.opened:
            deque(self._parser.feed(prompt.opened), maxlen=0)
        self._count = ReasoningCount(self._parser)
        self._latest: deque[int] = deque(maxlen=len(ending.tag) - 1)
        #: Place of the token that must come next in what ends reasoning; behind it, a choice.
        self._forced: int | None = None
        self._accepted_count = 0
        self._is_active = True
        self._check_limit()

    @property
    def accepted_count(self) -> int:
        """How many tokens of the answer it knows."""
        return self._accepted_count

    @property
    def is_over(self) -> bool:
        """Whether the answer has ended."""
        return self._inner is not None and self._inner.is_over

    @property
    def is_free(self) -> bool:
        """Whether nothing that follows is held to anything."""
        return not self._is_active and (self._inner is None or self._inner.is_free)

    def accept(self, token: int) -> None:
        """Take the next token."""
        self._accepted_count += 1
        if self._inner is not None:
            self._inner.accept(token)
        if not self._is_active:
            return
        if token in self._end_ids:
            self._is_active, self._forced = False, None
            return
        deque(self._parser.feed(self._detokenizer.feed(token)), maxlen=0)
        self._count.record_token()
        self._latest.append(token)
        if not self._advance_ending(token):
            self._check_limit()

    def mask(self) -> bytes | None:
        """Return which tokens may come next, ``None`` for any."""
        tokens = self._ending.tokens
        if self._forced is not None and self._forced < len(tokens):
            return _only({tokens[self._forced]})
        allowed = None if self._inner is None else self._inner.mask()
        if self._forced is None:
            return allowed
        chosen = _only(self._ending.choices)
        if allowed is None:
            return chosen
        both = bytes(one & inner for one, inner in zip(chosen, allowed, strict=False))
        # What the answer is held to knows best which of them cannot be.
        return both if any(both) else allowed

    def _advance_ending(self, token: int) -> bool:
        """Go on in what ends reasoning; return whether there is more of it."""
        tokens = self._ending.tokens
        place, self._forced = self._forced, None
        # Another token was said before anybody held it to anything, by an earlier version perhaps.
        if place is None or token not in tokens[place : place + 1]:
            return False
        if place + 1 < len(tokens) + bool(self._ending.choices):
            self._forced = place + 1
            return True
        if self._parser.is_thinking:
            _log.warning("reasoning_not_closed", accepted=self._accepted_count)
            self._is_active = False
        return False

    def _check_limit(self) -> None:
        """See whether reasoning must end now."""
        if not self._is_active:
            return
        if not self._parser.may_think:
            self._is_active = False
        elif self._parser.is_thinking and self._count.tokens + len(self._ending.tag) >= self._limit:
            self._forced = self._written_of_tag()

    def _written_of_tag(self) -> int:
        """Return how many tokens of the tag the model has written itself."""
        said = tuple(self._latest)
        lengths = range(len(said), 0, -1)
        return next((n for n in lengths if said[-n:] == self._ending.tag[:n]), 0)


def with_reasoning_limit(
    model: LoadedModel, encode: Callable[[str], tuple[int, ...]], end_ids: frozenset[int]
) -> LoadedModel:
    """Return the model, able to close its reasoning where the request wants it closed.

    Args:
        model: As it was loaded.
        encode: From a text to ids.
        end_ids: Tokens that end a turn.
    """
    if model.channel_format is not None:
        tag, ending = model.channel_format.ends[0], _channel_ending(model.channel_format, encode)
        calling = _channel_ending(model.channel_format, encode, calls=True)
    elif model.think_tags is not None:
        tag = model.think_tags.end
        ending = calling = ReasoningEnd(tag=encode(tag))
    else:
        return model
    detokenizer = model.detokenizer()
    if tag not in "".join(map(detokenizer.feed, ending.tag)) + detokenizer.flush():
        _log.warning("reasoning_unlimited", why="the closing tag is not what its tokens say")
        return model

    def constraint(prompt: PreparedPrompt) -> Constraint | None:
        inner = model.constraint(prompt)
        if prompt.thinking_limit is None or prompt.is_raw:
            return inner
        return LimitedReasoning(
            prompt.thinking_limit,
            calling if prompt.tools else ending,
            prompt=prompt,
            model=model,
            end_ids=end_ids,
            inner=inner,
        )

    return replace(model, constraint=constraint)


def _channel_ending(
    form: ChannelFormat, encode: Callable[[str], tuple[int, ...]], *, calls: bool = False
) -> ReasoningEnd:
    """Return what ends a message that is reasoning.

    Args:
        form: How messages are framed.
        encode: From a text to ids.
        calls: Whether a call may be next; where the channel tells, the model chooses it then.
    """
    tag = encode(form.ends[0])
    if calls and form.channel:
        first = frozenset(ids[0] for ids in map(encode, sorted(form.text)) if ids)
        header = encode(f"{form.start}assistant{form.channel}")
        return ReasoningEnd(tag=tag, header=header, choices=first)
    mark = form.channel or " to="
    return ReasoningEnd(
        tag=tag, header=encode(f"{form.start}assistant{mark}{form.final_text}{form.message}")
    )


def parser_for(
    model: LoadedModel, prompt: PreparedPrompt, stop: tuple[str, ...] = ()
) -> AnswerParser:
    """Return what splits the answer to a prompt, from its first token on."""
    tags = None if prompt.is_raw else model.think_tags
    calls = None
    if model.tool_format is not None and prompt.tools:
        calls = CallRules(format=model.tool_format, tools=prompt.tools)
    if model.channel_format is not None and not prompt.is_raw:
        return ChannelParser(model.channel_format, stop, calls=calls)
    thinking = tags is not None and not prompt.opened and model.opens_thinking(prompt.tokens)
    dropped = () if prompt.is_raw else model.dropped
    return SectionParser(tags, stop, thinking=thinking, calls=calls, dropped=dropped)


def _only(tokens: Collection[int]) -> bytes:
    """Return the mask that lets these tokens through."""
    mask = bytearray(max(tokens) // _BITS + 1)
    for token in tokens:
        mask[token // _BITS] |= 1 << token % _BITS
    return bytes(mask)
