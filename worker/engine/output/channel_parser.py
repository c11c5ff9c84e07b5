"""Split an answer that is several framed messages into reasoning, answer and tool calls.

No mark of a frame is ever told. A header that says nothing known, breaks off or is repeated loses
nothing of what the model said: its words are text, or reasoning if the channel is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Final

from worker.engine.output.channel_format import ChannelFormat, ChannelHeader
from worker.engine.output.output_parser import BufferedParser, Part, Section, TextPiece
from worker.engine.output.stop_sequences import TagScanner
from worker.engine.output.tool_calls.arguments import ArgumentsReader
from worker.engine.output.tool_calls.reader import CallRules, WholeReader

#: Between two messages that become one text.
_GAP: Final = "\n\n"
#: Recipients that make no message a call.
_NO_TOOLS: Final = ("", "assistant", "user")


class ChannelParser(BufferedParser):
    """``sections.Splitter`` for families that frame their messages.

    What stands between frames is text. Stop texts count in the answer alone, and not inside calls.

    Args:
        form: How messages are framed.
        stop: Texts that end the output.
        calls: How tool calls are read, if they are.
    """

    def __init__(
        self, form: ChannelFormat, stop: Sequence[str], *, calls: CallRules | None = None
    ) -> None:
        super().__init__()
        self._form = form
        self._rules = calls
        stops = tuple(text for text in stop if text not in form.markers)
        # Where the header makes the call, its own marks are all there is to look for.
        self._starts = () if calls is None or form.call_prefix else calls.format.starts
        self._marks = TagScanner(form.markers)
        self._stops = TagScanner(stops)
        self._visible = TagScanner((*form.markers, *self._starts, *stops))
        self._header: ChannelHeader | None = ChannelHeader(form, is_started=False)
        self._section = Section.TEXT
        #: White space that comes next stands between frames.
        self._strip = False
        #: What was said last, and whether the next word begins another message.
        self._last: Section | None = None
        self._is_new = False
        self.thinking_sections = 0

    @property
    def is_thinking(self) -> bool:
        """Whether a message that is reasoning is open."""
        is_message = self._header is None and self._reader is None
        return is_message and self._section is Section.THINKING

    @property
    def may_think(self) -> bool:
        """Whether such a message is open, or may follow."""
        return self.stop_sequence is None

    @property
    def is_undecided(self) -> bool:
        """Whether a header is open, which may be that of such a message."""
        return self._header is not None

    def flush(self, *, cut: bool = False) -> Iterator[Part]:
        """Yield what was held back, at the end.

        Args:
            cut: The model did not come to its own end.
        """
        yield from self.feed("")
        if self._reader is not None:
            yield from self._reader.flush(cut=cut)
            yield from self._left_call()
        elif self._header is not None:
            self._held = self._header.add(self._held) or ""
            self._give_up_header(cut=cut)
        yield from self.feed("")
        start, held, self._held = self._start, self._held, ""
        yield from self._say(held, start)

    def _advance_text(self) -> Generator[Part, None, bool]:
        if self._header is not None:
            return (yield from self._read_header(self._header))
        return (yield from self._read_message())

    # -- headers ---------------------------------------------------------------------------------

    def _read_header(self, header: ChannelHeader) -> Generator[Part, None, bool]:
        hit = self._marks.search(self._held)
        end = self._marks.safe_length(self._held) if hit is None else hit.start
        piece, self._held = self._held[:end], self._held[end:]
        rest = header.add(piece)
        if rest is not None:
            self._held = rest + self._held
            self._give_up_header()
            return True
        if hit is None:
            return False
        self._held = self._held[len(hit.tag) :]
        if hit.tag == self._form.message:
            yield from self._enter_message(header)
        elif hit.tag in (self._form.channel, self._form.constrain):
            header.add_marker(hit.tag)
        else:
            self._held = hit.tag + self._held
            self._give_up_header()
        return True

    def _give_up_header(self, *, cut: bool = False) -> None:
        """Go on with what a header holds as if it were the message."""
        header, self._header = self._header, None
        assert header is not None, "no header to give up"
        self._enter(Section.THINKING if header.is_thinking else Section.TEXT, strip=True)
        self.thinking_sections += header.is_thinking
        self._held = header.visible_text(cut=cut) + self._held

    # -- messages --------------------------------------------------------------------------------

    def _enter(self, section: Section, *, strip: bool = False) -> None:
        self._section, self._is_new, self._strip = section, True, strip

    def _enter_message(self, header: ChannelHeader) -> Iterator[Part]:
        self._header = None
        self._enter(Section.THINKING if header.is_thinking else Section.TEXT)
        recipient, prefix = header.recipient, self._form.call_prefix
        if not prefix or recipient in _NO_TOOLS:
            self.thinking_sections += header.is_thinking
            return
        name, rules = recipient.removeprefix(prefix), self._rules
        if rules is not None and name and (name != recipient or name in rules.names):
            self._reader = ArgumentsReader(name, recipient, self._form.markers)
        else:
            self.thinking_sections += header.is_thinking
            yield from self._say_of_itself(f"{recipient} ")

    def _read_message(self) -> Generator[Part, None, bool]:
        is_thinking = self._section is Section.THINKING
        scanner = self._marks if is_thinking else self._visible
        hit = scanner.search(self._held)
        end = scanner.safe_length(self._held) if hit is None else hit.start
        start = self._start
        piece, self._held = self._held[:end], self._held[end:]
        yield from self._say(piece, start)
        if hit is None:
            return False
        self._held = self._held[len(hit.tag) :]
        self._met(hit.tag)
        return self.stop_sequence is None

    def _met(self, tag: str) -> None:
        """Take a mark, the beginning of a call or a stop text."""
        form = self._form
        if tag in (form.start, form.channel):
            self._header = ChannelHeader(form, is_started=tag == form.start)
            if tag == form.channel:
                self._header.add_marker(tag)
        elif tag in form.ends:
            self._enter(Section.TEXT, strip=True)
        elif tag in (form.message, form.constrain):
            self._is_new = True
        elif tag in self._starts and self._rules is not None:
            self._reader = WholeReader(self._rules, tag)
        else:
            self._held, self.stop_sequence = "", tag

    def _left_call(self) -> Iterator[Part]:
        """Go on behind a call, or with the plain text that it turned out to be."""
        reader, self._reader = self._reader, None
        assert reader is not None, "nothing to leave"
        self._held, plain = reader.rest, reader.plain
        if not plain:
            self._last = None
            self._enter(Section.TEXT, strip=True)
            return
        # Where the header makes a call, its plain text is not what was fed.
        start = -len(plain) if self._form.call_prefix else self._start - len(plain)
        hit = self._stops.search(plain) if self._section is Section.TEXT else None
        if hit is not None:
            plain, self._held, self.stop_sequence = plain[: hit.start], "", hit.tag
        yield from self._say(plain, start)

    def _say(self, text: str, start: int) -> Iterator[TextPiece]:
        if self._strip:
            start += len(text) - len(text.lstrip())
            text = text.lstrip()
        if not text:
            return
        is_next, self._is_new = self._is_new and self._last is self._section, False
        self._strip, self._last = False, self._section
        if is_next:
            yield from self._say_of_itself(_GAP)
        yield TextPiece(self._section, text, start)

    def _say_of_itself(self, text: str) -> Iterator[TextPiece]:
        """Say what no token stands for; it lies before all that was fed."""
        yield from self._say(text, -len(text))
