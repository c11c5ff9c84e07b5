"""Tokenise a text piece by piece, and remember the pieces.

Every turn of a conversation sends its beginning again. A tokenizer cuts a text at its added tokens
(the marks of turns and calls) before it does anything else, and reads what lies between on its own.
So what lies between has the same ids wherever it stands, and need not be read twice.
"""

from __future__ import annotations

import json
import re
import sys
from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any

#: What the remembered pieces may take.
SEGMENTS_BYTES_MAX = 32 << 20
#: Of one piece, besides its text and its ids.
_ENTRY_BYTES = 256
#: No model has a longer mark; the pattern that looks for them is as deep as they are long.
_MARK_CHARS_MAX = 200
#: The parts of a tokenizer that read a piece the same way wherever it stands. Left out are those
#: that treat the first piece, or a piece's edges, differently (``Metaspace``, ``Prepend``,
#: ``Strip``), and whatever is not known here.
_NORMALIZERS = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Replace", "Sequence"})
_PRE_TOKENIZERS = frozenset(
    {
        "BertPreTokenizer",
        "ByteLevel",
        "Digits",
        "Punctuation",
        "Sequence",
        "Split",
        "Whitespace",
        "WhitespaceSplit",
    }
)
_MODELS = frozenset({"BPE", "WordLevel", "WordPiece"})


class SegmentTokenizer:
    """Gives the ids that a tokenizer would, without its special frame. For many threads at once.

    Args:
        tokenizer: Of the library ``tokenizers``; ``refusal`` has nothing against it.
        bytes_max: What the remembered pieces may take; the least recently used go first.
    """

    def __init__(
        self,
        tokenizer: Any,  # noqa: ANN401 - tokenizers ships no types
        bytes_max: int = SEGMENTS_BYTES_MAX,
    ) -> None:
        assert refusal(tokenizer) is None, "this tokenizer does not read its pieces one by one"
        self._tokenizer = tokenizer
        self._marks = {token.content: token_id for token_id, token in _marks(tokenizer)}
        # The tokenizer takes the longest mark at the first place where there is one.
        self._cut = re.compile(f"({_longest_of(self._marks)})")
        self._bytes_max = bytes_max
        self._lock = Lock()
        self._bytes = 0
        self._cached: OrderedDict[str, array[int]] = OrderedDict()

    @property
    def bytes_used(self) -> int:
        """Return what the remembered pieces take."""
        return self._bytes

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text that holds its special tokens already."""
        # Every second piece is a mark.
        pieces = self._cut.split(text)
        ids = self._ids_of(pieces[::2])
        whole: list[int] = []
        for at, piece in enumerate(pieces):
            if at % 2:
                whole.append(self._marks[piece])
            elif piece:
                whole.extend(ids[piece])
        return tuple(whole)

    def _ids_of(self, pieces: Sequence[str]) -> Mapping[str, array[int]]:
        ids: dict[str, array[int]] = {}
        unknown: list[str] = []
        with self._lock:
            for piece in dict.fromkeys(pieces):
                if piece in self._cached:
                    self._cached.move_to_end(piece)
                    ids[piece] = self._cached[piece]
                elif piece:
                    unknown.append(piece)
        if unknown:
            # The batch call lets other threads run meanwhile; a single encode would hold the
            # interpreter, and with it the engine, for as long as a long prompt takes.
            encodings = self._tokenizer.encode_batch(unknown, add_special_tokens=False)
            fresh = {
                piece: array("I", encoding.ids)
                for piece, encoding in zip(unknown, encodings, strict=True)
            }
            ids |= fresh
            self._remember(fresh)
        return ids

    def _remember(self, fresh: Mapping[str, array[int]]) -> None:
        with self._lock:
            for piece, ids in fresh.items():
                if piece not in self._cached:
                    self._cached[piece] = ids
                    self._bytes += _size_bytes(piece, ids)
            while self._bytes > self._bytes_max:
                self._bytes -= _size_bytes(*self._cached.popitem(last=False))


def refusal(tokenizer: Any) -> str | None:  # noqa: ANN401 - as above
    """Return why a tokenizer cannot be trusted to read pieces one by one; ``None`` if it can."""
    if tokenizer.truncation is not None or tokenizer.padding is not None:
        return "it cuts or pads what it reads"
    if tokenizer.encode_special_tokens:
        return "it reads the marks as text"
    return _refusal_of_marks([token for _, token in _marks(tokenizer)]) or _refusal_of_parts(
        tokenizer
    )


def _refusal_of_marks(marks: Sequence[Any]) -> str | None:
    if not marks:
        return "it has no marks to cut at"
    if len({token.content for token in marks}) < len(marks):
        return "a mark has two ids"
    if any(token.lstrip or token.rstrip or token.single_word for token in marks):
        return "a mark depends on what is beside it"
    if any(len(token.content) > _MARK_CHARS_MAX for token in marks):
        return "a mark is very long"
    return None


def _refusal_of_parts(tokenizer: Any) -> str | None:  # noqa: ANN401 - as above
    model = type(tokenizer.model).__name__
    if model not in _MODELS or getattr(tokenizer.model, "dropout", None):
        return f"model {model}"
    try:
        normalizers = _parts(tokenizer.normalizer, "normalizers")
        pre_tokenizers = _parts(tokenizer.pre_tokenizer, "pretokenizers")
    except Exception:  # noqa: BLE001 - what a part written in Python raises when asked is its own affair
        return "a part that does not say what it does"
    for part in normalizers:
        if part["type"] not in _NORMALIZERS:
            return f"normalizer {part['type']}"
    for part in pre_tokenizers:
        if part["type"] not in _PRE_TOKENIZERS or part.get("add_prefix_space"):
            return f"pre-tokenizer {part['type']}"
    return None


def _marks(tokenizer: Any) -> Iterator[tuple[int, Any]]:  # noqa: ANN401 - as above
    """Yield the added tokens that are looked for before anything is done to the text.

    The others are looked for in each piece once it is normalized, so they are the tokenizer's own
    affair. ``normalized`` means just that.
    """
    for token_id, token in tokenizer.get_added_tokens_decoder().items():
        if token.content and not token.normalized:
            yield token_id, token


def _parts(component: Any, nested: str) -> list[dict[str, Any]]:  # noqa: ANN401 - as above
    """Return a component and what it is made of, as its file would say it."""
    parts: list[dict[str, Any]] = []
    waiting = [] if component is None else [json.loads(component.__getstate__())]
    while waiting:
        parts.append(waiting.pop())
        waiting.extend(parts[-1].get(nested, ()))
    return parts


def _longest_of(words: Collection[str]) -> str:
    """Return a pattern for the longest of some words; there may be thousands."""
    rests: dict[str, list[str]] = {}
    for word in words:
        if word:
            rests.setdefault(word[0], []).append(word[1:])
    branches = [re.escape(first) + _longest_of(rest) for first, rest in rests.items()]
    if len(branches) == 1 and "" not in words:
        return branches[0]
    if not branches:
        return ""
    optional = "?" if "" in words else ""
    return f"(?:{'|'.join(branches)}){optional}"


def _size_bytes(piece: str, ids: array[int]) -> int:
    return sys.getsizeof(piece) + sys.getsizeof(ids) + _ENTRY_BYTES
