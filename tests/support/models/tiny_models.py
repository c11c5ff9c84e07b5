"""Small random models on disk, made in well under a second."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models import llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ops.settings.models import DEMO_MODEL
from worker.engine.mlx.model.loader import find_model

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if enable_thinking %}<think>
{% endif -%}
{%- endif -%}"""


def make_tiny_llama(
    directory: Path,
    *,
    hidden: int = 64,
    layers: int = 2,
    vocabulary: int = 512,
    context: int = 2048,
    template: str = TEMPLATE,
    special: tuple[str, ...] = SPECIAL,
    end: str = "<|im_end|>",
    seed: int = 7,
) -> Path:
    """Write a random llama with its own byte-level tokenizer and return ``directory``.

    Of the special tokens the first pads, and ``end`` ends a turn.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer(vocabulary, special)
    tokenizer.save(str(directory / "tokenizer.json"))
    _write(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": end,
            "pad_token": special[0],
            "clean_up_tokenization_spaces": False,
        },
    )
    (directory / "chat_template.jinja").write_text(template)
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": hidden * 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": hidden // 4,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        "tie_word_embeddings": False,
        "eos_token_id": tokenizer.token_to_id(end),
    }
    _write(directory / "config.json", config)
    mx.random.seed(seed)
    network = llama.Model(llama.ModelArgs.from_dict(config))
    # Large random weights make sharp, varied distributions; small ones repeat one token for ever.
    weights = tree_map(
        lambda weight: weight * 3 if weight.ndim > 1 else weight, network.parameters()
    )
    mx.save_safetensors(
        str(directory / "model.safetensors"), dict(tree_flatten(weights)), {"format": "mlx"}
    )
    return directory


def byte_tokenizer(vocabulary: int, special: tuple[str, ...]) -> Tokenizer:
    """Return a byte-level tokenizer with these special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Enough different words to fill the vocabulary, the same on every run.
    words = " ".join(f"{a}{b}{c}" for a in "bdfklmnprst" for b in "aeiou" for c in "nrstx")
    tokenizer.train_from_iterator([words, "The quick brown fox jumps over the lazy dog."], trainer)
    return tokenizer


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value))


def make_quick_demo(directory: Path) -> Path:
    """Write a random model with the demo model's vocabulary and template; prefill is cheap.

    Its own answers are noise: for tests that constrain it to a script.
    """
    shipped = find_model(DEMO_MODEL)
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(shipped / name, directory)
    config = json.loads((shipped / "config.json").read_text()) | {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "layer_types": ["full_attention"],
    }
    _write(directory / "config.json", config)
    mx.random.seed(7)
    weights = llama.Model(llama.ModelArgs.from_dict(config)).parameters()
    mx.save_safetensors(
        str(directory / "model.safetensors"), dict(tree_flatten(weights)), {"format": "mlx"}
    )
    return directory
