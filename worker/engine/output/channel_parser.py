"""Channel formats: answers of several messages, and their parser."""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from worker.engine.output.output_parser import AnswerParser, Part, Section, TextPiece
from worker.engine.output.stop_sequences import TagScanner
from worker.engine.output.tool_calls.json_calls import ArgumentsReader
from worker.engine.output.tool_calls.reader import CallRules, WholeReader

#: Most words and characters of one part of a header; longer text is no header.
_WORDS_MAX: Final = 3
_CHARS_MAX: Final = 256
_WORD: Final = re.compile(r"to=\S*|[\w.:-]+")
_RECIPIENT: Final = re.compile(r"(?:^|\s)to=(\S+)")
#: The recipient with which an answer may begin, without a marker before it.
_UNMARKED: Final = re.compile(r"\s*(?:t|to|to=\S*)?\s*")
#: Words of a header after a start marker, and after a ``constrain`` marker.
_ROLES: Final = frozenset({"assistant"})
_CONTENT_TYPES: Final = frozenset({"json", "code"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelFormat:
    """The markers and channels of a model family.

    Attributes:
        start: Marker before a header.
        channel: Marker in a header before the name of a channel; empty if headers name recipients
            only.
        constrain: Marker in a header before the content type of the message; empty if the family
            has none.
        message: Marker between a header and its message.
        ends: Markers after a message.
        last_ends: The markers of ``ends`` that end the answer.
        thinking: Channels (or recipients, without channels) whose messages are reasoning.
        text: Channels (or recipients) whose messages are answer text.
        final_text: The channel (or recipient) of ``text`` that is not followed by a tool call.
        call_prefix: Prefix of the tool's name in the recipient of a tool call, whose message is
            JSON; empty if no header makes a message a tool call.
    """

    start: str
    channel: str = ""
    constrain: str = ""
    message: str
    ends: tuple[str, ...]
    last_ends: tuple[str, ...]
    thinking: frozenset[str]
    text: frozenset[str]
    final_text: str
    call_prefix: str = ""

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers of the format."""
        inner = tuple(marker for marker in (self.channel, self.constrain) if marker)
        return (self.start, *inner, self.message, *self.ends)


HARMONY: Final = ChannelFormat(
    start="<|start|>",
    channel="<|channel|>",
    constrain="<|constrain|>",
    message="<|message|>",
    ends=("<|end|>", "<|return|>", "<|call|>"),
    last_ends=("<|return|>", "<|call|>"),
    thinking=frozenset({"analysis"}),
    text=frozenset({"commentary", "final"}),
    final_text="final",
    call_prefix="functions.",
)
MUSE_SPARK: Final = ChannelFormat(
    start="<|start|>",
    message="<|message|>",
    ends=("<|eom|>", "<|eot|>"),
    last_ends=("<|eot|>",),
    thinking=frozenset({"self"}),
    text=frozenset({"user", "commentary"}),
    final_text="user",
)


class ChannelHeader:
    """The header of one message, as far as the model has written it.

    Args:
        is_started: Whether a start marker precedes it; the role follows then.
    """

    def __init__(self, channel_format: ChannelFormat, *, is_started: bool) -> None:
        self._format = channel_format
        #: Pairs of a marker and the text after it.
        self._parts: list[tuple[str, str]] = [(channel_format.start if is_started else "", "")]

    @property
    def recipient(self) -> str:
        """The recipient of the message, "" if the header names none."""
        named = [match[1] for _, text in self._parts for match in _RECIPIENT.finditer(text)]
        return named[-1] if named else ""

    @property
    def is_thinking(self) -> bool:
        """Whether the message is reasoning."""
        return self._destination() in self._format.thinking

    @property
    def part(self) -> str:
        """The text after the last marker."""
        return self._parts[-1][1]

    @property
    def is_assistant(self) -> bool:
        """Whether the role is the assistant's, or not written yet."""
        marker, role = self._parts[0]
        return not marker or role.split()[:1] in ([], ["assistant"])

    def add(self, text: str) -> str | None:
        """Append text, up to and including the first character that no header has there.

        Returns:
            The text after that character; ``None`` if all of the text may belong to a header. The
            result does not depend on how the text was cut into pieces.
        """
        for length, character in enumerate(text, 1):
            marker, before = self._parts[-1]
            self._parts[-1] = (marker, before + character)
            if not self._is_plausible():
                return text[length:]
        return None

    def _is_plausible(self) -> bool:
        marker, part = self._parts[-1]
        if not marker:
            return _UNMARKED.fullmatch(part) is not None and len(part) <= _CHARS_MAX
        words = part.split()
        return (
            len(words) <= _WORDS_MAX
            and len(part) <= _CHARS_MAX
            and "\n" not in part
            and all(_WORD.fullmatch(word) for word in words)
        )

    def copied(self) -> ChannelHeader:
        """Return one that continues from the same text by itself."""
        other = ChannelHeader(self._format, is_started=False)
        other._parts = self._parts[:]
        return other

    def add_marker(self, marker: str) -> None:
        """Append a marker that belongs inside a header."""
        self._parts.append((marker, ""))

    def visible_text(self, *, cut: bool = False) -> str:
        """Return the text of a header without a message, less the words that headers consist of.

        Args:
            cut: Whether the answer was cut short, so that the last word may be incomplete.
        """
        last = len(self._parts) - 1
        visible = [
            _without_first_word(text, self._structural_words(marker), cut=cut and number == last)
            for number, (marker, text) in enumerate(self._parts)
        ]
        return "".join(visible)

    def _structural_words(self, marker: str) -> frozenset[str]:
        """Return the words that the format puts after a marker."""
        if marker == self._format.start:
            return _ROLES
        if not marker:
            return frozenset()
        if marker == self._format.constrain:
            return _CONTENT_TYPES
        return self._format.thinking | self._format.text

    def _destination(self) -> str:
        if not self._format.channel:
            return self.recipient
        named = [
            words[0]
            for marker, text in self._parts
            if marker == self._format.channel and (words := text.split())
        ]
        return named[-1] if named else ""


def _without_first_word(text: str, structural: Collection[str], *, cut: bool) -> str:
    """Return a text without its first word, if that is a structural word."""
    first = text.split(None, 1)[:1]
    if not first:
        return ""
    is_structural = first[0] in structural or (
        cut and text.strip() == first[0] and any(word.startswith(first[0]) for word in structural)
    )
    return text.replace(first[0], "", 1) if is_structural else text


#: Inserted between two messages of one section.
_GAP: Final = "\n\n"
#: Recipients of messages that are no tool calls.
_NO_TOOLS: Final = ("", "assistant", "user")


class ChannelParser(AnswerParser):
    """For families with a channel format.

    Words between messages are answer text. Stop sequences apply to answer text only.
    """

    def __init__(
        self, channel_format: ChannelFormat, stop: Sequence[str], *, calls: CallRules | None = None
    ) -> None:
        super().__init__()
        self._format = channel_format
        self._rules = calls
        stops = tuple(text for text in stop if text not in channel_format.markers)
        # If headers make tool calls, no start tag has to be found.
        self._starts = () if calls is None or channel_format.call_prefix else calls.format.starts
        self._marks = TagScanner(channel_format.markers)
        self._stops = TagScanner(stops)
        self._visible = TagScanner((*channel_format.markers, *self._starts, *stops))
        self._header: ChannelHeader | None = ChannelHeader(channel_format, is_started=False)
        self._section = Section.TEXT
        #: Whether the next white space lies between messages and is dropped.
        self._strip = False
        #: The section emitted last, and whether the next text begins another message.
        self._last: Section | None = None
        self._is_new = False

    @property
    def is_thinking(self) -> bool:
        """Whether a message of reasoning is open."""
        is_message = self._header is None and self._reader is None
        return is_message and self._section is Section.THINKING

    @property
    def may_think(self) -> bool:
        """Whether a message of reasoning is open, or may still open."""
        return self.stop_sequence is None

    @property
    def is_undecided(self) -> bool:
        """Whether a header is open, which may become that of a message of reasoning."""
        return self._header is not None

    def flush(self, *, cut: bool = False) -> Iterator[Part]:
        """Yield the parts held back, at the end of the answer; see ``AnswerParser``."""
        yield from self.feed("")
        if self._reader is not None:
            yield from self._reader.flush(cut=cut)
            yield from self._leave_call()
        elif self._header is not None:
            self._buffer = self._header.add(self._buffer) or ""
            self._give_up_header(cut=cut)
        yield from self.feed("")
        start, rest, self._buffer = self._buffer_start, self._buffer, ""
        yield from self._emit(rest, start)

    def _advance_text(self) -> Generator[Part, None, bool]:
        if self._header is not None:
            return (yield from self._read_header(self._header))
        return (yield from self._read_message())

    # -- headers ---------------------------------------------------------------------------------

    def _read_header(self, header: ChannelHeader) -> Generator[Part, None, bool]:
        hit = self._marks.search(self._buffer)
        end = self._marks.safe_length(self._buffer) if hit is None else hit.start
        piece, self._buffer = self._buffer[:end], self._buffer[end:]
        rest = header.add(piece)
        if rest is not None:
            self._buffer = rest + self._buffer
            self._give_up_header()
            return True
        if hit is None:
            return False
        self._buffer = self._buffer[len(hit.tag) :]
        if hit.tag == self._format.message:
            yield from self._enter_message(header)
        elif hit.tag in (self._format.channel, self._format.constrain):
            header.add_marker(hit.tag)
        else:
            self._buffer = hit.tag + self._buffer
            self._give_up_header()
        return True

    def _give_up_header(self, *, cut: bool = False) -> None:
        """Treat the words of an invalid header as its message."""
        header, self._header = self._header, None
        assert header is not None, "no header to give up"
        self._enter(Section.THINKING if header.is_thinking else Section.TEXT, strip=True)
        self.thinking_sections += header.is_thinking
        self._buffer = header.visible_text(cut=cut) + self._buffer

    # -- messages --------------------------------------------------------------------------------

    def _enter(self, section: Section, *, strip: bool = False) -> None:
        self._section, self._is_new, self._strip = section, True, strip

    def _enter_message(self, header: ChannelHeader) -> Iterator[Part]:
        self._header = None
        self._enter(Section.THINKING if header.is_thinking else Section.TEXT)
        recipient, prefix = header.recipient, self._format.call_prefix
        if not prefix or recipient in _NO_TOOLS:
            self.thinking_sections += header.is_thinking
            return
        name, rules = recipient.removeprefix(prefix), self._rules
        if rules is not None and name and (name != recipient or name in rules.names):
            self._reader = ArgumentsReader(name, recipient, self._format.markers)
        else:
            self.thinking_sections += header.is_thinking
            yield from self._emit_inserted(f"{recipient} ")

    def _read_message(self) -> Generator[Part, None, bool]:
        is_thinking = self._section is Section.THINKING
        scanner = self._marks if is_thinking else self._visible
        hit = scanner.search(self._buffer)
        end = scanner.safe_length(self._buffer) if hit is None else hit.start
        start = self._buffer_start
        piece, self._buffer = self._buffer[:end], self._buffer[end:]
        yield from self._emit(piece, start)
        if hit is None:
            return False
        self._buffer = self._buffer[len(hit.tag) :]
        self._handle_marker(hit.tag)
        return self.stop_sequence is None

    def _handle_marker(self, tag: str) -> None:
        """Handle a marker, the start tag of a call or a stop sequence."""
        channel_format = self._format
        if tag in (channel_format.start, channel_format.channel):
            self._header = ChannelHeader(channel_format, is_started=tag == channel_format.start)
            if tag == channel_format.channel:
                self._header.add_marker(tag)
        elif tag in channel_format.ends:
            self._enter(Section.TEXT, strip=True)
        elif tag in (channel_format.message, channel_format.constrain):
            self._is_new = True
        elif tag in self._starts and self._rules is not None:
            self._reader = WholeReader(self._rules, tag)
        else:
            self._buffer, self.stop_sequence = "", tag

    def _leave_call(self) -> Iterator[Part]:
        """Continue after a tool call, or with its text if it turned out to be no call."""
        reader, self._reader = self._reader, None
        assert reader is not None, "no call is open"
        self._buffer, plain = reader.rest, reader.plain
        if not plain:
            self._last = None
            self._enter(Section.TEXT, strip=True)
            return
        # If the header made the call, its plain text was rebuilt and has no offset.
        start = -len(plain) if self._format.call_prefix else self._buffer_start - len(plain)
        hit = self._stops.search(plain) if self._section is Section.TEXT else None
        if hit is not None:
            plain, self._buffer, self.stop_sequence = plain[: hit.start], "", hit.tag
        yield from self._emit(plain, start)

    def _emit(self, text: str, start: int) -> Iterator[TextPiece]:
        if self._strip:
            start += len(text) - len(text.lstrip())
            text = text.lstrip()
        if not text:
            return
        is_next, self._is_new = self._is_new and self._last is self._section, False
        self._strip, self._last = False, self._section
        if is_next:
            yield from self._emit_inserted(_GAP)
        yield TextPiece(self._section, text, start)

    def _emit_inserted(self, text: str) -> Iterator[TextPiece]:
        """Emit text that belongs to no token, at an offset before all text fed."""
        yield from self._emit(text, -len(text))
