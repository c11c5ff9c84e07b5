"""A vocabulary in which every byte is a token, beside those that models have for their marks."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = (
    "<end>",
    "<stop>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    '<|"|>',
)
ENDS = frozenset({0, 1})


def _tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: len(SPECIAL) + n for n, char in enumerate(alphabet)}
    tokenizer = Tokenizer(
        models.BPE(vocab={**{tag: n for n, tag in enumerate(SPECIAL)}, **vocabulary}, merges=[])
    )
    tokenizer.add_special_tokens([AddedToken(tag, special=True) for tag in SPECIAL])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _bytes_of() -> dict[str, bytes]:
    """Return GPT-2's alphabet: printable bytes stand for themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{chr(byte): bytes([byte]) for byte in printable},
        **{chr(0x100 + n): bytes([byte]) for n, byte in enumerate(others)},
    }


TOKENIZER = _tokenizer()
_ALPHABET = _bytes_of()
#: The bytes of each id.
TABLE = [
    SPECIAL[n].encode() if n < len(SPECIAL) else _ALPHABET[TOKENIZER.id_to_token(n) or ""]
    for n in range(TOKENIZER.get_vocab_size())
]
