"""Channel formats: answers of several messages, each with a header between special tokens.

A header names the channel of its message, or its recipient, and thereby whether the message is
reasoning, answer text or a tool call. *Markers* are the special tokens that delimit headers and
messages.

Harmony (gpt-oss; https://github.com/openai/harmony/blob/main/docs/format.md)::

    <|channel|>analysis<|message|>…<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>
    <|start|>assistant<|channel|>final<|message|>…<|return|>

Muse Spark (``mlx_lm/chat_templates/muse_spark.py``)::

    to=self<|message|>…<|eom|><|start|>assistant to=f<|message|><atem:function_calls>…<|eom|>
    <|start|>assistant to=user<|message|>…<|eot|>

The first header of an answer has no start marker, because the prompt ends with it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

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
        channel_format: The format of the header.
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
