"""The bytes of the tokens of a byte-level vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer
from tokenizers.pre_tokenizers import ByteLevel

from worker.engine.mlx.model.tool_families import detokenizer_factory, spelling_of

_LEVEL = ByteLevel(add_prefix_space=False, use_regex=False)


@dataclass
class _Vocabulary:
    """mlx-lm's wrapper of a tokenizer with these tokens."""

    tokens: list[str | None]
    added: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str | None]:
        return [self.tokens[one] for one in ids]

    def get_added_vocab(self) -> dict[str, int]:
        return self.added

    @property
    def detokenizer(self) -> BPEStreamingDetokenizer:
        return BPEStreamingDetokenizer(self)


def _bytes_of(vocabulary: _Vocabulary) -> list[bytes]:
    spell = spelling_of(detokenizer_factory(vocabulary))
    return [spell(number) for number in range(len(vocabulary))]


@given(st.text(min_size=1))
def test_a_token_has_the_bytes_that_the_byte_level_coding_read(text: str) -> None:
    ((token, _),) = _LEVEL.pre_tokenize_str(text)
    assert _bytes_of(_Vocabulary([token])) == [text.encode()]


def test_each_byte_has_a_token() -> None:
    alphabet = sorted(ByteLevel.alphabet())
    assert sorted(_bytes_of(_Vocabulary([*alphabet]))) == [bytes([byte]) for byte in range(256)]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_characters_that_stand_for_no_byte_are_text(text: str) -> None:
    level = set(ByteLevel.alphabet())
    other = "".join(char for char in text if char not in level) + "\x80\x9f\xa0\xad\u0144 "
    assert _bytes_of(_Vocabulary([other])) == [other.encode()]


def test_an_added_token_is_text_and_a_missing_one_is_empty() -> None:
    vocabulary = _Vocabulary(["Ġa", "Ġa", None], {"Ġa": 1})
    assert _bytes_of(vocabulary) == [b" a", "Ġa".encode(), b""]
