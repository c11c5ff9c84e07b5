"""Split what a model says into reasoning, answer and tool calls, and end it at a stop text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

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
    """A piece of text.

    Attributes:
        section: What it belongs to.
        text: What is said.
        start: Where it stands in all that was fed, in characters.
        logprobs: Of the tokens that it begins, where somebody asked; the splitter knows none.
    """

    section: Section
    text: str
    start: int = field(default=0, compare=False)
    logprobs: tuple[TokenLogprob, ...] = field(default=(), compare=False)


Part = TextPiece | CallDelta


class AnswerParser(Protocol):
    """Tells reasoning, answer and tool calls apart. What it says does not depend on the cuts.

    Attributes:
        thinking_sections: Sections of reasoning so far, an open one included.
        stop_sequence: The stop text that was met; nothing follows it.
    """

    thinking_sections: int
    stop_sequence: str | None

    @property
    def is_thinking(self) -> bool:
        """Whether a section of reasoning is open."""
        ...

    @property
    def may_think(self) -> bool:
        """Whether one is open, or may open yet."""
        ...

    @property
    def is_undecided(self) -> bool:
        """Whether what is held back may turn out to open one."""
        ...

    def feed(self, text: str) -> Iterator[Part]:
        """Take more text and yield what is certain now."""
        ...

    def flush(self, *, cut: bool = False) -> Iterator[Part]:
        """Yield what was held back, at the end, to which the model came unless it was cut."""
        ...


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """How a model marks its reasoning."""

    start: str
    end: str


class BufferedParser(ABC):
    """What splitters share: text that is not certain yet, and the call that is being read.

    Attributes:
        stop_sequence: The stop text that was met; nothing follows it.
    """

    def __init__(self) -> None:
        self._held = ""
        self._fed = 0
        self._reader: CallReader | None = None
        self.stop_sequence: str | None = None

    def feed(self, text: str) -> Iterator[Part]:
        """Take more text and yield what is certain now."""
        if self.stop_sequence is not None:
            return
        self._held += text
        self._fed += len(text)
        while (yield from self._advance()):
            pass

    @property
    def _start(self) -> int:
        """Where what is held stands in all that was fed: it is always the end of it."""
        return self._fed - len(self._held)

    def _advance(self) -> Generator[Part, None, bool]:
        """Yield what is next; return whether more may be certain."""
        if self._reader is None:
            return (yield from self._advance_text())
        text, self._held = self._held, ""
        yield from self._reader.feed(text)
        if not self._reader.is_over:
            return False
        yield from self._left_call()
        return True

    @abstractmethod
    def _advance_text(self) -> Generator[Part, None, bool]:
        """Do the same where no call is being read."""

    @abstractmethod
    def _left_call(self) -> Iterator[Part]:
        """Go on behind a call, or with the plain text that it turned out to be."""


class SectionParser(BufferedParser):
    """Takes decoded text and yields texts and calls without the tags.

    White space next to the tags belongs to the template and is dropped. A reasoning section may
    open only before the first visible character of the answer or of what follows a call, so that
    an answer *about* tags keeps them. Stop texts count in the answer alone.

    Args:
        tags: The model's reasoning tags, if it has any.
        stop: Texts that end the output.
        thinking: Whether the prompt has opened a reasoning section.
        calls: How tool calls are read, if they are.
        dropped: Marks around the answer that are no part of it.
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
        #: White space before the calls that are being read.
        self._gap = ""
        self._visible = False
        self._strip = thinking
        #: Sections of reasoning so far, an open one included.
        self.thinking_sections = int(thinking)

    @property
    def is_thinking(self) -> bool:
        """Whether a reasoning section is open."""
        return self._section is Section.THINKING

    @property
    def may_think(self) -> bool:
        """Whether a reasoning section is open, or may open yet."""
        if self._tags is None or self.stop_sequence is not None:
            return False
        return self.is_thinking or not self._visible or self._calls is not None

    @property
    def is_undecided(self) -> bool:
        """Whether what is held back may turn out to open a reasoning section."""
        return bool(self._held) and self._reader is None and not self._visible

    def flush(self, *, cut: bool = False) -> Iterator[Part]:
        """Yield what was held back, at the end.

        Args:
            cut: The model did not come to its own end.
        """
        yield from self.feed("")
        if self._reader is not None:
            yield from self._reader.flush(cut=cut)
            yield from self._left_call()
        start, held, self._held = self._start, self._held, ""
        yield from self._say(held, start)

    def _advance_text(self) -> Generator[Part, None, bool]:
        if self._begins_bare_call():
            self._enter_bare_call()
            return True
        hit = self._scanner().search(self._held)
        if hit is not None:
            yield from self._leave(hit)
            return self.stop_sequence is None
        safe, start = self._safe_length(), self._start
        piece, self._held = self._held[:safe], self._held[safe:]
        yield from self._say(piece, start)
        return False

    def _scanner(self) -> TagScanner:
        if self._section is Section.THINKING:
            return self._closing
        return self._visible_scanner if self._visible else self._opening

    def _leave(self, hit: Hit) -> Iterator[Part]:
        start = self._start
        before, self._held = self._held[: hit.start], self._held[hit.end :]
        if self._section is Section.THINKING:
            yield from self._say(before.rstrip(), start)
            self._enter(Section.TEXT)
        elif hit.tag in self._starts:
            text = before.rstrip()
            yield from self._say(text, start)
            self._enter_calls(hit.tag, gap=before[len(text) :])
        elif hit.tag in self._dropped:
            yield from self._say(before, start)
        elif self._tags is not None and hit.tag == self._tags.start and not self._visible:
            if before.strip():
                # Visible text stands before the tag in the same piece: the tag is text as well.
                yield from self._say(before, start)
                self._held = hit.tag + self._held
            else:
                self._enter(Section.THINKING)
        else:
            yield from self._say(before, start)
            self._held = ""
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
            and self._held.lstrip().startswith("{")
        )

    def _enter_bare_call(self) -> None:
        text = self._held.lstrip()
        gap = self._held[: len(self._held) - len(text)]
        self._held = text
        self._enter_calls("", gap=gap)

    def _enter_calls(self, start: str, *, gap: str) -> None:
        assert self._calls is not None, "no calls are read"
        self._gap = "" if self._strip else gap
        self._reader = _reader_for(self._calls)(self._calls, start)

    def _left_call(self) -> Iterator[Part]:
        """Go on behind the calls, or with the plain text that they turned out to be."""
        reader, self._reader = self._reader, None
        assert reader is not None, "nothing to leave"
        self._held = reader.rest
        if not reader.plain:
            self._enter(Section.TEXT)
            return
        plain = self._gap + reader.plain
        start = self._start - len(plain)
        hit = self._stops.search(plain)
        if hit is not None:
            plain, self._held, self.stop_sequence = plain[: hit.start], "", hit.tag
        yield from self._say(plain, start)

    def _safe_length(self) -> int:
        safe = self._scanner().safe_length(self._held)
        if self._section is Section.THINKING or self._calls is not None:
            return len(self._held[:safe].rstrip())
        if not self._visible and self._tags is not None and not self._held[:safe].strip():
            return 0
        return safe

    def _say(self, text: str, start: int) -> Iterator[TextPiece]:
        if self._strip:
            start += len(text) - len(text.lstrip())
            text = text.lstrip()
        if not text:
            return
        self._strip = False
        self._visible = self._visible or not text.isspace()
        yield TextPiece(self._section, text, start)


def _reader_for(rules: CallRules) -> Callable[[CallRules, str], CallReader]:
    if rules.format.syntax is not None and not rules.format.syntax.is_quoted:
        return TaggedReader
    return JsonReader if rules.format.parse is None else WholeReader
