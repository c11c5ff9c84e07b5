"""Shape and initial weights of the demo model."""

import math
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx.utils import tree_flatten
from mlx_lm.models import llama

Array = npt.NDArray[np.float64]

# "F" is a layer with full attention, "S" one that sees the last WINDOW tokens only. One full
# layer is enough to look things up; the others stay cheap for long prompts and blind to
# what is far away.
LAYERS = "SSFSS"
WINDOW = 256
HIDDEN = 192
HEADS = 3
HEAD_DIM = 64
ROPE_BASE = 1e6

# The first dimensions of a token's embedding identify the token, the next ones are kept
# free for a copy of the token before it, and the last one is the same for all tokens.
_TOKEN_DIMS = 128
_PREVIOUS_DIMS = HIDDEN - _TOKEN_DIMS - 1
_CONSTANT_DIM = HIDDEN - 1
_TOKEN_SCALE = 0.05
_CONSTANT = 0.3
_FULL_LAYER = LAYERS.index("F")


def named_parameters(model: llama.Model) -> list[tuple[str, mx.array]]:
    """Return the name and the value of each parameter."""
    return cast("list[tuple[str, mx.array]]", tree_flatten(model.parameters()))


def build(config: dict[str, Any], seed: int) -> llama.Model:
    """Return a model with its initial weights."""
    model = llama.Model(llama.ModelArgs.from_dict(config))
    weights = initial_weights(model, seed)
    model.load_weights([(name, mx.array(value)) for name, value in weights.items()])
    mx.eval(model.parameters())
    return model


def initial_weights(model: llama.Model, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Return random weights with an induction circuit.

    A small model learns to copy from the prompt last. Two attention heads together do it: one
    passes on the previous token, the other finds the place where the current token occurred before
    and reads the token after it. Starting with both saves most of the training.
    """
    random = np.random.RandomState(seed)
    weights: dict[str, Array] = {}
    for name, parameter in named_parameters(model):
        value = np.ones(parameter.shape)
        if parameter.ndim == 2:
            value = random.randn(*parameter.shape) / math.sqrt(parameter.shape[1])
        if "o_proj" in name or "down_proj" in name:
            value = np.zeros(parameter.shape)
        weights[name] = value
    embedding = np.zeros(weights["model.embed_tokens.weight"].shape)
    embedding[:, :_TOKEN_DIMS] = random.randn(len(embedding), _TOKEN_DIMS) * _TOKEN_SCALE
    embedding[:, _CONSTANT_DIM] = _CONSTANT
    weights["model.embed_tokens.weight"] = embedding
    _write_previous_token_head(weights)
    _write_induction_heads(weights)
    return {name: value.astype(np.float32) for name, value in weights.items()}


def _frequencies() -> Array:
    half = HEAD_DIM // 2
    frequencies: Array = ROPE_BASE ** (-np.arange(half) / half)
    return frequencies


def _norm_of_embedding() -> float:
    """Root mean square of an embedding, by which the first layer's input is divided."""
    square = _TOKEN_DIMS * _TOKEN_SCALE**2 + _CONSTANT**2
    return math.sqrt(square / HIDDEN)


def _projection(layer: int, name: str) -> str:
    return f"model.layers.{layer}.self_attn.{name}_proj.weight"


def _write_previous_token_head(weights: dict[str, Array]) -> None:
    """Make head 0 of layer 0 copy the previous token into the dimensions kept free for it.

    Query and key read the constant only; the query's phases are one position behind, so the
    rotary embedding makes the previous position the best match.
    """
    half = HEAD_DIM // 2
    frequencies = _frequencies()
    fast = frequencies > 0.2
    constant = _CONSTANT / _norm_of_embedding()
    strength = math.sqrt(50.0) / constant
    query, key = np.zeros((HEAD_DIM, HIDDEN)), np.zeros((HEAD_DIM, HIDDEN))
    query[:half, _CONSTANT_DIM] = np.where(fast, np.cos(frequencies), 0) * strength
    query[half:, _CONSTANT_DIM] = np.where(fast, -np.sin(frequencies), 0) * strength
    key[:half, _CONSTANT_DIM] = np.where(fast, 1, 0) * strength
    value, output = np.zeros((HEAD_DIM, HIDDEN)), np.zeros((HIDDEN, HEAD_DIM))
    for dim in range(_PREVIOUS_DIMS):
        value[dim, dim] = 1.0
        output[_TOKEN_DIMS + dim, dim] = _norm_of_embedding()
    weights[_projection(0, "q")][:HEAD_DIM] = query
    weights[_projection(0, "k")][:HEAD_DIM] = key
    weights[_projection(0, "v")][:HEAD_DIM] = value
    weights[_projection(0, "o")][:, :HEAD_DIM] = output


def _write_induction_heads(
    weights: dict[str, Array], match: float = 2.0, copy: float = 0.5
) -> None:
    """Make the first two heads of the full layer copy what followed before.

    Each of them copies its half of the token's dimensions.

    Only slowly turning dimensions take part in the match, so that distance hardly matters.
    """
    half = HEAD_DIM // 2
    slow = np.flatnonzero(_frequencies() < 0.003)
    query, key = np.zeros((HEAD_DIM, HIDDEN)), np.zeros((HEAD_DIM, HIDDEN))
    for dim in [*slow, *(slow + half)]:
        if dim < _PREVIOUS_DIMS:
            query[dim, dim] = match
            key[dim, _TOKEN_DIMS + dim] = match
    for head in range(_TOKEN_DIMS // HEAD_DIM):
        rows = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        weights[_projection(_FULL_LAYER, "q")][rows] = query
        weights[_projection(_FULL_LAYER, "k")][rows] = key
        weights[_projection(_FULL_LAYER, "v")][rows] = np.eye(HIDDEN)[rows]
        weights[_projection(_FULL_LAYER, "o")][:, rows] = copy * np.eye(HIDDEN)[:, rows]
