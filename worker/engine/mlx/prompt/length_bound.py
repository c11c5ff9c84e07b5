"""Recognises a text that is far too long before all of it is tokenised.

A tokenizer needs about a second and 100 MB for each megabyte, and a request may have many. So a
text that can hardly fit is counted slice by slice, until it is certain that it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

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
