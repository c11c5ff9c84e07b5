"""Ranks tools by the words of a query: Okapi BM25 (Robertson and Zaragoza 2009)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

#: Weight of repeated words, and share of the correction for long texts.
_K1: Final = 1.2
_B: Final = 0.75
#: Words, also those inside of names such as ``get_weather`` and ``getWeather``.
_WORDS: Final = re.compile(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?![a-z])|\d+")


def ranked(query: str, texts: Sequence[str], *, limit: int) -> list[int]:
    """Return the positions of the texts that have a word of the query, best first.

    Args:
        query: Words in any order.
        texts: The texts; of equally good ones the earlier comes first.
        limit: Most positions.
    """
    counts = [Counter(_words(text)) for text in texts]
    mean = sum(map(Counter.total, counts)) / max(1, len(counts))
    scores = [0.0] * len(counts)
    for word in dict.fromkeys(_words(query)):
        having = sum(word in found for found in counts)
        rarity = math.log(1 + (len(counts) - having + 0.5) / (having + 0.5))
        for place, found in enumerate(counts):
            if times := found[word]:
                room = _K1 * (1 - _B + _B * found.total() / mean)
                scores[place] += rarity * times * (_K1 + 1) / (times + room)
    best = sorted(range(len(scores)), key=lambda place: -scores[place])
    return [place for place in best if scores[place] > 0][:limit]


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(text)]
