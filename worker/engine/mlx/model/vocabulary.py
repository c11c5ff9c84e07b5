"""Choose the detokenizer of a vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, SPMStreamingDetokenizer

from worker.engine.output.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer

#: SentencePiece writes a space as this.
_SPACE = "\u2581".encode()


def detokenizer_factory(tokenizer: Any) -> Callable[[], Detokenizer]:  # noqa: ANN401 - mlx-lm ships no types
    """Return a factory of fresh detokenizers; the byte table is built once.

    Args:
        tokenizer: mlx-lm's wrapper, which has detected the kind of the vocabulary.
    """
    kind = tokenizer.detokenizer
    if isinstance(kind, BPEStreamingDetokenizer):
        table = _byte_level_table(tokenizer)
        return lambda: ByteDetokenizer(table)
    if isinstance(kind, SPMStreamingDetokenizer):
        table = [token.replace(_SPACE, b" ") for token in kind.tokenmap]
        return lambda: ByteDetokenizer(table, strip_first_space=kind.trim_space)

    def decode(ids: Sequence[int]) -> str:
        text: str = tokenizer.decode(list(ids)) if ids else ""
        return text

    return lambda: WindowDetokenizer(decode)


def spelling_of(detokenizer: Callable[[], Detokenizer]) -> Callable[[int], bytes]:
    """Return a function from a token id to the bytes that the token adds to a text.

    Args:
        detokenizer: Makes the detokenizers of the vocabulary.
    """
    kind = detokenizer()
    if isinstance(kind, ByteDetokenizer):
        return kind.bytes_of

    def spell(token: int) -> bytes:
        # A first token may lose the space before it; a second one does not.
        fresh = detokenizer()
        before = fresh.feed(token) + fresh.flush()
        fresh = detokenizer()
        twice = fresh.feed(token) + fresh.feed(token) + fresh.flush()
        return twice.removeprefix(before).encode("utf-8", "replace")

    return spell


def _byte_level_table(tokenizer: Any) -> list[bytes]:  # noqa: ANN401 - mlx-lm ships no types
    """Return the bytes of each id of a byte-level vocabulary.

    Such a vocabulary maps each byte to one printable character. Added tokens are plain text.
    """
    byte_of = _byte_of_character()
    added = set(tokenizer.get_added_vocab().values())
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return [
        (token or "").encode()
        if number in added or token is None
        else b"".join(byte_of.get(char) or char.encode() for char in token)
        for number, token in enumerate(tokens)
    ]


def _byte_of_character() -> dict[str, bytes]:
    """Return GPT-2's byte alphabet (``bytes_to_unicode`` of the GPT-2 encoder), inverted.

    Printable bytes map to themselves, the others to characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): bytes([byte]) for byte in printable}
    alphabet.update({chr(0x100 + n): bytes([byte]) for n, byte in enumerate(others)})
    return alphabet
