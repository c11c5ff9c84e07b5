"""Count the tokens of reasoning, and end reasoning at a limit.

Both work on token ids alone, with the parser that also splits the answer for clients. Therefore
each attempt counts the same number, and an attempt that resumes inside a closing tag continues it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

import structlog

from domain.chat.generation import PreparedPrompt
from worker.engine.grammar.ports import Constraint
from worker.engine.output.channel_parser import ChannelFormat
from worker.engine.output.output_parser import AnswerParser
from worker.engine.ports import LoadedModel

_log = structlog.get_logger(__name__)

_BITS: Final = 8


class ReasoningCount:
    """Counts the tokens of reasoning in an answer, including those of its tags.

    Args:
        parser: The parser that the text of the answer is fed to.
    """

    def __init__(self, parser: AnswerParser) -> None:
        self._parser = parser
        self._was_thinking = parser.is_thinking
        self._sections = parser.thinking_sections
        #: Number of newest tokens that may be the beginning of an opening tag.
        self._undecided_tokens = 0
        self.tokens = 0

    def record_token(self) -> None:
        """Count a token, after its text was fed to the parser."""
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
    """The tokens that end reasoning.

    Attributes:
        tag: The closing tag; its tokens count as reasoning.
        header: The header after the tag, before the answer.
        choices: Tokens of which one must follow the header; empty allows any token.
    """

    tag: tuple[int, ...]
    header: tuple[int, ...] = ()
    choices: frozenset[int] = frozenset()

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens to force, in order."""
        return self.tag + self.header


class LimitedReasoning:
    """``Constraint`` that ends reasoning at a limit, and otherwise applies another constraint.

    The tokens of the closing tag count towards the limit, so forcing begins before it is reached.
    Each mask allows one token of the ending, and the network computes these tokens like any others.

    Args:
        limit: Most tokens of reasoning; a closing tag is complete even if it exceeds the limit.
        inner: The constraint of the rest of the answer, if any.
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
        self._parser = model.parser(prompt)
        if prompt.opened:
            deque(self._parser.feed(prompt.opened), maxlen=0)
        self._count = ReasoningCount(self._parser)
        self._latest: deque[int] = deque(maxlen=len(ending.tag) - 1)
        #: Index in ``ending.tokens`` of the token to force next; their number means a choice.
        self._forced: int | None = None
        self.accepted_count = 0
        self._is_active = True
        self._check_limit()

    @property
    def is_over(self) -> bool:
        """Whether the answer has ended."""
        return self._inner is not None and self._inner.is_over

    @property
    def is_free(self) -> bool:
        """Whether all further tokens are unconstrained."""
        return not self._is_active and (self._inner is None or self._inner.is_free)

    def accept(self, token: int) -> None:
        """Accept the next token of the answer."""
        self.accepted_count += 1
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
        """Return the mask of allowed next tokens, ``None`` for any token."""
        tokens = self._ending.tokens
        if self._forced is not None and self._forced < len(tokens):
            return _only({tokens[self._forced]})
        allowed = None if self._inner is None else self._inner.mask()
        if self._forced is None:
            return allowed
        chosen = _only(self._ending.choices)
        if allowed is None:
            return chosen
        both = bytes(left & right for left, right in zip(chosen, allowed, strict=False))
        # The inner constraint wins if it allows none of the choices.
        return both if any(both) else allowed

    @property
    def is_near_limit(self) -> bool:
        """Whether the limit of all tokens may change one of the next draws."""
        return self._forced is None and self._inner is not None and self._inner.is_near_limit

    @property
    def is_cut(self) -> bool:
        """Whether the limit of all tokens has changed a draw."""
        return self._inner is not None and self._inner.is_cut

    def within_limit(self, token: int) -> int:
        """Return the token that comes in the place of a drawn one, usually the same."""
        return token if self._inner is None else self._inner.within_limit(token)

    @property
    def looks_ahead(self) -> bool:
        """Whether reasoning has ended, and the inner constraint looks ahead."""
        return not self._is_active and self._inner is not None and self._inner.looks_ahead

    def ahead(self) -> Constraint | None:
        """Return a copy of the inner constraint; ``None`` while reasoning may reach its limit."""
        return None if self._is_active or self._inner is None else self._inner.ahead()

    def _advance_ending(self, token: int) -> bool:
        """Advance in the ending; return whether more of it must follow."""
        tokens = self._ending.tokens
        index, self._forced = self._forced, None
        # An earlier attempt without this constraint may have sampled another token.
        if index is None or token not in tokens[index : index + 1]:
            return False
        if index + 1 < len(tokens) + bool(self._ending.choices):
            self._forced = index + 1
            return True
        if self._parser.is_thinking:
            _log.warning("reasoning_not_closed", accepted=self.accepted_count)
            self._is_active = False
        return False

    def _check_limit(self) -> None:
        """Begin to force the ending if reasoning has reached its limit."""
        if not self._is_active:
            return
        if not self._parser.may_think:
            self._is_active = False
        elif self._parser.is_thinking and self._count.tokens + len(self._ending.tag) >= self._limit:
            self._forced = self._tag_tokens_written()

    def _tag_tokens_written(self) -> int:
        """Return how many tokens of the tag the model has already written."""
        latest = tuple(self._latest)
        lengths = range(len(latest), 0, -1)
        return next((n for n in lengths if latest[-n:] == self._ending.tag[:n]), 0)


def with_reasoning_limit(
    model: LoadedModel, encode: Callable[[str], tuple[int, ...]], end_ids: frozenset[int]
) -> LoadedModel:
    """Return a model whose constraints end reasoning at the limit of the request."""
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
        _log.warning(
            "reasoning_unlimited", why="the tokens of the closing tag decode to another text"
        )
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
    channel_format: ChannelFormat, encode: Callable[[str], tuple[int, ...]], *, calls: bool = False
) -> ReasoningEnd:
    """Return the ending of a message of reasoning.

    Args:
        calls: Whether tools may be called; with channels, the model then chooses the next one.
    """
    tag = encode(channel_format.ends[0])
    if calls and channel_format.channel:
        first = frozenset(ids[0] for ids in map(encode, sorted(channel_format.text)) if ids)
        header = encode(f"{channel_format.start}assistant{channel_format.channel}")
        return ReasoningEnd(tag=tag, header=header, choices=first)
    destination = channel_format.channel or " to="
    return ReasoningEnd(
        tag=tag,
        header=encode(
            f"{channel_format.start}assistant{destination}{channel_format.final_text}{channel_format.message}"
        ),
    )


def _only(tokens: Collection[int]) -> bytes:
    """Return the mask that allows exactly these tokens."""
    mask = bytearray(max(tokens) // _BITS + 1)
    for token in tokens:
        mask[token // _BITS] |= 1 << token % _BITS
    return bytes(mask)
