"""Size a model from its configuration, without weights.

The arrays of MLX are lazy: a network that is built and never evaluated has shapes and dtypes but no
memory. Sizes of quantized layers and of caches follow from the same code that loads and runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from fnmatch import fnmatch
from typing import Any

import mlx.core as mx
import mlx_lm.utils
from mlx.nn.layers.quantized import quantize

from domain.errors import InvalidRequest
from domain.kv.plan import ModelFootprint
from ops.models.hub_cache import context_length_of
from worker.engine.mlx.kv.probe import packed_refusal, packed_spec, probe_spec
from worker.engine.mlx.kv.window_cache import UnsupportedCache
from worker.engine.mlx.memory.at_load import parameter_bytes
from worker.engine.mlx.memory.step import estimated_step
from worker.engine.mlx.model.abilities import abilities_of
from worker.engine.mlx.model.draft_head import head_memory
from worker.engine.mlx.rows.ragged_states import find_row_support

_DTYPES = {"bfloat16": mx.bfloat16, "float16": mx.float16, "float32": mx.float32}
#: Group size of weights that ``bits`` quantizes: the default of ``mlx_lm.convert``.
_GROUP_SIZE = 64
#: Formats of Hugging Face that mlx-lm reads without conversion.
_MX_FORMATS = {
    "mxfp4": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    "mxfp8": {"group_size": 32, "bits": 8, "mode": "mxfp8"},
}
_COMPRESSED_FORMATS = {
    "nvfp4-pack-quantized": {"group_size": 16, "bits": 4, "mode": "nvfp4"},
    "mxfp4-pack-quantized": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    "pack-quantized": {"group_size": 32, "bits": 4, "mode": "affine"},
}
#: Modules of mlx-lm whose ``sanitize`` removes the output head where the weights have none. Their
#: families tie it to the embedding unless the configuration has ``tie_word_embeddings: false``.
_TIED_FAMILIES = ("mlx_lm.models.gemma3_text", "mlx_lm.models.recurrent_gemma")


class UnsupportedConfig(InvalidRequest):
    """The configuration describes no model that this engine can size."""

    code = "config_unsupported"


def size_model(
    config: Mapping[str, Any],
    *,
    bits: int | None = None,
    kv_bits: int = 0,
    piece_tokens: int,
    batch: int,
) -> ModelFootprint:
    """Return what a model takes, from its ``config.json`` alone; allocates no weights.

    Args:
        config: The object in ``config.json``.
        bits: Quantizes a configuration that is not quantized, in groups of 64 weights; ``None``
            keeps its own dtype.
        kv_bits: Bits of keys and values; 0 for the dtype of the model.

    Raises:
        UnsupportedConfig: The model family, a value or a cache is not supported.
    """
    try:
        return _sized(config, bits, kv_bits, piece_tokens, batch)
    except UnsupportedConfig:
        raise
    except UnsupportedCache as error:
        raise UnsupportedConfig(f"the contexts of this model cannot be sized: {error}") from error
    except Exception as error:
        # The classes of mlx-lm raise exceptions of many types on values that they do not expect.
        text = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {text[0] if text else ''}".rstrip(": ")
        raise UnsupportedConfig(f"the configuration cannot be sized: {reason}") from error


def _sized(
    config: Mapping[str, Any], bits: int | None, kv_bits: int, piece_tokens: int, batch: int
) -> ModelFootprint:
    # The classes of mlx-lm write into the object.
    network = _build(deepcopy(dict(config)))
    dtype = _DTYPES.get(_dtype_name(config), mx.bfloat16)
    network.set_dtype(dtype)
    _untie(network, config)
    _quantize(network, config, bits)
    spec = probe_spec(network)
    support = find_row_support(network, computes=False)
    if kv_bits and not packed_refusal(network, packed_spec(network, spec), computes=False):
        spec = packed_spec(network, spec)
    step = estimated_step(network, spec, piece_tokens=piece_tokens, batch=batch, stores_scores=True)
    return ModelFootprint(
        weights_bytes=parameter_bytes(network),
        spec=spec,
        step=step,
        context_length=context_length_of(config),
        abilities=abilities_of(network, support, spec),
        head=head_memory(network, dtype),
    )


def _build(config: dict[str, Any]) -> Any:  # noqa: ANN401 - mlx-lm ships no types
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UnsupportedConfig("the configuration has no model_type")
    if config.get("model_file") is not None:
        raise UnsupportedConfig("the model brings its own code, which is not run")
    try:
        model_class, args_class = mlx_lm.utils._get_classes(config)  # noqa: SLF001 - no public name
    except (ValueError, AttributeError) as error:  # no module, or one without a model
        raise UnsupportedConfig(f"mlx-lm has no model type {model_type!r}") from error
    return model_class(args_class.from_dict(config))


def _untie(network: Any, config: Mapping[str, Any]) -> None:  # noqa: ANN401 - mlx-lm ships no types
    """Remove an output head that is tied to the embedding, as loading the weights does."""
    if any(place.get("tie_word_embeddings") is False for place in _places(config)):
        return
    for module in network.modules():
        if type(module).__module__ in _TIED_FAMILIES and "lm_head" in module:
            module.sanitize({})


def _quantize(network: Any, config: Mapping[str, Any], bits: int | None) -> None:  # noqa: ANN401 - mlx-lm ships no types
    """Replace the layers that the weights hold quantized."""
    given = _quantization(config)
    if given is not None and bits is not None:
        raise UnsupportedConfig("the model is quantized already: leave the bits out")
    if given is None:
        if bits is None:
            return
        given = {"group_size": _GROUP_SIZE, "bits": bits}
    quantize(
        network,
        group_size=given["group_size"],
        bits=given["bits"],
        mode=given.get("mode", "affine"),
        class_predicate=_predicate(network, given),
    )


def _predicate(
    network: Any,  # noqa: ANN401 - mlx-lm ships no types
    given: Mapping[str, Any],
) -> Callable[[str, Any], bool | dict[str, Any]]:
    """Return which layers are quantized, and how; weights would show it by their scales."""
    of_family = getattr(network, "quant_predicate", None)
    left_out = given.get("modules_to_not_convert") or ()

    def predicate(path: str, module: Any) -> bool | dict[str, Any]:  # noqa: ANN401 - mlx-lm ships no types
        override = given.get(path)
        if override is not None:
            return override  # type: ignore[no-any-return]  # JSON
        if not hasattr(module, "to_quantized"):
            return False
        if module.weight.shape[-1] % given["group_size"]:
            return False
        if any(fnmatch(path, f"{name}*") for name in left_out):
            return False
        # Formats of Hugging Face know nothing of the family's preferences in mlx-lm.
        if of_family is None or left_out:
            return True
        return of_family(path, module)  # type: ignore[no-any-return]  # mlx-lm ships no types

    return predicate


def _quantization(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the quantization of the weights as mlx-lm maps it; ``None`` for whole floats."""
    if config.get("quantization") is not None:
        return dict(config["quantization"])
    found = [one for place in _places(config) if (one := place.get("quantization_config"))]
    if not found:
        return None
    (given, *_) = found
    if "quant_method" not in given and "group_size" in given and "bits" in given:
        return dict(given)
    mapped = _mapped(given)
    if mapped is None:
        return None
    return mapped | {"modules_to_not_convert": given.get("modules_to_not_convert")}


def _mapped(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Map a ``quantization_config`` of Hugging Face; ``None`` where mlx-lm dequantizes."""
    method = given.get("quant_method")
    if method in _MX_FORMATS:
        return dict(_MX_FORMATS[method])
    if method == "fp8":
        is_mx = given.get("scale_fmt") == "ue8m0"
        is_mx &= list(given.get("weight_block_size") or ()) == [32, 32]
        return dict(_MX_FORMATS["mxfp8"]) if is_mx else None
    if method == "compressed-tensors" and given.get("format") in _COMPRESSED_FORMATS:
        return dict(_COMPRESSED_FORMATS[given["format"]])
    if method in ("awq", "gptq"):
        return {"group_size": given["group_size"], "bits": given["bits"]}
    settings = given.get("quantization", given)
    if method == "modelopt" and settings.get("quant_algo") == "NVFP4":
        return {"group_size": settings.get("group_size", 16), "bits": 4, "mode": "nvfp4"}
    raise UnsupportedConfig(f"the quantization method {method!r} is not supported")


def _dtype_name(config: Mapping[str, Any]) -> str:
    for place in _places(config):
        for key in ("torch_dtype", "dtype"):
            if isinstance(place.get(key), str):
                return str(place[key])
    return ""


def _places(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the configuration and that of its language model."""
    text = config.get("text_config")
    return [config, text] if isinstance(text, Mapping) else [config]
