"""Estimates the working set of a step from the shape of a network, and remembers corrections."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from domain.kv.plan import StepMemory
from domain.kv.spec import WINDOW_SLACK_TOKENS, WINDOW_STEP_TOKENS, LayerKind, ModelCacheSpec
from worker.engine.mlx.fingerprint import read_object, write_object
from worker.engine.mlx.kv.cpu_attention import chunk_bytes
from worker.engine.mlx.rows.running_sequences import TOGETHER_PIECES_MAX, TOGETHER_TOKENS_MAX
from worker.engine.mlx.untyped import Network

#: Copies of the outputs of the widest layer that a pass keeps at once; 0.7 to 2.9 were measured on
#: the networks of ``docs/kv-cache.md``.
_LAYER_COPIES = 3
#: Copies of the logits that sampling with all filters and penalties keeps, in float32.
_LOGIT_COPIES = 12
_FLOAT32_BYTES = 4
#: Attention scores, with and without their softmax and a mask, in float32.
_SCORE_COPIES = 3
#: Tokens that a state space computes as attention among each other, in mlx-lm.
_STATE_CHUNK_TOKENS = 256
#: Queries and keys of the attention that shows whether scores are stored.
_QUERIES, _KEYS = 16, 2048
#: The probed bytes are raised by this factor: another thread frees buffers, so that a peak varies,
#: and masks of some models are arrays.
_SCORE_MARGIN = 1.6
#: Copies of the keys and values that latent attention computes for all heads, and of the scores
#: that it computes itself.
_LATENT_COPIES = 2
#: Attributes of the modules of mlx-lm that count heads.
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "num_v_heads")
#: The same for the elements that latent attention computes of a key and a value for each head.
_LATENT_KEYS, _LATENT_VALUES = ("qk_nope_head_dim",), ("v_head_dim",)
_EXPERTS = ("num_experts_per_tok", "top_k", "moe_top_k")
_MATRIX_AXES = 2


def estimated_step(
    network: Network,
    spec: ModelCacheSpec | None,
    *,
    piece_tokens: int,
    batch: int,
    ragged: bool = True,
    stores_scores: bool | None = None,
) -> StepMemory:
    """Return an upper estimate of a prefill piece and a decode step, beside the caches.

    Nothing is computed with the weights. One attention of random keys shows whether the device
    stores scores.

    Args:
        spec: Its caches; ``None`` where they are not known.
        ragged: Whether short prompts are computed in one pass.
        stores_scores: Assume it instead, where another device will compute.
    """
    shape = _Shape(network)
    assert piece_tokens > 0 < batch, "a step has tokens"
    together = min(TOGETHER_PIECES_MAX * piece_tokens, TOGETHER_TOKENS_MAX)
    tokens = max(piece_tokens, together) if ragged else piece_tokens
    outputs = _LAYER_COPIES * tokens * shape.layer_outputs * shape.element_bytes
    logits = _LOGIT_COPIES * batch * shape.vocabulary * _FLOAT32_BYTES
    scores = shape.score_bytes(spec) if stores_scores is None else stores_scores * shape.one_score
    chunk = chunk_bytes() if stores_scores is None else 0
    # A pass over drafts keeps the states from before it.
    states = 0 if spec is None else batch * sum(layer.state_bytes for layer in spec.layers)
    latent = _LATENT_COPIES * shape.latent_elements * shape.element_bytes
    if latent:
        scores += _LATENT_COPIES * shape.one_score
    layers = () if spec is None else spec.layers
    # A piece of a prompt attends to a copy of a layer in full precision.
    copied = max(
        (replace(one, group=0).token_bytes + one.token_bytes for one in layers if one.group),
        default=0,
    )
    return StepMemory(
        fixed_bytes=outputs
        + logits
        + states
        + chunk
        + _bounded_scores(spec, shape.heads, piece_tokens, tokens),
        token_bytes=int(piece_tokens * scores) + latent + copied,
    )


def _bounded_scores(spec: ModelCacheSpec | None, heads: int, piece_tokens: int, tokens: int) -> int:
    """Return the scores of windows, and of state spaces within their chunks."""
    layers = () if spec is None else spec.layers
    window = max((layer.window for layer in layers), default=0)
    slots = window + WINDOW_SLACK_TOKENS + WINDOW_STEP_TOKENS + piece_tokens if window else 0
    pairs = piece_tokens * slots
    if spec is None or any(layer.kind is LayerKind.STATE for layer in layers):
        pairs = max(pairs, tokens * min(_STATE_CHUNK_TOKENS, piece_tokens))
    return _SCORE_COPIES * heads * pairs * _FLOAT32_BYTES


class _Shape:
    """What the modules of a network show.

    Attributes:
        layer_outputs: Elements that the widest layer computes for a token, its input included.
        vocabulary: Rows of the largest matrix outside of the layers.
        heads: Most query heads of a module.
        latent_elements: Elements of all heads that latent attention computes of a cached token.
    """

    def __init__(self, network: Network) -> None:
        modules = list(network.named_modules())
        experts = max([1, *_integers(modules, _EXPERTS)])
        self.heads = max([1, *_integers(modules, _HEADS)])
        keys = max([0, *_integers(modules, _LATENT_KEYS)])
        values = max([0, *_integers(modules, _LATENT_VALUES)])
        self.latent_elements = self.heads * (keys + values) if keys else 0
        outputs: dict[str, int] = defaultdict(int)
        sizes, hidden, self.vocabulary = [1], 0, 1
        self.has_sinks = False
        for path, module in modules:
            self.has_sinks |= "sinks" in module
            weight = module.get("weight")
            if weight is None:
                continue
            if "scales" not in module:
                sizes.append(weight.dtype.size)
            layer = _layer_of(path)
            if weight.ndim == 1:
                hidden = max(hidden, weight.shape[0])
            elif layer is None:
                self.vocabulary = max(self.vocabulary, weight.shape[0])
            else:
                is_matrix = weight.ndim == _MATRIX_AXES
                is_experts = hasattr(module, "num_experts")
                width = weight.shape[-2] if is_matrix or is_experts else weight.shape[0]
                outputs[layer] += width * (experts if is_experts else 1)
        self.layer_outputs = max(outputs.values(), default=0) + 2 * hidden
        self.element_bytes = max(sizes)

    @property
    def one_score(self) -> int:
        """Bytes of the scores of one query and one key."""
        return self.heads * self.element_bytes

    def score_bytes(self, spec: ModelCacheSpec | None) -> float:
        """Return what one query keeps for each key on this device, in bytes."""
        full = [] if spec is None else [one for one in spec.layers if one.kind is LayerKind.FULL]
        if spec is not None and not full:
            return 0
        found = {(one.kv_heads, one.key_dim, one.value_dim or one.key_dim) for one in full}
        if not found:
            return _SCORE_COPIES * self.heads * _FLOAT32_BYTES
        dtype = mx.float32 if self.element_bytes == _FLOAT32_BYTES else mx.bfloat16
        return max(self._probed(dtype, *sizes) for sizes in found)

    def _probed(self, dtype: mx.Dtype, kv_heads: int, key_dim: int, value_dim: int) -> float:
        heads = max(1, self.heads // kv_heads) * kv_heads
        queries = mx.zeros((1, heads, _QUERIES, key_dim), dtype)
        keys = mx.zeros((1, kv_heads, _KEYS, key_dim), dtype)
        values = mx.zeros((1, kv_heads, _KEYS, value_dim), dtype)
        sinks = mx.zeros((heads,), dtype) if self.has_sinks else None
        mx.eval(queries, keys, values, *([] if sinks is None else [sinks]))
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        attended = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=1.0, mask="causal", sinks=sinks
        )
        mx.eval(attended)
        kept = mx.get_peak_memory() - before - attended.nbytes
        return _SCORE_MARGIN * max(0, kept) / (_QUERIES * _KEYS)


def _layer_of(path: str) -> str | None:
    """Return the part of a module's path that names its layer."""
    parts = path.split(".")
    ends = [index for index, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: ends[0] + 1]) if ends else None


def _integers(modules: list[tuple[str, Any]], names: tuple[str, ...]) -> Iterator[int]:
    """Yield the attributes of these names, and those of the arguments of the network."""
    for _, module in modules:
        arguments = getattr(module, "args", None)
        given = {} if arguments is None else dict(vars(arguments))
        text = given.get("text_config")
        places = [vars(module), given, *([text] if isinstance(text, Mapping) else [])]
        for place in places:
            yield from (place[name] for name in names if isinstance(place.get(name), int))


#: Steps that the file holds; the oldest are dropped.
_ENTRIES_MAX = 32


class StepFile:
    """Steps by key, raised to what was seen. A file that is missing or garbled is empty."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str) -> StepMemory | None:
        """Return the step of a key, ``None`` where there is none."""
        entry = read_object(self._path).get(key)
        try:
            return None if entry is None else StepMemory(**entry)
        except TypeError:
            return None

    def put(self, key: str, step: StepMemory) -> None:
        """Remember a step. A file that cannot be written is left as it is."""
        entries = read_object(self._path)
        entries.pop(key, None)
        entries[key] = asdict(step)
        write_object(self._path, dict(list(entries.items())[-_ENTRIES_MAX:]))
