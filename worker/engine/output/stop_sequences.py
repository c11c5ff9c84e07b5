"""Find tags and stop sequences in text that arrives in pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hit:
    """A tag found in a text, with its offsets."""

    start: int
    end: int
    tag: str


class TagScanner:
    """Finds the first complete tag, and the length of text that cannot belong to a later tag.

    The result does not depend on how the text was cut into pieces.

    Args:
        tags: Non-empty texts to find: tags, markers or stop sequences.
    """

    def __init__(self, tags: Iterable[str]) -> None:
        self._tags = tuple(dict.fromkeys(tags))
        assert all(self._tags), "an empty tag would match everywhere"
        self._prefixes = frozenset(tag[:n] for tag in self._tags for n in range(1, len(tag)))
        self._longest = max((len(prefix) for prefix in self._prefixes), default=0)
        first = "".join(sorted({re.escape(prefix[0]) for prefix in self._prefixes}))
        self._beginning = re.compile(f"[{first}]") if first else None

    def search(self, text: str) -> Hit | None:
        """Return the tag that ends first; of several with the same end, the longest."""
        best: Hit | None = None
        for tag in self._tags:
            start = text.find(tag)
            if start < 0:
                continue
            hit = Hit(start, start + len(tag), tag)
            if best is None or (hit.end, hit.start) < (best.end, best.start):
                best = hit
        return best

    def safe_length(self, text: str) -> int:
        """Return the length of the prefix in which no tag can begin, for a text without a tag."""
        if self._beginning is None:
            return len(text)
        for match in self._beginning.finditer(text, max(0, len(text) - self._longest)):
            if text[match.start() :] in self._prefixes:
                return match.start()
        return len(text)
