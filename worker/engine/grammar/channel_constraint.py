"""Hold an answer in frames to its form: calls to their tools, the answer to its schema.

Reasoning, and messages without a form, are free; so is a header up to its recipient. Which part a
token belongs to is told from the tokens alone, so an answer that is resumed stands where it stood.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from domain.chat.generation import PreparedPrompt
from domain.errors import InvalidRequest
from worker.engine.grammar.answer_grammar import GrammarWriter
from worker.engine.grammar.channel_grammar import ChannelGrammarWriter
from worker.engine.grammar.ports import Constraint, GrammarRefused, Grammars, Matcher
from worker.engine.grammar.strictness import require_exact_schemas
from worker.engine.output.channel_format import ChannelFormat, ChannelHeader
from worker.engine.output.detokenizer import Detokenizer
from worker.engine.output.stop_sequences import TagScanner

_log = structlog.get_logger(__name__)

_RECIPIENT: Final = re.compile(r"(?:^|\s)to=")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelPlan:
    """What the messages of an answer are held to.

    Attributes:
        channel_format: How they are framed.
        end_ids: Tokens that end the answer.
        opened: The beginning of a call that the prompt has written.
        first: Makes what follows the first header, where the answer has a form.
        later: The same for headers after it, from their start mark on.
        unended: All tokens but those that end the answer, as a mask: what reasoning may be before
            an answer that has a form.
        call: Makes what follows ``to=`` in a header, where the header makes the call.
    """

    channel_format: ChannelFormat
    end_ids: frozenset[int]
    opened: str = ""
    first: Callable[[], Matcher] | None = None
    later: Callable[[], Matcher] | None = None
    unended: bytes | None = None
    call: Callable[[], Matcher] | None = None


class ChannelConstraint:
    """``constraint.Constraint`` for a plan.

    Args:
        plan: What is asked.
        detokenizer: Fresh.
    """

    def __init__(self, plan: ChannelPlan, detokenizer: Detokenizer) -> None:
        self._plan = plan
        self._detokenizer = detokenizer
        self._marks = TagScanner(plan.channel_format.markers)
        self._accepted_count = 0
        self._is_over = False
        self._is_free = False
        #: What may come where no grammar is followed.
        self._free = plan.unended
        self._matcher: Matcher | None = None
        self._header: ChannelHeader | None = None
        #: Text in which a mark may begin, or of a header.
        self._held = ""
        if plan.first is not None:
            self._follow(plan.first(), "")
        else:
            self._header = ChannelHeader(plan.channel_format, is_started=False)
            self._read(plan.opened)

    @property
    def accepted_count(self) -> int:
        """How many tokens of the answer it knows."""
        return self._accepted_count

    @property
    def is_over(self) -> bool:
        """Whether the answer has ended."""
        return self._is_over

    @property
    def is_free(self) -> bool:
        """Whether nothing is held to anything any more."""
        return self._is_free

    def accept(self, token: int) -> None:
        """Take the next token."""
        self._accepted_count += 1
        if token in self._plan.end_ids:
            self._is_over, self._matcher, self._free = True, None, None
            return
        text = self._detokenizer.feed(token)
        if self._matcher is None:
            self._read(text)
        elif not self._matcher.accept(token):
            # It was said before anybody was held to anything, by an earlier version perhaps.
            self._give_up()
        elif self._matcher.is_over:
            self._matcher = None

    def mask(self) -> bytes | None:
        """Return which tokens may come next, ``None`` for any."""
        return self._free if self._matcher is None else self._matcher.mask()

    def _read(self, text: str) -> None:
        """Take text of a part that is held to nothing."""
        self._held += text
        while self._matcher is None and (hit := self._marks.search(self._held)) is not None:
            before, rest = self._held[: hit.start], self._held[hit.end :]
            if self._header is not None and self._calls(before, hit.tag + rest):
                return
            self._held = rest
            self._met(hit.tag)
        if self._matcher is None:
            safe = self._marks.safe_length(self._held)
            piece, self._held = self._held[:safe], self._held[safe:]
            if self._header is not None:
                self._calls(piece, self._held)

    def _met(self, mark: str) -> None:
        channel_format = self._plan.channel_format
        if self._plan.later is not None:
            if mark == channel_format.start:
                self._follow(self._plan.later(), mark)
            elif mark == channel_format.channel and self._plan.first is not None:
                self._follow(self._plan.first(), mark)
            elif mark in channel_format.ends:
                self._follow(self._plan.later(), "")
        elif mark == channel_format.start:
            self._header = ChannelHeader(channel_format, is_started=True)
        elif mark in (channel_format.channel, channel_format.constrain) and mark:
            if self._header is None and mark == channel_format.channel:
                self._header = ChannelHeader(channel_format, is_started=False)
            if self._header is not None:
                self._header.add_marker(mark)
        else:
            self._header = None

    def _calls(self, piece: str, rest: str) -> bool:
        """Take more of a header; return whether it has come to whom the message is for."""
        assert self._header is not None, "no header is read"
        if self._header.add(piece) is not None:
            self._header = None
            return False
        part = self._header.part
        found = _RECIPIENT.search(part) if self._plan.call is not None else None
        if found is None or not self._header.is_assistant:
            return False
        self._header = None
        assert self._plan.call is not None, "no calls are held"
        self._follow(self._plan.call(), part[found.end() :] + rest)
        return True

    def _follow(self, matcher: Matcher, text: str) -> None:
        """Go on by a grammar, of which a text is said already."""
        self._matcher, self._held, self._header = matcher, "", None
        if text and not matcher.accept_text(text):
            self._give_up()
        elif matcher.is_over:
            self._matcher = None

    def _give_up(self) -> None:
        _log.warning("constraint_given_up", part="FRAMES", accepted=self._accepted_count)
        self._matcher, self._header, self._held, self._free = None, None, "", None
        self._is_free = True


class ChannelConstraints:
    """Makes the constraint of each answer of one model. Safe to use from any thread.

    Args:
        grammars: For the model's vocabulary.
        detokenizer: Makes a fresh one.
        channel_format: How the model frames its messages.
    """

    def __init__(
        self,
        grammars: Grammars,
        detokenizer: Callable[[], Detokenizer],
        channel_format: ChannelFormat,
    ) -> None:
        self._grammars = grammars
        self._schemas = GrammarWriter(grammars.refusal, grammars.tag)
        self._writer = ChannelGrammarWriter(channel_format, self._schemas, grammars.tag)
        self._detokenizer = detokenizer
        self._format = channel_format

    def constraint(self, prompt: PreparedPrompt) -> Constraint | None:
        """Return what the answer to a prompt is held to, ``None`` if it may say anything.

        Raises:
            InvalidRequest: The form cannot be kept, and the caller would rather know.
        """
        has_form = prompt.answer_schema is not None and not prompt.opened
        # Where the header makes no call, one that must be made is held to a tool's name alone.
        is_named = self._format.message in prompt.opened
        by_name = bool(prompt.opened) and not is_named
        calls = bool(prompt.tools) and (bool(self._format.call_prefix) or by_name)
        if not has_form and not calls:
            return None
        if calls:
            require_exact_schemas(prompt, partial(self._schemas.why_wider, None))
        try:
            first = later = None
            if has_form:
                answer = self._answer(prompt)
                first, later = (
                    self._maker(self._writer.header(answer, prompt.tools, is_first=is_first))
                    for is_first in (True, False)
                )
            call = self._maker(self._writer.call(prompt.tools)) if calls else None
        except GrammarRefused as error:
            _log.warning("answer_unconstrained", why=str(error))
            return None
        plan = ChannelPlan(
            channel_format=self._format,
            end_ids=self._grammars.end_ids,
            opened=prompt.opened,
            first=first,
            later=later,
            unended=self._unended(first()) if first is not None else None,
            call=call,
        )
        return ChannelConstraint(plan, self._detokenizer())

    def _answer(self, prompt: PreparedPrompt) -> str:
        assert prompt.answer_schema is not None, "the answer has no form"
        rule, why = self._schemas.schema_rule(prompt.answer_schema)
        if why is not None:
            if prompt.is_strict:
                msg = f"the schema of the answer cannot be kept: {why}"
                raise InvalidRequest(msg)
            _log.warning("answer_wider_than_schema", why=why)
        return rule

    def _unended(self, matcher: Matcher) -> bytes:
        mask = bytearray(b"\xff" * len(matcher.mask()))
        for token in self._grammars.end_ids:
            mask[token // 8] &= ~(1 << token % 8)
        return bytes(mask)

    def _maker(self, grammar: str) -> Callable[[], Matcher]:
        """Return a maker of matchers; the first is made now, so that a refusal comes at once."""
        self._grammars.matcher(grammar)
        return lambda: self._grammars.matcher(grammar)
