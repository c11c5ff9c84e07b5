"""Parse decoded text into reasoning, answer text and tool calls, up to a stop sequence.

An ``AnswerParser`` takes text in pieces of any size and yields ``Part`` values. There are two:
``SectionParser`` for models that put tags around reasoning and calls, and
``channel_parser.ChannelParser`` for models that write several messages with headers. A parser holds
text back while it may still become a tag, and hands a tool call to a ``CallReader``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from domain.chat.logprobs import TokenLogprob
from worker.engine.output.stop_sequences import Hit, TagScanner
from worker.engine.output.tool_calls.json_calls import JsonReader
from worker.engine.output.tool_calls.reader import CallDelta, CallReader, CallRules, WholeReader
from worker.engine.output.tool_calls.tagged_calls import TaggedReader


class Section(StrEnum):
    """Which part of the output a piece of text belongs to."""

    THINKING = "thinking"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of reasoning or of answer text.

    Attributes:
        start: Its offset in all text fed to the parser, in characters.
        logprobs: Log probabilities of its tokens, if requested; the text assembler fills them in.
    """

    section: Section
    text: str
    start: int = field(default=0, compare=False)
    logprobs: tuple[TokenLogprob, ...] = field(default=(), compare=False)


Part = TextPiece | CallDelta


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """The tags around a model's reasoning."""

    start: str
    end: str


class AnswerParser(ABC):
    """Parses the text of one answer. Its parts do not depend on how the text was cut into pieces.

    Attributes:
        thinking_sections: Number of reasoning sections so far, including an open one.
    """

    def __init__(self) -> None:
        #: The text held back.
        self._buffer = ""
        self._fed = 0
        #: Reads an open tool call.
        self._reader: CallReader | None = None
        self.thinking_sections = 0
        self.stop_sequence: str | None = None

    @property
    @abstractmethod
    def is_thinking(self) -> bool:
        """Whether a reasoning section is open."""

    @property
    @abstractmethod
    def may_think(self) -> bool:
        """Whether a reasoning section is open, or may still open."""

    @property
    @abstractmethod
    def is_undecided(self) -> bool:
        """Whether the text held back may turn out to open a reasoning section."""

    @abstractmethod
    def flush(self, *, cut: bool = False) -> Iterator[Part]:
        """Yield the parts held back, at the end of the answer.

        Args:
            cut: Whether the answer was cut short, so that a tag or call may be incomplete.
        """

    def feed(self, text: str) -> Iterator[Part]:
        """Feed more text and yield the parts that are certain now."""
        if self.stop_sequence is not None:
            return
        self._buffer += text
        self._fed += len(text)
        while (yield from self._advance()):
            pass

    @property
    def _buffer_start(self) -> int:
        """Offset of the buffer in all text fed; the buffer is always the end of that text."""
        return self._fed - len(self._buffer)

    def _advance(self) -> Generator[Part, None, bool]:
        """Yield the next parts; return whether more may be certain."""
        if self._reader is None:
            return (yield from self._advance_text())
        text, self._buffer = self._buffer, ""
        yield from self._reader.feed(text)
        if not self._reader.is_over:
            return False
        yield from self._leave_call()
        return True

    @abstractmethod
    def _advance_text(self) -> Generator[Part, None, bool]:
        """Do the same while no tool call is open."""

    @abstractmethod
    def _leave_call(self) -> Iterator[Part]:
        """Continue after a tool call, or with its text if it turned out to be no call."""


class SectionParser(AnswerParser):
    """For models that put tags around reasoning and tool calls.

    White space next to a tag belongs to the template and is dropped. A reasoning section opens only
    before the first visible character of the answer, or of the text after a call, so that an answer
    *about* tags keeps them. Stop sequences apply to answer text only.

    Args:
        thinking: Whether the prompt opened a reasoning section.
        dropped: Markers around the answer to remove.
    """

    def __init__(
        self,
        tags: ThinkTags | None,
        stop: Sequence[str],
        *,
        thinking: bool,
        calls: CallRules | None = None,
        dropped: Sequence[str] = (),
    ) -> None:
        super().__init__()
        assert tags is not None or not thinking, "reasoning without tags could never end"
        self._tags = tags
        self._calls = calls
        self._starts = tuple(tag for tag in calls.format.starts if tag not in stop) if calls else ()
        self._dropped = frozenset(dropped)
        self._stops = TagScanner(stop)
        met = (*stop, *self._starts, *dropped)
        self._visible_scanner = TagScanner(met)
        self._opening = TagScanner((*met, *((tags.start,) if tags else ())))
        self._closing = TagScanner((tags.end,) if tags else ())
        self._section = Section.THINKING if thinking else Section.TEXT
        #: White space before the open tool calls.
        self._gap = ""
        self._visible = False
        self._strip = thinking
        self.thinking_sections = int(thinking)

    @property
    def is_thinking(self) -> bool:
        """Whether a reasoning section is open."""
        return self._section is Section.THINKING

    @property
    def may_think(self) -> bool:
        """Whether a reasoning section is open, or may still open."""
        if self._tags is None or self.stop_sequence is not None:
            return False
        return self.is_thinking or not self._visible or self._calls is not None

    @property
    def is_undecided(self) -> bool:
        """Whether the text held back may turn out to open a reasoning section."""
        return bool(self._buffer) and self._reader is None and not self._visible

    def flush(self, *, cut: bool = False) -> Iterator[Part]:
        """Yield the parts held back, at the end of the answer; see ``AnswerParser``."""
        yield from self.feed("")
        if self._reader is not None:
            yield from self._reader.flush(cut=cut)
            yield from self._leave_call()
        start, rest, self._buffer = self._buffer_start, self._buffer, ""
        yield from self._emit(rest, start)

    def _advance_text(self) -> Generator[Part, None, bool]:
        if self._begins_bare_call():
            text = self._buffer.lstrip()
            gap, self._buffer = self._buffer[: len(self._buffer) - len(text)], text
            self._enter_calls("", gap=gap)
            return True
        hit = self._scanner().search(self._buffer)
        if hit is not None:
            yield from self._leave(hit)
            return self.stop_sequence is None
        safe, start = self._safe_length(), self._buffer_start
        piece, self._buffer = self._buffer[:safe], self._buffer[safe:]
        yield from self._emit(piece, start)
        return False

    def _scanner(self) -> TagScanner:
        if self._section is Section.THINKING:
            return self._closing
        return self._visible_scanner if self._visible else self._opening

    def _leave(self, hit: Hit) -> Iterator[Part]:
        start = self._buffer_start
        before, self._buffer = self._buffer[: hit.start], self._buffer[hit.end :]
        if self._section is Section.THINKING:
            yield from self._emit(before.rstrip(), start)
            self._enter(Section.TEXT)
        elif hit.tag in self._starts:
            text = before.rstrip()
            yield from self._emit(text, start)
            self._enter_calls(hit.tag, gap=before[len(text) :])
        elif hit.tag in self._dropped:
            yield from self._emit(before, start)
        elif self._tags is not None and hit.tag == self._tags.start and not self._visible:
            if before.strip():
                # Visible text precedes the tag in the same piece, so the tag is text as well.
                yield from self._emit(before, start)
                self._buffer = hit.tag + self._buffer
            else:
                self._enter(Section.THINKING)
        else:
            yield from self._emit(before, start)
            self._buffer = ""
            self.stop_sequence = hit.tag

    def _enter(self, section: Section) -> None:
        self._section, self._strip, self._visible = section, True, False
        self.thinking_sections += section is Section.THINKING

    def _begins_bare_call(self) -> bool:
        return (
            self._calls is not None
            and self._calls.format.is_bare
            and self._section is Section.TEXT
            and not self._visible
            and self._buffer.lstrip().startswith("{")
        )

    def _enter_calls(self, start: str, *, gap: str) -> None:
        assert self._calls is not None, "no calls are read"
        self._gap = "" if self._strip else gap
        kind, syntax = self._calls.format, self._calls.format.syntax
        if syntax is not None and not syntax.is_quoted and not syntax.quote:
            self._reader = TaggedReader(self._calls, start)
        else:
            self._reader = (JsonReader if kind.parse is None else WholeReader)(self._calls, start)

    def _leave_call(self) -> Iterator[Part]:
        """Continue after the calls, or with their text if they turned out to be none."""
        reader, self._reader = self._reader, None
        assert reader is not None, "no call is open"
        self._buffer = reader.rest
        if not reader.plain:
            self._enter(Section.TEXT)
            return
        plain = self._gap + reader.plain
        start = self._buffer_start - len(plain)
        hit = self._stops.search(plain)
        if hit is not None:
            plain, self._buffer, self.stop_sequence = plain[: hit.start], "", hit.tag
        yield from self._emit(plain, start)

    def _safe_length(self) -> int:
        safe = self._scanner().safe_length(self._buffer)
        if self._section is Section.THINKING or self._calls is not None:
            return len(self._buffer[:safe].rstrip())
        if not self._visible and self._tags is not None and not self._buffer[:safe].strip():
            return 0
        return safe

    def _emit(self, text: str, start: int) -> Iterator[TextPiece]:
        if self._strip:
            start += len(text) - len(text.lstrip())
            text = text.lstrip()
        if not text:
            return
        self._strip = False
        self._visible = self._visible or not text.isspace()
        yield TextPiece(self._section, text, start)
