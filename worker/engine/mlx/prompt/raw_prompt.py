"""Encodes raw prompts and rendered ones with the model's tokenizer, up to a bound of length."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from domain.chat.request import RawPrompt
from domain.errors import InvalidRequest, PromptTooLong
from worker.engine.mlx.prompt.segment_tokenizer import MarkBreaker, SegmentTokenizer, refusal
from worker.engine.ports import RenderedPrompt

#: Fill-in-the-middle tokens of each family: before the text ahead of the gap, before the text
#: behind it, and before the text that fills it. From the model cards of Qwen2.5-Coder (CodeGemma,
#: Granite 4), StarCoder, SantaCoder and DeepSeek-Coder.
GAP_MARKS: Final = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001 - they write it so
)


class RawRenderer:
    """Encodes raw prompts to token ids. May be called from many threads at once.

    Args:
        tokenizer: mlx-lm's wrapper around the model's tokenizer.
        encode: From a text to its ids, without special tokens.
    """

    def __init__(
        self,
        tokenizer: Any,  # noqa: ANN401 - mlx-lm ships no types
        encode: Callable[[str], tuple[int, ...]],
    ) -> None:
        self._tokenizer = tokenizer
        self._encode = encode
        self._last_id = len(tokenizer) - 1
        self._start = _start_of(tokenizer)
        self._gap = _gap_marks_of(tokenizer)

    def render(self, raw: RawPrompt) -> RenderedPrompt:
        """Return the prompt, preceded by the start token if the model expects one.

        Raises:
            InvalidRequest: The prompt is empty, has unknown token ids, or has a gap, for which the
                model has no tokens.
        """
        ids = self._ids_of(raw)
        if not ids:
            msg = "the prompt is empty"
            raise InvalidRequest(msg, field="prompt")
        return RenderedPrompt(ids, echoed=self._echo_of(raw) if raw.is_echoed else "")

    def _ids_of(self, raw: RawPrompt) -> tuple[int, ...]:
        last = self._last_id
        if raw.ids and max(raw.ids) > last:
            msg = f"the prompt has the token id {max(raw.ids)}; those of the model end at {last}"
            raise InvalidRequest(msg, field="prompt")
        before = raw.ids or self._encode(raw.text)
        if raw.suffix is not None:
            before = self._around_gap(before, raw.suffix)
        # Token ids are used unchanged: a client that sends ids includes the start token itself.
        is_begun = bool(raw.ids) or before[: len(self._start)] == self._start
        return before if is_begun else (*self._start, *before)

    def _around_gap(self, before: tuple[int, ...], suffix: str) -> tuple[int, ...]:
        if self._gap is None:
            msg = "the model has no tokens for filling a gap (fim_prefix, fim_suffix, fim_middle)"
            raise InvalidRequest(msg, field="suffix")
        first, second, third = self._gap
        return (first, *before, second, *self._encode(suffix), third)

    def _echo_of(self, raw: RawPrompt) -> str:
        if not raw.ids:
            return raw.text
        text: str = self._tokenizer.decode(list(raw.ids))
        return text


def _start_of(tokenizer: Any) -> tuple[int, ...]:  # noqa: ANN401 - as above
    """Return the start token that the tokenizer adds to a text; empty if it adds none."""
    start = tokenizer.bos_token_id
    framed = tokenizer.encode("a", add_special_tokens=True)
    return (start,) if start is not None and framed[:1] == [start] else ()


def _gap_marks_of(tokenizer: Any) -> tuple[int, int, int] | None:  # noqa: ANN401 - as above
    known = tokenizer.get_added_vocab()
    for first, second, third in GAP_MARKS:
        if first in known and second in known and third in known:
            return known[first], known[second], known[third]
    return None


#: Length of a slice in characters.
SLICE_CHARS: Final = 64 << 10
#: Slices that are counted at once, on as many cores.
_SLICES_AT_ONCE: Final = 4
#: A text with fewer characters for each token of the context may well fit; it is not counted.
LIKELY_CHARS_PER_TOKEN: Final = 8
#: Tokens by which a cut may increase the count: the text on both sides splits differently there.
_CUT_TOKENS_MAX: Final = 64


def tokens_beyond(text: str, tokens_max: int, count: Callable[[Sequence[str]], int]) -> int | None:
    """Return an estimate of the number of tokens if the text has more than ``tokens_max``.

    Args:
        tokens_max: Most tokens that fit.
        count: Returns the number of tokens of several texts.

    Returns:
        ``None`` if the text may fit.
    """
    if len(text) <= tokens_max * LIKELY_CHARS_PER_TOKEN:
        return None
    counted = tokens = 0
    step = SLICE_CHARS * _SLICES_AT_ONCE
    for begin in range(0, len(text), step):
        part = text[begin : begin + step]
        slices = [part[at : at + SLICE_CHARS] for at in range(0, len(part), SLICE_CHARS)]
        tokens += count(slices) - _CUT_TOKENS_MAX * len(slices)
        counted += len(part)
        if tokens > tokens_max:
            # The rest is taken to be as dense as the part that was counted.
            return tokens * len(text) // counted
    return None


_log = structlog.get_logger(__name__)

_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class PromptTokenizer:
    """Encodes prompts to token ids. May be called from many threads at once.

    Args:
        tokenizer: mlx-lm's wrapper around the model's tokenizer.
        tokens_max: Longest prompt that is encoded; ``None`` for any length.

    Attributes:
        marks: Breaks marks in a caller's text; ``encode_prompt`` cuts the prompt there.
    """

    def __init__(
        self,
        tokenizer: Any,  # noqa: ANN401 - mlx-lm ships no types
        tokens_max: int | None = None,
    ) -> None:
        self.marks = MarkBreaker(tokenizer.get_added_vocab())
        self._tokenizer = tokenizer
        self._tokens_max = tokens_max
        is_fast = getattr(tokenizer, "is_fast", False)
        self._backend = tokenizer.backend_tokenizer if is_fast else None
        self._segments = None if self._backend is None else _segments_of(self._backend)

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Return the ids of a prompt.

        Raises:
            PromptTooLong: It is several times too long; its length is an estimate then.
        """
        text = _LONE_SURROGATE.sub("\ufffd", text)
        if self._tokens_max is not None:
            tokens = tokens_beyond(text, self._tokens_max, self._count)
            if tokens is not None:
                raise PromptTooLong(tokens, self._tokens_max)
        return self.marks.encode(text, self.encode)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text in which every mark is read as a token."""
        if self._segments is not None:
            return self._segments.encode(text)
        if self._backend is not None:
            # encode_batch_fast releases the interpreter lock. A single encode would hold it, and
            # block the engine thread, for as long as a long prompt takes.
            (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
            return tuple(encoding.ids)
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _count(self, texts: Sequence[str]) -> int:
        if self._backend is None:
            return sum(len(self._tokenizer.encode(text)) for text in texts)
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return sum(len(encoding) for encoding in encodings)


def _segments_of(backend: Any) -> SegmentTokenizer | None:  # noqa: ANN401 - tokenizers ships no types
    why = refusal(backend)
    if why is not None:
        _log.info("prompts_tokenised_whole", why=why)
        return None
    return SegmentTokenizer(backend)
