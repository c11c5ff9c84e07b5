"""A text tokenised segment by segment has the ids of the whole text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

import worker.demo_model
from worker.engine.mlx.prompt.segment_tokenizer import SegmentTokenizer, refusal

#: One begins like another, one is inside another, some are white space.
OVERLAPPING = ("<a", "<a>", "<a><b", "<<", "a><", "\n\n", "\n\n\n", "  ", "é", "<|im_end|>")
EXAMPLES = 50
GPT_SPLIT = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
TRAINED_ON = ("the quick brown fox  jumps\n\nover the lazy dog's 1234 <a> é <b> im_end",)


def trained(
    pre_tokenizer: Any, normalizer: Any = None, marks: tuple[Any, ...] = OVERLAPPING
) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TRAINED_ON, trainer)
    tokenizer.add_tokens(
        [AddedToken(mark, normalized=False) if isinstance(mark, str) else mark for mark in marks]
    )
    return tokenizer


@cache
def tokenizers() -> dict[str, Tokenizer]:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(GPT_SPLIT), "isolated")
    demo = Path(worker.demo_model.__file__).parent / "tokenizer.json"
    return {
        "demo": Tokenizer.from_file(str(demo)),
        "byte level": trained(pre_tokenizers.ByteLevel(add_prefix_space=False)),
        # As Qwen's, and with a mark that is looked for in what was normalized.
        "composed": trained(
            pre_tokenizers.Sequence([split, byte_level]),
            normalizers.NFC(),
            (*OVERLAPPING, AddedToken("Fox", normalized=True, lstrip=True)),
        ),
        # As Gemma's.
        "replaced": trained(
            pre_tokenizers.Split(" ", "merged_with_previous"), normalizers.Replace(" ", "▁")
        ),
    }


@cache
def encoder(name: str) -> SegmentTokenizer:
    # Small, so that pieces are forgotten on the way.
    return SegmentTokenizer(tokenizers()[name], bytes_max=4096)


@cache
def texts(name: str) -> st.SearchStrategy[str]:
    """Return marks, beginnings and ends of marks, and what is between them."""
    decoder = tokenizers()[name].get_added_tokens_decoder()
    marks = [token.content for token in decoder.values()]
    parts = {mark[:at] for mark in marks for at in range(len(mark))}
    parts |= {mark[at:] for mark in marks for at in range(len(mark))}
    spaces = [" ", "  ", "\n", "\n\n\n\n", "\t", "\u0301", "e", "\u200d", "'s", "12"]
    words = ["the quick", "fox jumps", "Fox", "<", ">", "|", "a>", "\U0001f9d1"]
    other = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    piece = st.sampled_from(marks) | st.sampled_from([*sorted(parts), *spaces, *words]) | other
    return st.lists(piece, max_size=16).map("".join)


@pytest.mark.parametrize("name", ["demo", "byte level", "composed", "replaced"])
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_any_text_by_segments_has_the_ids_of_the_whole(name: str, data: st.DataObject) -> None:
    text = data.draw(texts(name))

    ids = encoder(name).encode(text)

    assert list(ids) == tokenizers()[name].encode(text, add_special_tokens=False).ids
    assert encoder(name)._bytes <= 4096


class Counting:
    """A tokenizer that counts the characters it reads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.chars = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode_batch_fast(self, pieces: list[str], **options: Any) -> Any:
        self.chars += sum(map(len, pieces))
        return self._tokenizer.encode_batch_fast(pieces, **options)


TURN = "<|im_start|>user\n" + "the quick brown fox " * 50 + "<|im_end|>\n<|im_start|>assistant\n"


def test_next_turn_reads_only_what_is_new() -> None:
    tokenizer = Counting(tokenizers()["demo"])
    segmented = SegmentTokenizer(tokenizer)
    segmented.encode(TURN)

    before = tokenizer.chars
    segmented.encode(TURN)
    assert tokenizer.chars == before
    segmented.encode(TURN + "yes<|im_end|>\n")
    assert tokenizer.chars <= before + len("assistant\nyes") + len("\n")


def test_piece_that_is_not_used_is_forgotten_first() -> None:
    tokenizer = Counting(tokenizers()["demo"])
    segmented = SegmentTokenizer(tokenizer, bytes_max=8000)
    pieces = [f"{number} " * 300 for number in range(4)]
    for number in (0, 1, 0, 2, 0, 3, 0):
        segmented.encode(pieces[number])

    before = tokenizer.chars
    segmented.encode(pieces[0])
    assert tokenizer.chars == before
    segmented.encode(pieces[1])
    assert tokenizer.chars > before


def test_many_threads_at_once_all_get_the_right_ids() -> None:
    segmented = SegmentTokenizer(tokenizers()["demo"], bytes_max=20_000)
    turns = [TURN.replace("fox", f"fox {number % 7}") for number in range(64)]
    with ThreadPoolExecutor(8) as threads:
        all_ids = list(threads.map(segmented.encode, turns))

    whole = tokenizers()["demo"].encode_batch(turns, add_special_tokens=False)
    assert [list(ids) for ids in all_ids] == [encoding.ids for encoding in whole]
    assert segmented._bytes <= 20_000


def _with(**changes: Any) -> Tokenizer:
    tokenizer = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    return tokenizer


def _cutting() -> Tokenizer:
    tokenizer = _with()
    tokenizer.enable_truncation(8)
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "why"),
    [
        (_cutting(), "truncates"),
        (_with(encode_special_tokens=True), "as text"),
        (_with(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)), "ByteLevel"),
        (_with(pre_tokenizer=pre_tokenizers.Metaspace()), "Metaspace"),
        (
            _with(
                normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.Prepend("a")]),
            ),
            "Prepend",
        ),
        (trained(pre_tokenizers.ByteLevel(add_prefix_space=False), marks=()), "no markers"),
        (
            trained(
                pre_tokenizers.ByteLevel(add_prefix_space=False),
                marks=(AddedToken("<x>", normalized=False, rstrip=True),),
            ),
            "neighbours",
        ),
    ],
)
def test_tokenizer_that_looks_beyond_a_piece_is_refused(tokenizer: Tokenizer, why: str) -> None:
    assert why in str(refusal(tokenizer))
