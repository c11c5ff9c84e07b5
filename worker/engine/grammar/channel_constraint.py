"""Constrain an answer in a channel format: headers, tool calls to their tools, and the answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from domain.chat.generation import PreparedPrompt
from worker.engine.grammar.constraints import GrammarWriter, answer_rule, require_exact_schemas
from worker.engine.grammar.guidance import GuidanceGrammars, GuidanceMatcher
from worker.engine.grammar.ports import Constraint, GrammarRefused, Unlimited
from worker.engine.grammar.text_grammar import quoted
from worker.engine.output.channel_parser import ChannelFormat, ChannelHeader
from worker.engine.output.detokenizer import Detokenizer
from worker.engine.output.stop_sequences import TagScanner
from worker.engine.output.tool_calls.reader import Tool

#: An optional space, where templates and models differ.
_SPACE: Final = "sp: / ?/"


class ChannelGrammarWriter:
    """Writes Lark grammars for one channel format."""

    def __init__(
        self, channel_format: ChannelFormat, writer: GrammarWriter, tag: Callable[[str], str]
    ) -> None:
        self._format = channel_format
        self._writer = writer
        self._tag = tag

    def call(self, tools: Sequence[Tool]) -> str:
        """Return the grammar of a tool call after ``to=``, up to its end."""
        return "\n".join(["start: called", *self._called(tools), _SPACE])

    def header(self, answer: str, tools: Sequence[Tool], *, is_first: bool) -> str:
        """Return the grammar of a header, and of its message, in an answer with a schema.

        The grammar ends after the header if the message is reasoning, or a tool call without a
        constraint on its arguments.

        Args:
            tools: The tools that may be called instead of answering.
            is_first: Whether the prompt contains the start marker of the message.
        """
        form, message = self._format, self._tag(self._format.message)
        kind = f' (sp {self._tag(form.constrain)} "json")?' if form.constrain else ""
        lead = f"{self._tag(form.channel)}" if form.channel else "sp"
        thinking, final = (
            ("", form.final_text) if form.channel else ("to=", f"to={form.final_text}")
        )
        choices = [
            *(f"{quoted(thinking + name)} {message}" for name in sorted(form.thinking)),
            f"{quoted(final)} {kind} sp {message} answer {self._tag(form.last_ends[0])}",
        ]
        rules = [f"answer: {answer}", _SPACE]
        if tools:
            choices.append(f"{quoted('commentary to=' if form.channel else 'to=')} called")
            rules += self._called(tools)
        start = "" if is_first else f'{self._tag(form.start)} "assistant" '
        return "\n".join([f"start: {start}{lead} ({' | '.join(choices)})", *rules])

    def _called(self, tools: Sequence[Tool]) -> list[str]:
        form = self._format
        names = [quoted(form.call_prefix + tool["function"]["name"]) for tool in tools]
        if not form.call_prefix:
            return [f"called: ({' | '.join(names)}) {self._tag(form.message)}"]
        end = self._tag(form.last_ends[-1])
        one = " | ".join(f"{name} head args{n} {end}" for n, name in enumerate(names))
        # The recipient may also follow the role, before the channel.
        channel = f'(sp {self._tag(form.channel)} "commentary")?'
        # Without a space, the word would become part of the tool's name.
        kind = f'(sp {self._tag(form.constrain)} "json" | " json")?'
        head = f"{channel} {kind} sp {self._tag(form.message)}"
        args = [f"args{n}: {self._writer.arguments(tool)}" for n, tool in enumerate(tools)]
        return [f"called: {one}", f"head: {head}", *args]


_log = structlog.get_logger(__name__)

_RECIPIENT: Final = re.compile(r"(?:^|\s)to=")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelPlan:
    """The grammars of the messages of an answer.

    Attributes:
        first: Makes a matcher of the first header; ``None`` if the answer has no schema.
        later: The same for later headers, from their start marker on.
        free_mask: The mask of free parts before an answer with a schema: all tokens except those
            that end the answer.
        call: Makes a matcher of a call after ``to=`` in a header; ``None`` if calls are free.
    """

    channel_format: ChannelFormat
    end_ids: frozenset[int]
    opened: str = ""
    first: Callable[[], GuidanceMatcher] | None = None
    later: Callable[[], GuidanceMatcher] | None = None
    free_mask: bytes | None = None
    call: Callable[[], GuidanceMatcher] | None = None


class ChannelConstraint(Unlimited):
    """``Constraint`` that follows a ``ChannelPlan``.

    Args:
        detokenizer: A fresh one.
    """

    looks_ahead = True

    def __init__(self, plan: ChannelPlan, detokenizer: Detokenizer) -> None:
        self._plan = plan
        self._detokenizer = detokenizer
        self._markers = TagScanner(plan.channel_format.markers)
        self.accepted_count = 0
        self.is_over = False
        self.is_free = False
        #: The mask while no matcher is active.
        self._free = plan.free_mask
        self._matcher: GuidanceMatcher | None = None
        self._header: ChannelHeader | None = None
        #: Text of a header, or text that may contain the beginning of a marker.
        self._buffer = ""
        if plan.first is not None:
            self._start_matcher(plan.first(), "")
        else:
            self._header = ChannelHeader(plan.channel_format, is_started=False)
            self._read_free_text(plan.opened)

    def accept(self, token: int) -> None:
        """Accept the next token of the answer."""
        self.accepted_count += 1
        if token in self._plan.end_ids:
            self.is_over, self._matcher, self._free = True, None, None
            return
        text = self._detokenizer.feed(token)
        if self._matcher is None:
            self._read_free_text(text)
        elif not self._matcher.accept(token):
            # An earlier attempt without this constraint may have sampled the token.
            self._give_up()
        elif self._matcher.is_over:
            self._matcher = None

    def mask(self) -> bytes | None:
        """Return the mask of allowed next tokens, ``None`` for any token."""
        return self._free if self._matcher is None else self._matcher.mask()

    def ahead(self) -> ChannelConstraint:
        """Return a copy, to follow tokens that may come."""
        other = copy(self)
        other._detokenizer = self._detokenizer.copied()  # noqa: SLF001 - a copy of this one
        if self._matcher is not None:
            other._matcher = self._matcher.copied()  # noqa: SLF001 - a copy of this one
        if self._header is not None:
            other._header = self._header.copied()  # noqa: SLF001 - a copy of this one
        return other

    def _read_free_text(self, text: str) -> None:
        """Search free text for markers, and headers for a recipient."""
        self._buffer += text
        while self._matcher is None and (hit := self._markers.search(self._buffer)) is not None:
            before, rest = self._buffer[: hit.start], self._buffer[hit.end :]
            if self._header is not None and self._read_header(before, hit.tag + rest):
                return
            self._buffer = rest
            self._handle_marker(hit.tag)
        if self._matcher is None:
            safe = self._markers.safe_length(self._buffer)
            piece, self._buffer = self._buffer[:safe], self._buffer[safe:]
            if self._header is not None:
                self._read_header(piece, self._buffer)

    def _handle_marker(self, marker: str) -> None:
        channel_format = self._plan.channel_format
        if self._plan.later is not None:
            if marker == channel_format.start:
                self._start_matcher(self._plan.later(), marker)
            elif marker == channel_format.channel and self._plan.first is not None:
                self._start_matcher(self._plan.first(), marker)
            elif marker in channel_format.ends:
                self._start_matcher(self._plan.later(), "")
        elif marker == channel_format.start:
            self._header = ChannelHeader(channel_format, is_started=True)
        elif marker in (channel_format.channel, channel_format.constrain) and marker:
            if self._header is None and marker == channel_format.channel:
                self._header = ChannelHeader(channel_format, is_started=False)
            if self._header is not None:
                self._header.add_marker(marker)
        else:
            self._header = None

    def _read_header(self, piece: str, rest: str) -> bool:
        """Append to the header; return whether it has reached the recipient of a call."""
        assert self._header is not None, "no header is read"
        if self._header.add(piece) is not None:
            self._header = None
            return False
        part = self._header.part
        found = _RECIPIENT.search(part) if self._plan.call is not None else None
        if found is None or not self._header.is_assistant:
            return False
        self._header = None
        assert self._plan.call is not None, "the plan has no calls"
        self._start_matcher(self._plan.call(), part[found.end() :] + rest)
        return True

    def _start_matcher(self, matcher: GuidanceMatcher, text: str) -> None:
        """Continue with a matcher that first accepts ``text``."""
        self._matcher, self._buffer, self._header = matcher, "", None
        if text and not matcher.accept_text(text):
            self._give_up()
        elif matcher.is_over:
            self._matcher = None

    def _give_up(self) -> None:
        _log.warning("constraint_given_up", part="CHANNELS", accepted=self.accepted_count)
        self._matcher, self._header, self._buffer, self._free = None, None, "", None
        self.is_free = True


@dataclass(frozen=True, slots=True)
class ChannelConstraints:
    """Makes the constraints of one model's answers. Safe to use from any thread."""

    library: GuidanceGrammars
    detokenizer: Callable[[], Detokenizer]
    channel_format: ChannelFormat

    def constraint(self, prompt: PreparedPrompt) -> Constraint | None:
        """Return the constraint of the answer to a prompt, ``None`` if all tokens are allowed.

        Raises:
            InvalidRequest: A strict schema cannot be enforced.
        """
        has_schema = prompt.answer_schema is not None and not prompt.opened
        # If headers make no calls, a grammar can only enforce the tool's name of a forced call.
        is_named = self.channel_format.message in prompt.opened
        by_name = bool(prompt.opened) and not is_named
        calls = bool(prompt.tools) and (bool(self.channel_format.call_prefix) or by_name)
        if not has_schema and not calls:
            return None
        grammars = self.library.of(prompt.claim)
        schemas = GrammarWriter(grammars.refusal, grammars.tag)
        writer = ChannelGrammarWriter(self.channel_format, schemas, grammars.tag)
        if calls:
            require_exact_schemas(prompt, partial(schemas.why_wider, None))
        try:
            first = later = None
            if has_schema:
                answer = answer_rule(schemas, prompt)
                first, later = (
                    grammars.matchers(writer.header(answer, prompt.tools, is_first=is_first))
                    for is_first in (True, False)
                )
            call = grammars.matchers(writer.call(prompt.tools)) if calls else None
        except GrammarRefused:
            _log.warning("answer_unconstrained")  # the reason quotes the schema
            return None
        plan = ChannelPlan(
            channel_format=self.channel_format,
            end_ids=grammars.end_ids,
            opened=prompt.opened,
            first=first,
            later=later,
            free_mask=_all_but(grammars.end_ids, first()) if first is not None else None,
            call=call,
        )
        return ChannelConstraint(plan, self.detokenizer())


def _all_but(ids: Collection[int], matcher: GuidanceMatcher) -> bytes:
    mask = bytearray(b"\xff" * len(matcher.mask()))
    for token in ids:
        mask[token // 8] &= ~(1 << token % 8)
    return bytes(mask)
