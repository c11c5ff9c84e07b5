"""A small random embedding model on disk, of the shape of Qwen3-Embedding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3
from tokenizers import Tokenizer, processors

from tests.support.models.tiny_models import SPECIAL, byte_tokenizer

#: Elements of a vector.
DIMENSIONS = 64
VOCABULARY = 512


def make_tiny_embedder(
    directory: Path,
    *,
    pooling: str | None = "lasttoken",
    context: int = 512,
    layers: int = 2,
    seed: int = 7,
    **config: Any,
) -> Path:
    """Write a random qwen3 as sentence-transformers would, and return ``directory``.

    As in Qwen3-Embedding, the tokenizer appends the end of text; names of weights lack ``model.``.

    Args:
        directory: Where to write.
        pooling: A pooling mode of sentence-transformers; ``None`` writes no pooling, as conversions
            to MLX do.
        context: Longest text in tokens.
        layers: Number of layers.
        seed: Of the weights.
        config: Further members of the configuration.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer: Tokenizer = byte_tokenizer(VOCABULARY, SPECIAL)
    end = SPECIAL[0]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, tokenizer.token_to_id(end))]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    _write(
        directory / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "pad_token": end},
    )
    shape: dict[str, Any] = {
        "model_type": "qwen3",
        "hidden_size": DIMENSIONS,
        "num_hidden_layers": layers,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": context,
        "tie_word_embeddings": True,
        **config,
    }
    _write(directory / "config.json", shape)
    mx.random.seed(seed)
    network = qwen3.Model(qwen3.ModelArgs.from_dict(shape))
    parameters: list[tuple[str, Any]] = tree_flatten(network.parameters())  # type: ignore[assignment]
    weights = {
        name.removeprefix("model."): array * 3 if array.ndim > 1 else array
        for name, array in parameters
    }
    mx.save_safetensors(str(directory / "model.safetensors"), weights, {"format": "mlx"})
    if pooling is not None:
        _write_pooling(directory, pooling)
    return directory


def plain_vector(directory: Path, ids: list[int], *, pooling: str, dimensions: int) -> list[float]:
    """Return the vector of one text, computed in one pass by mlx-lm alone."""
    config = json.loads((directory / "config.json").read_text())
    network = qwen3.Model(qwen3.ModelArgs.from_dict(config))
    stored = mx.load(str(directory / "model.safetensors"))
    assert isinstance(stored, dict)
    network.load_weights([(f"model.{name}", array) for name, array in stored.items()])
    hidden = network.model(mx.array([ids]))[0]
    pooled = {"lasttoken": hidden[-1], "cls_token": hidden[0], "mean_tokens": hidden.mean(axis=0)}
    kept = pooled[pooling][:dimensions]
    return [float(one) for one in (kept / mx.sqrt((kept * kept).sum())).tolist()]


def _write_pooling(directory: Path, pooling: str) -> None:
    modules = ("Transformer", "Pooling", "Normalize")
    listed = [{"type": f"sentence_transformers.models.{name}"} for name in modules]
    _write(directory / "modules.json", listed)
    (directory / "1_Pooling").mkdir(exist_ok=True)
    marks = ("cls_token", "mean_tokens", "lasttoken")
    chosen = {f"pooling_mode_{mark}": mark == pooling for mark in marks}
    _write(directory / "1_Pooling" / "config.json", chosen)


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))
