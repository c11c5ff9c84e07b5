"""Trains on long prompts at the cost of short ones.

Only one layer attends beyond the last few hundred tokens, so a distant token affects an answer only
through that layer's keys and values. These depend on the token's hidden state below the layer,
which depends on its neighbours but not on its place in the prompt. With the embedding and the lower
layers frozen, the states of much text are computed once. A training row is then a short text with
thousands of such states in front of it.
"""

import math
import random
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.models import llama
from mlx_lm.models.base import create_attention_mask

from bench.demo_model import network
from bench.demo_model.batches import Batch, BatchStream
from bench.demo_model.sessions import SessionRows
from bench.demo_model.training import Plan, score

_FULL_LAYER = network.LAYERS.index("F")

_OPENING_TOKENS = 1536
_TAIL_TOKENS = 640
_NO_PREFIX = 0.3
_TOOLS = 0.65
_LONG_ANSWERS = 0.2
_SHORTEST, _LONGEST = 400, 16_000
_MAX_STATES = 12_000

States = npt.NDArray[np.float16]


@dataclass(frozen=True)
class DistantBatch(Batch):
    """Rows of tokens with long prefixes.

    Attributes:
        far: Hidden states of the tokens before each row, below the full layer.
    """

    far: States


def freeze_below_full_layer(model: llama.Model) -> None:
    """Exclude from training all parameters that the stored states depend on."""
    model.model.embed_tokens.freeze()
    for layer in model.model.layers[:_FULL_LAYER]:
        layer.freeze()


def states_below_full_layer(model: llama.Model, tokens: npt.NDArray[np.int32]) -> mx.array:
    """Return the hidden states of `tokens` that the full layer gets as its input."""
    hidden = model.model.embed_tokens(mx.array(tokens))
    mask = create_attention_mask(hidden, window_size=network.WINDOW)
    for layer in model.model.layers[:_FULL_LAYER]:
        hidden = layer(hidden, mask)
    return mx.stop_gradient(hidden)


def loss_and_accuracy(model: llama.Model, batch: DistantBatch) -> tuple[mx.array, mx.array]:
    """Return mean cross entropy and share of right guesses at the learned positions."""
    hidden = states_below_full_layer(model, batch.inputs)
    mask = create_attention_mask(hidden, window_size=network.WINDOW)
    far = mx.array(batch.far).astype(mx.float32)
    hidden = _full_layer(model.model.layers[_FULL_LAYER], hidden, far)
    for layer in model.model.layers[_FULL_LAYER + 1 :]:
        hidden = layer(hidden, mask)
    return score(model, model.model.norm(hidden), batch)


def _full_layer(layer: Any, near: mx.array, far: mx.array) -> mx.array:
    """Return the layer's output for the `near` tokens, which also see all `far` ones."""
    attention = layer.self_attn
    normed = layer.input_layernorm(mx.concatenate([far, near], axis=1))
    count = far.shape[1]
    queries = attention.rope(_heads(attention.q_proj(normed[:, count:])), offset=count)
    keys = attention.rope(_heads(attention.k_proj(normed)))
    values = _heads(attention.v_proj(normed))
    output = mx.fast.scaled_dot_product_attention(
        queries,
        keys,
        values,
        scale=attention.scale,
        mask=mx.tril(mx.ones((near.shape[1], normed.shape[1]), dtype=mx.bool_), k=count),
    )
    hidden = near + attention.o_proj(output.transpose(0, 2, 1, 3).reshape(near.shape))
    result: mx.array = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return result


def _heads(projected: mx.array) -> mx.array:
    rows, length, _ = projected.shape
    split = projected.reshape(rows, length, network.HEADS, network.HEAD_DIM)
    return split.transpose(0, 2, 1, 3)


def _states_of(model: llama.Model, tokens: npt.NDArray[np.int32]) -> States:
    states = states_below_full_layer(model, tokens[None])[0].astype(mx.float16)
    mx.eval(states)
    return np.array(states)


class DistantStream:
    """An endless, seeded stream of short rows behind prefixes of every length.

    The prefix of a coding agent has tools first, then any text, then a message's opening; that of
    others is any text: an opening of a prompt, and pieces of other ones.
    """

    def __init__(self, model: llama.Model, near: BatchStream, plan: Plan) -> None:
        """Compute the states of the prefixes, and take the rows from sessions."""
        seed, count = plan.seed, plan.openings
        self._plan, self._random = plan, random.Random(f"distant {seed}")
        self._sessions = SessionRows(near, random.Random(f"sessions {seed}"))
        self._openings, self._heads, self._tails = (
            [_states_of(model, tokens) for tokens in rows]
            for rows in (
                near.openings_of_prompts(count, _OPENING_TOKENS),
                self._sessions.heads(count, _OPENING_TOKENS),
                self._sessions.tails(2 * count, _TAIL_TOKENS),
            )
        )

    def next(self, _progress: float) -> DistantBatch:
        """Return the next batch; all its rows have prefixes of the same length."""
        random_, plan = self._random, self._plan
        offered = random_.random() < _TOOLS
        if random_.random() < _LONG_ANSWERS:
            rows, length = max(1, plan.rows // 2), plan.length * 2
            count = random_.choice((0, 0, self._prefix() // 2))
            near = self._sessions.long_rows(rows, length)
        else:
            count = 0 if random_.random() < _NO_PREFIX else self._prefix()
            rows = max(1, min(plan.rows, _MAX_STATES // max(1, count)))
            near = self._sessions.rows(rows, plan.length, offered=offered, behind=count > 0)
        piece = self._agent_states if offered else self._any_states
        far = np.stack([piece(count) for _ in near.inputs])
        return DistantBatch(near.inputs, near.positions, near.targets, far)

    def _prefix(self) -> int:
        low, high = math.log(_SHORTEST), math.log(_LONGEST)
        return int(math.exp(self._random.uniform(low, high)))

    def _any_states(self, length: int) -> States:
        drawn = np.empty((length, network.HIDDEN), dtype=np.float16)
        filled = 0
        while filled < length:
            opening = self._random.choice(self._openings)
            start = self._random.randrange(len(opening)) if filled else 0
            piece = opening[start : start + length - filled]
            drawn[filled : filled + len(piece)] = piece
            filled += len(piece)
        return drawn

    def _agent_states(self, length: int) -> States:
        """Return the states of one row; of a short one the end is what remains."""
        head, tail = self._random.choice(self._heads), self._random.choice(self._tails)
        # Long reminders part the names of the tools from the question.
        after = self._random.choice((0, 0, length // 5))
        rest = max(0, length - len(head) - len(tail))
        after = min(after, rest)
        parts = (head, self._any_states(rest - after), tail, self._any_states(after))
        return np.concatenate(parts)[-length:] if length else np.concatenate(parts)[:0]
