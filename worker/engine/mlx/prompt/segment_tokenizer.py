"""Tokenises a text segment by segment; marks of the template stay apart from a caller's text."""

from __future__ import annotations

import json
import re
import secrets
import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from threading import Lock
from typing import Any, Final

import structlog

from domain.chat.request import Message, RawPrompt
from domain.errors import InvalidRequest, PromptTooLong
from worker.engine.mlx.untyped import Tokenizer
from worker.engine.ports import RenderedPrompt

#: Upper bound for the cached segments, in bytes.
SEGMENTS_BYTES_MAX = 32 << 20
#: Overhead of one cached segment, besides its text and its ids.
_ENTRY_BYTES = 256
#: Longest marker that is accepted; the pattern that finds markers is as deep as they are long.
_MARK_CHARS_MAX = 200
#: Tokenizer components that encode a segment independently of its position. Components that treat
#: the first segment or a segment's edges differently (``Metaspace``, ``Prepend``, ``Strip``) are
#: not listed, and neither are unknown ones.
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
    """Returns the ids that a tokenizer would, without its special frame. For many threads at once.

    Args:
        tokenizer: Of the library ``tokenizers``; ``refusal`` must return ``None`` for it.
    """

    def __init__(self, tokenizer: Tokenizer, bytes_max: int = SEGMENTS_BYTES_MAX) -> None:
        assert refusal(tokenizer) is None, "this tokenizer's segments depend on each other"
        self._tokenizer = tokenizer
        self._marks = {token.content: token_id for token_id, token in _marks(tokenizer)}
        # Like the tokenizer, the pattern takes the longest marker at the first match.
        self._cut = re.compile(f"({longest_of(self._marks)})")
        self._bytes_max = bytes_max
        self._lock = Lock()
        self._bytes = 0
        self._cached: OrderedDict[str, array[int]] = OrderedDict()

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text that already holds its special tokens."""
        # Every second piece is a marker.
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
            # encode_batch_fast releases the interpreter lock. A single encode would hold it, and
            # block the engine thread, for as long as a long prompt takes.
            encodings = self._tokenizer.encode_batch_fast(unknown, add_special_tokens=False)
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


def refusal(tokenizer: Tokenizer) -> str | None:
    """Return why a tokenizer's segments may not be encoded separately; ``None`` if they may."""
    if tokenizer.truncation is not None or tokenizer.padding is not None:
        return "it truncates or pads"
    if tokenizer.encode_special_tokens:
        return "it encodes markers as text"
    return _refusal_of_marks([token for _, token in _marks(tokenizer)]) or _refusal_of_parts(
        tokenizer
    )


def _refusal_of_marks(marks: Sequence[Any]) -> str | None:
    reasons = {
        "it has no markers to split at": not marks,
        "a marker has two ids": len({one.content for one in marks}) < len(marks),
        "a marker depends on its neighbours": any(
            one.lstrip or one.rstrip or one.single_word for one in marks
        ),
        "a marker is very long": any(len(one.content) > _MARK_CHARS_MAX for one in marks),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _refusal_of_parts(tokenizer: Tokenizer) -> str | None:
    model = type(tokenizer.model).__name__
    if model not in _MODELS or getattr(tokenizer.model, "dropout", None):
        return f"model {model}"
    try:
        normalizers = _parts(tokenizer.normalizer, "normalizers")
        pre_tokenizers = _parts(tokenizer.pre_tokenizer, "pretokenizers")
    except Exception:  # noqa: BLE001 - a component written in Python may raise anything
        return "a component that cannot be inspected"
    refused = [
        f"normalizer {one['type']}" for one in normalizers if one["type"] not in _NORMALIZERS
    ]
    refused += [
        f"pre-tokenizer {one['type']}"
        for one in pre_tokenizers
        if one["type"] not in _PRE_TOKENIZERS or one.get("add_prefix_space")
    ]
    return next(iter(refused), None)


def _marks(tokenizer: Tokenizer) -> Iterator[tuple[int, Any]]:
    """Yield the added tokens that are split off before the text is normalised.

    The tokenizer looks for the others (``normalized``) inside each segment.
    """
    for token_id, token in tokenizer.get_added_tokens_decoder().items():
        if token.content and not token.normalized:
            yield token_id, token


def _parts(component: Any, nested: str) -> list[dict[str, Any]]:  # noqa: ANN401 - tokenizers ships no types
    """Return a component and its nested components, in the form of ``tokenizer.json``."""
    parts: list[dict[str, Any]] = []
    waiting = [] if component is None else [json.loads(component.__getstate__())]
    while waiting:
        parts.append(waiting.pop())
        waiting.extend(parts[-1].get(nested, ()))
    return parts


def longest_of(words: Collection[str]) -> str:
    """Return a trie-shaped pattern for the longest of the words, of which there may be many."""
    rests: dict[str, list[str]] = {}
    for word in words:
        if word:
            rests.setdefault(word[0], []).append(word[1:])
    branches = [re.escape(first) + longest_of(rest) for first, rest in rests.items()]
    if len(branches) == 1 and "" not in words:
        return branches[0]
    if not branches:
        return ""
    optional = "?" if "" in words else ""
    return f"(?:{'|'.join(branches)}){optional}"


def _size_bytes(piece: str, ids: array[int]) -> int:
    return sys.getsizeof(piece) + sys.getsizeof(ids) + _ENTRY_BYTES


#: Characters of a mark that are compared; a longer one is recognised by its beginning.
_COMPARED_CHARS_MAX: Final = 200
_NONCE_BYTES: Final = 16


class MarkBreaker:
    """Breaks marks in texts, and encodes prompts with broken marks. For many threads at once.

    A mark of one character, or of white space only, is left whole: it has no role, and tokenizers
    have such tokens for indentation.

    Args:
        marks: The texts of all added tokens, whether or not the tokenizer calls them special.
    """

    def __init__(self, marks: Collection[str]) -> None:
        compared = {mark[:_COMPARED_CHARS_MAX] for mark in marks if mark.strip()}
        self._marks = frozenset(mark for mark in compared if len(mark) > 1)
        self._find = re.compile(longest_of(self._marks)) if self._marks else None
        # Letters and digits only: templates and their JSON filters leave them unchanged.
        self._nonce = secrets.token_hex(_NONCE_BYTES)

    def is_mark(self, text: str) -> bool:
        """Whether this text alone is a mark that is broken."""
        return text in self._marks

    def broken(self, text: str) -> str:
        """Return the text with a nonce inside each mark."""
        if self._find is None:
            return text
        pieces, begin, at = [], 0, 0
        while (found := self._find.search(text, at)) is not None:
            # What follows the first character may begin a mark of its own.
            at = found.start() + 1
            pieces.append(text[begin:at])
            begin = at
        return self._nonce.join([*pieces, text[begin:]]) if pieces else text

    def broken_deeply(self, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        """Return a JSON value whose strings, keys included, have no whole mark."""
        match value:
            case str():
                return self.broken(value)
            case Mapping():
                return {
                    self.broken_deeply(key): self.broken_deeply(one) for key, one in value.items()
                }
            case list() | tuple():
                return [self.broken_deeply(one) for one in value]
            case _:
                return value

    def encode(self, text: str, encode: Callable[[str], tuple[int, ...]]) -> tuple[int, ...]:
        """Return the ids of a prompt with broken marks.

        Args:
            encode: Returns the ids of a text in which every mark is read as a token.
        """
        pieces = text.split(self._nonce)
        if len(pieces) == 1:
            return encode(text)
        return tuple(chain.from_iterable(encode(piece) for piece in pieces))


def with_reasoning_apart(turn: Message, think_start: str, think_end: str) -> Message:
    """Return an assistant turn whose reasoning is not part of its text.

    Some clients send reasoning back inside the text. Templates look for its marks there, but find
    none that is broken.
    """
    if turn.role != "assistant" or think_end not in turn.content:
        return turn
    *before, text = turn.content.split(think_end)
    reasoning = turn.reasoning or before[0].rsplit(think_start, 1)[-1].strip("\n")
    return replace(turn, content=text.lstrip("\n"), reasoning=reasoning)


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
    """Encodes raw prompts to token ids. May be called from many threads at once."""

    def __init__(self, tokenizer: Tokenizer, encode: Callable[[str], tuple[int, ...]]) -> None:
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
            raise InvalidRequest("the prompt is empty", field="prompt")
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
        is_begun = bool(raw.ids) or raw.is_begun or before[: len(self._start)] == self._start
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


def _start_of(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the start token that the tokenizer adds to a text; empty if it adds none."""
    start = tokenizer.bos_token_id
    framed = tokenizer.encode("a", add_special_tokens=True)
    return (start,) if start is not None and framed[:1] == [start] else ()


def _gap_marks_of(tokenizer: Tokenizer) -> tuple[int, int, int] | None:
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
    """Estimate the tokens of a text with more than ``tokens_max``; ``None`` if it may fit."""
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
        tokens_max: Longest prompt that is encoded; ``None`` for any length.

    Attributes:
        marks: Breaks marks in a caller's text; ``encode_prompt`` cuts the prompt there.
    """

    def __init__(self, tokenizer: Tokenizer, tokens_max: int | None = None) -> None:
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


def _segments_of(backend: Tokenizer) -> SegmentTokenizer | None:
    why = refusal(backend)
    if why is not None:
        _log.info("prompts_tokenised_whole", why=why)
        return None
    return SegmentTokenizer(backend)
