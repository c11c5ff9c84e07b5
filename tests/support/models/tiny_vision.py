"""Small random models that see, on disk, and pictures for them."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_vlm.models import gemma3, mistral3, qwen2_5_vl, qwen3_5, qwen3_5_moe
from mlx_vlm.utils import update_module_configs
from PIL import Image

from domain.chat.images import ChatImage
from tests.support.models.tiny_models import byte_tokenizer

VOCABULARY = 512
_TEMPLATE = """\
{%- for message in messages -%}
START{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content -%}
{% if part.type == 'image' %}IMAGE{% else %}{{ part.text }}{% endif %}{%- endfor %}{% endif %}END
{% endfor -%}
{%- if add_generation_prompt -%}STARTmodel
{% endif -%}"""


def make_tiny_gemma3(directory: Path) -> Path:
    """Write a random Gemma 3 that sees: windows, and 16 tokens for each image."""
    special = ("<pad>", "<bos>", "<start_of_turn>", "<end_of_turn>")
    pictures = ("<start_of_image>", "<end_of_image>", "<image_soft_token>")
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": VOCABULARY,
        "sliding_window": 24,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 16,
        "mm_tokens_per_image": 16,
        "max_position_embeddings": 2048,
    }
    vision = {
        "model_type": "siglip_vision_model",
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "patch_size": 8,
        "image_size": 64,
    }
    config = {
        "model_type": "gemma3",
        "text_config": text,
        "vision_config": vision,
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "image_token_index": len(special) + 2,
        "pad_token_id": 0,
        "eos_token_id": 3,
        "mm_tokens_per_image": 16,
    }
    names = {"boi_token": pictures[0], "eoi_token": pictures[1], "image_token": pictures[2]}
    _write_tokenizer(directory, (*special, *pictures), pictures[0], names)
    processor = {
        "image_processor_type": "Gemma3ImageProcessor",
        "size": {"height": 64, "width": 64},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "image_seq_length": 16,
    }
    _write(directory / "preprocessor_config.json", processor)
    _write(directory / "processor_config.json", {"image_seq_length": 16})
    _write_weights(directory, config, gemma3)
    return directory


_QWEN_SPECIAL = (
    *("<|endoftext|>", "<|bos|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
)
_QWEN_IDS = {
    "vision_start_token_id": 4,
    "vision_end_token_id": 5,
    "image_token_id": 6,
    "video_token_id": 7,
    "eos_token_id": 3,
}
_QWEN_TOWER = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "out_hidden_size": 64,
    "num_heads": 2,
    "patch_size": 8,
    "spatial_patch_size": 8,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
}


def make_tiny_qwen2_5_vl(directory: Path) -> Path:
    """Write a random Qwen2.5-VL: a section of frequencies for each axis of positions."""
    config = {
        "model_type": "qwen2_5_vl",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "tie_word_embeddings": True,
        **_QWEN_IDS,
        "vision_config": {
            **_QWEN_TOWER,
            "model_type": "qwen2_5_vl",
            "window_size": 32,
            "fullatt_block_indexes": [1],
        },
    }
    return _write_qwen(directory, config, qwen2_5_vl)


def make_tiny_qwen3_5(directory: Path) -> Path:
    """Write a random Qwen3.5 that sees: recurrent layers, and axes that take turns."""
    return _write_qwen(directory, _qwen3_5("qwen3_5"), qwen3_5)


def make_tiny_qwen3_5_moe(directory: Path) -> Path:
    """Write the same with experts."""
    experts = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
    }
    return _write_qwen(directory, _qwen3_5("qwen3_5_moe", **experts), qwen3_5_moe)


def make_tiny_mistral3(directory: Path) -> Path:
    """Write a random Mistral Small that sees: a token ends each row of an image."""
    marks = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    special = ("<pad>", "<s>", "[INST]", "[/INST]", *marks)
    config = {
        "model_type": "mistral3",
        "text_config": {
            "model_type": "mistral",
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "intermediate_size": 128,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "rms_norm_eps": 1e-6,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 2048,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
        },
        "vision_config": {
            "model_type": "pixtral",
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "intermediate_size": 64,
            "num_attention_heads": 2,
            "head_dim": 16,
            "patch_size": 8,
            "image_size": 96,
            "rope_theta": 10000.0,
        },
        "vocab_size": VOCABULARY,
        "image_token_index": 4,
        "spatial_merge_size": 2,
        "eos_token_id": 3,
    }
    _write_tokenizer(directory, special, marks[0], {})
    processor = {
        "image_processor_type": "PixtralImageProcessor",
        "patch_size": 16,
        "size": {"longest_edge": 96},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    _write(directory / "preprocessor_config.json", processor)
    _write(
        directory / "processor_config.json",
        {"processor_class": "PixtralProcessor", "patch_size": 8, "spatial_merge_size": 2},
    )
    _write_weights(directory, config, mistral3)
    return directory


def _qwen3_5(model_type: str, **more: Any) -> dict[str, Any]:
    text = {
        "model_type": f"{model_type}_text",
        **more,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "full_attention_interval": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "type": "default",
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
    }
    return {
        "model_type": model_type,
        "text_config": text,
        "vision_config": {
            **_QWEN_TOWER,
            "model_type": model_type,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [],
        },
        "vocab_size": VOCABULARY,
        **_QWEN_IDS,
    }


def _write_qwen(directory: Path, config: dict[str, Any], family: Any) -> Path:
    _write_tokenizer(directory, _QWEN_SPECIAL, "".join(_QWEN_SPECIAL[at] for at in (4, 6, 5)), {})
    processor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 8,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "min_pixels": 256,
        "max_pixels": 16 * 256,
    }
    _write(directory / "preprocessor_config.json", processor)
    _write_weights(directory, config, family)
    return directory


#: Makers of the families, by name.
FAMILIES: dict[str, Callable[[Path], Path]] = {
    "gemma3": make_tiny_gemma3,
    "qwen2_5_vl": make_tiny_qwen2_5_vl,
    "qwen3_5": make_tiny_qwen3_5,
    "qwen3_5_moe": make_tiny_qwen3_5_moe,
    "mistral3": make_tiny_mistral3,
}


def picture(seed: int, width: int = 90, height: int = 70, file: str = "PNG") -> ChatImage:
    """Return a picture of random colours."""
    image = Image.frombytes(
        "RGB", (width, height), random.Random(seed).randbytes(3 * width * height)
    )
    buffer = BytesIO()
    image.save(buffer, file)
    return ChatImage(base64.b64encode(buffer.getvalue()).decode())


def blank(width: int, height: int) -> bytes:
    """Return the file of a black picture, which is small for any size."""
    buffer = BytesIO()
    Image.new("1", (width, height)).save(buffer, "PNG")
    return buffer.getvalue()


def _write_tokenizer(
    directory: Path, special: tuple[str, ...], image: str, names: dict[str, str]
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    byte_tokenizer(VOCABULARY, special).save(str(directory / "tokenizer.json"))
    pad, _, start, end = special[:4]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end,
        "pad_token": pad,
        "clean_up_tokenization_spaces": False,
        "extra_special_tokens": names,
    }
    _write(directory / "tokenizer_config.json", config)
    template = _TEMPLATE.replace("START", start).replace("IMAGE", image).replace("END", end)
    (directory / "chat_template.jinja").write_text(template)


def _write_weights(directory: Path, config: dict[str, Any], family: Any) -> None:
    _write(directory / "config.json", config)
    given = json.loads(json.dumps(config))
    settings = update_module_configs(
        family.ModelConfig.from_dict(given), family, given, ["text", "vision"]
    )
    mx.random.seed(11)
    model = family.Model(settings)

    def weight(path: str, array: mx.array) -> mx.array:
        if "embed_tokens" in path:  # shared with the head: else each token would repeat itself
            return array * 0.5
        if "post_" in path:  # norms after the layers
            return array * 3
        # Sharp distributions, and vectors of images that are as large as those of text.
        return mx.random.normal(array.shape) if "projector" in path else array * 3

    weights = dict(tree_flatten(tree_map_with_path(weight, model.parameters())))
    weights.pop("language_model.lm_head.weight", None)
    mx.save_safetensors(str(directory / "model.safetensors"), weights, {"format": "mlx"})


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value))
