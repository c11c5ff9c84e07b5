"""Train the byte-level BPE tokenizer of the demo model."""

import json
import random
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bench.demo_model.corpus import Corpus
from bench.demo_model.noise import standard_library_texts
from bench.demo_model.render import SPECIAL_TOKENS, Renderer

VOCAB_SIZE = 4096
MAX_POSITIONS = 131_072
_EXAMPLES = 8_000
_LIBRARY_CHARS = 3_000_000


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Train a byte-level BPE in which a line break is always a token of its own.

    Isolated line breaks and digits make the tokens of a piece independent of what follows
    it, so a conversation tokenised piece by piece equals the conversation tokenised whole.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\n", "isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=16,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def training_texts(seed: int) -> list[str]:
    """Return the texts that the vocabulary is learned from."""
    corpus = Corpus(random.Random(f"tokenizer {seed}"))
    renderer = Renderer()
    chats = [renderer.text(*corpus.conversation()) for _ in range(_EXAMPLES)]
    return chats + standard_library_texts(_LIBRARY_CHARS, seed)


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
