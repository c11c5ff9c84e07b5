"""Encodes rendered prompts with the model's tokenizer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import structlog

from domain.errors import PromptTooLong
from worker.engine.mlx.prompt.length_bound import tokens_beyond
from worker.engine.mlx.prompt.marks import MarkBreaker
from worker.engine.mlx.prompt.segment_tokenizer import SegmentTokenizer, refusal

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


def _segments_of(backend: Any) -> SegmentTokenizer | None:  # noqa: ANN401 - as above
    why = refusal(backend)
    if why is not None:
        _log.info("prompts_tokenised_whole", why=why)
        return None
    return SegmentTokenizer(backend)
