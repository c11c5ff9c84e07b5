"""How models write answers that are several messages, each in a frame with a header.

Harmony (gpt-oss; https://github.com/openai/harmony/blob/main/docs/format.md)::

    <|channel|>analysis<|message|>…<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>
    <|start|>assistant<|channel|>final<|message|>…<|return|>

Muse Spark (``mlx_lm/chat_templates/muse_spark.py``)::

    to=self<|message|>…<|eom|><|start|>assistant to=f<|message|><atem:function_calls>…<|eom|>
    <|start|>assistant to=user<|message|>…<|eot|>

The first header has no start: it stands at the end of the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

#: Words and characters of one part of a header; what is longer was meant for somebody to read.
_WORDS_MAX: Final = 3
_CHARS_MAX: Final = 256
_WORD: Final = re.compile(r"to=\S*|[\w.:-]+")
_RECIPIENT: Final = re.compile(r"(?:^|\s)to=(\S+)")
#: What an answer may begin with that has no mark before it: whom the first message is for.
_UNMARKED: Final = re.compile(r"\s*(?:t|to|to=\S*)?\s*")
#: Who speaks in an answer, and how the arguments of a call are written.
_SPEAKERS: Final = frozenset({"assistant"})
_KINDS: Final = frozenset({"json", "code"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelFormat:
    """How a family frames its messages.

    Attributes:
        start: Before a header.
        channel: In a header, before the name of a channel; empty if the recipient is all there is.
        constrain: In a header, before how the message is written; empty if there is no such mark.
        message: Between a header and what the message says.
        ends: After a message.
        last_ends: Those of them that end the answer.
        thinking: Channels, or recipients where there are none, whose messages are reasoning.
        text: The same for messages that are the answer.
        final_text: The one of those that is no word before a call.
        call_prefix: What stands before the name of a tool in the recipient, if it is the header
            that makes a message a call; its arguments are JSON then.
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
        """All of them."""
        inner = tuple(mark for mark in (self.channel, self.constrain) if mark)
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
    """What was said of one message so far, before its text.

    Args:
        form: How it is written.
        is_started: Whether a start mark stands before it; what follows is who speaks then.
    """

    def __init__(self, form: ChannelFormat, *, is_started: bool) -> None:
        self._form = form
        #: Each with the mark before it.
        self._parts: list[tuple[str, str]] = [(form.start if is_started else "", "")]

    @property
    def recipient(self) -> str:
        """Whom the message is for, "" if nobody is named."""
        named = [match[1] for _, text in self._parts for match in _RECIPIENT.finditer(text)]
        return named[-1] if named else ""

    @property
    def is_thinking(self) -> bool:
        """Whether the message is reasoning."""
        return self._destination() in self._form.thinking

    @property
    def part(self) -> str:
        """What was said since the last mark."""
        return self._parts[-1][1]

    @property
    def is_assistant(self) -> bool:
        """Whether it is the model that speaks, as far as one can tell."""
        mark, speaker = self._parts[0]
        return not mark or speaker.split()[:1] in ([], ["assistant"])

    def add(self, text: str) -> str | None:
        """Take more text, up to the first character that no header has there.

        Returns:
            What stands behind that character, however the text was cut; ``None`` if all of it may
            still be a header.
        """
        for taken, character in enumerate(text, 1):
            mark, before = self._parts[-1]
            self._parts[-1] = (mark, before + character)
            if not self._may_go_on():
                return text[taken:]
        return None

    def _may_go_on(self) -> bool:
        mark, part = self._parts[-1]
        if not mark:
            return _UNMARKED.fullmatch(part) is not None and len(part) <= _CHARS_MAX
        words = part.split()
        return (
            len(words) <= _WORDS_MAX
            and len(part) <= _CHARS_MAX
            and "\n" not in part
            and all(_WORD.fullmatch(word) for word in words)
        )

    def add_marker(self, mark: str) -> None:
        """Take a mark that stands inside a header."""
        self._parts.append((mark, ""))

    def visible_text(self, *, cut: bool = False) -> str:
        """Return what of it is no part of a frame, given that no message mark came.

        Args:
            cut: The model did not come to its own end, so the last word may lack its own.
        """
        last = len(self._parts) - 1
        said = [
            _without(text, self._words(mark), cut=cut and number == last)
            for number, (mark, text) in enumerate(self._parts)
        ]
        return "".join(said)

    def _words(self, mark: str) -> frozenset[str]:
        """Return the words that belong to the frame behind a mark."""
        if mark == self._form.start:
            return _SPEAKERS
        if not mark:
            return frozenset()
        if mark == self._form.constrain:
            return _KINDS
        return self._form.thinking | self._form.text

    def _destination(self) -> str:
        if not self._form.channel:
            return self.recipient
        named = [
            words[0]
            for mark, text in self._parts
            if mark == self._form.channel and (words := text.split())
        ]
        return named[-1] if named else ""


def _without(text: str, frame: Collection[str], *, cut: bool) -> str:
    """Return a text without its first word, if that is part of a frame."""
    first = text.split(None, 1)[:1]
    if not first:
        return ""
    is_frame = first[0] in frame or (
        cut and text.strip() == first[0] and any(word.startswith(first[0]) for word in frame)
    )
    return text.replace(first[0], "", 1) if is_frame else text
