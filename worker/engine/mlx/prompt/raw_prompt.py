"""Encodes raw prompts: texts, token ids, and texts with a gap to fill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from domain.chat.request import RawPrompt
from domain.errors import InvalidRequest
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
