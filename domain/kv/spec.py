"""What a model remembers of a context, and how many bytes that is.

    full attention     keys and values of each token
    sliding window W   keys and values of the last min(W, tokens) tokens
    state              one array, whatever the number of tokens

A block is the full-attention layers of 256 tokens. It can be cut at any token. Windows and states
can be restored only where a checkpoint was made: a copy of what they remember at one position. A
context is stored as its blocks and about ``KEPT_CHECKPOINTS`` checkpoints.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

#: Tokens in a block.
BLOCK_TOKENS = 256
#: Tokens that a running sequence keeps behind each sliding window, so that its last tokens can be
#: taken back.
WINDOW_SLACK_TOKENS = 64
#: Most tokens by which the buffer of a sliding window grows, and free slots that it has at most.
WINDOW_STEP_TOKENS = 64

#: Bits of an element of keys and values that are quantised.
PACKED_BITS = 8
#: Elements of a head that share a scale and a bias; the first size that divides the head is used.
GROUPS = (64, 32)
#: The most of their exact size that contexts in 8 bits take: 1.8 times as many fit.
PACKED_SHARE_MAX = 5 / 9

#: Most bytes of copies on their way to the disk, and the most parts of the budget they are.
IN_FLIGHT_BYTES_MAX = 256 << 20
IN_FLIGHT_PARTS = 25

#: Checkpoints that a context usually keeps: after tools and system prompt, at the beginning of the
#: last message, at the end of the last prompt, and at the end of the last answer.
KEPT_CHECKPOINTS = 4


class LayerKind(StrEnum):
    """How a layer remembers."""

    FULL = "full"
    SLIDING = "sliding"
    STATE = "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One cache of the model; a layer that nests several (attention and state) counts as several.

    Attributes:
        kind: How it remembers.
        kv_heads: Heads that keys and values are kept for; 0 for a state.
        key_dim: Elements of a key in each head; 0 for a state.
        value_dim: Elements of a value in each head; may be 0 where only keys are kept.
        element_bytes: Size of an element; 0 for a state.
        window: Tokens that a sliding window sees; 0 for the other kinds.
        state_bytes: Size of a state's snapshot; 0 for the other kinds.
        group: Elements of a head that share a scale and a bias where keys and values are in 8 bits;
            0 where they are exact.
    """

    kind: LayerKind
    kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    element_bytes: int = 0
    window: int = 0
    state_bytes: int = 0
    group: int = 0

    def __post_init__(self) -> None:
        is_state = self.kind is LayerKind.STATE
        for size in (self.kv_heads, self.key_dim, self.element_bytes):
            assert size == 0 if is_state else size > 0, "attention has keys, a state has none"
        assert self.value_dim == 0 if is_state else self.value_dim >= 0, "values have a size"
        assert (self.window > 0) is (self.kind is LayerKind.SLIDING), (
            "a window, and only it, slides"
        )
        assert self.window >= 0, "a window is a number of tokens"
        assert (self.state_bytes > 0) is is_state, "a state, and only it, has a snapshot"
        assert self.state_bytes >= 0, "a snapshot has a size"
        assert not self.group or (self.kind is LayerKind.FULL and self.key_dim == self.value_dim), (
            "only full attention is in 8 bits, keys and values alike"
        )
        assert not self.group or self.key_dim % self.group == 0, "a head has whole groups"

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token; 0 for a state."""
        elements = self.kv_heads * (self.key_dim + self.value_dim)
        if not self.group:
            return elements * self.element_bytes
        # A scale and a bias of each group have the type that exact elements would have.
        return elements * PACKED_BITS // 8 + elements // self.group * 2 * self.element_bytes

    def kept_tokens(self, tokens: int) -> int:
        """Return of how many of the last ``tokens`` the keys and values are kept."""
        match self.kind:
            case LayerKind.FULL:
                return tokens
            case LayerKind.SLIDING:
                return min(tokens, self.window)
            case LayerKind.STATE:
                return 0
            case _:
                assert_never(self.kind)

    def bytes_of(self, tokens: int) -> int:
        """Return the size of what this layer remembers of ``tokens``."""
        return self.kept_tokens(tokens) * self.token_bytes + self.state_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCacheSpec:
    """All that a model remembers of a context.

    Attributes:
        layers: Its caches, in the order in which the model makes them.
        dtype: Name of the type of keys and values, for people and for the fingerprint.
    """

    layers: tuple[LayerSpec, ...]
    dtype: str
    block_tokens: int = BLOCK_TOKENS

    def __post_init__(self) -> None:
        assert self.layers, "a model remembers something"
        assert self.dtype, "the type has a name"
        assert self.block_tokens > 0, "a block holds at least one token"

    @property
    def form(self) -> str:
        """The form of keys and values, a part of the fingerprint of blocks."""
        packed = [f"{at}/{layer.group}" for at, layer in enumerate(self.layers) if layer.group]
        return " ".join([self.dtype, *([f"{PACKED_BITS} bits", *packed] if packed else [])])

    def packed(self, exact: Collection[int] = ()) -> ModelCacheSpec:
        """Return the sizes with the full-attention layers in 8 bits that can be.

        Args:
            exact: Layers that stay exact, unless the contexts then take more than
                ``PACKED_SHARE_MAX``.
        """
        some = self._packed(exact)
        bytes_of = [one.full_bytes(self.block_tokens) for one in (some, self)]
        return some if bytes_of[0] <= PACKED_SHARE_MAX * bytes_of[1] else self._packed(())

    def _packed(self, exact: Collection[int]) -> ModelCacheSpec:
        layers = (
            layer if at in exact else replace(layer, group=_group(layer))
            for at, layer in enumerate(self.layers)
        )
        return replace(self, layers=tuple(layers))

    def live_bytes(self, tokens: int) -> int:
        """Return the size of the caches of a running sequence of ``tokens``.

        A sliding window W counts at most W + ``WINDOW_SLACK_TOKENS`` + ``WINDOW_STEP_TOKENS``
        tokens: its buffer keeps some behind the window, and has free slots for new ones.
        """
        assert tokens >= 0, "a context has a length"
        return sum(self._live_bytes(layer, tokens) for layer in self.layers)

    def _live_bytes(self, layer: LayerSpec, tokens: int) -> int:
        if layer.kind is not LayerKind.SLIDING:
            return layer.bytes_of(tokens)
        step = min(self.block_tokens, WINDOW_STEP_TOKENS)
        slots = layer.window + WINDOW_SLACK_TOKENS + step
        return min(tokens, slots) * layer.token_bytes

    def context_bytes(self, tokens: int) -> int:
        """Return the size of a context of ``tokens`` on the disk.

        That is the full-attention layers of all tokens, and ``KEPT_CHECKPOINTS`` checkpoints of
        windows and states.
        """
        return self.full_bytes(tokens) + KEPT_CHECKPOINTS * self.ends_bytes(tokens)

    def stored_bytes(self, tokens: int) -> int:
        """Return the size of what a restore of ``tokens`` reads: one checkpoint and all blocks."""
        return self.full_bytes(tokens) + self.ends_bytes(tokens)

    @property
    def has_ends(self) -> bool:
        """Whether some layers can go on only where a checkpoint was made: windows and states."""
        return any(layer.kind is not LayerKind.FULL for layer in self.layers)

    def full_bytes(self, tokens: int) -> int:
        """Return the size of the keys and values of ``tokens`` in the full-attention layers."""
        assert tokens >= 0, "a context has a length"
        return sum(layer.bytes_of(tokens) for layer in self.layers if layer.kind is LayerKind.FULL)

    def ends_bytes(self, tokens: int) -> int:
        """Return the size of a checkpoint after ``tokens``: of all windows and states."""
        assert tokens >= 0, "a context has a length"
        return sum(
            layer.bytes_of(tokens) for layer in self.layers if layer.kind is not LayerKind.FULL
        )

    @property
    def checkpoint_bytes(self) -> int:
        """Largest size of a checkpoint; 0 where no layer needs one."""
        return self.ends_bytes(max((layer.window for layer in self.layers), default=0))

    def in_flight_bytes(self, budget_bytes: int) -> int:
        """Return the part of a budget that is set aside for copies on their way to the disk."""
        share = budget_bytes // IN_FLIGHT_PARTS
        return max(self.full_bytes(self.block_tokens), min(IN_FLIGHT_BYTES_MAX, share))

    def contexts_bytes(self, budget_bytes: int) -> int:
        """Return the part of a budget that contexts may take, with a disk behind them.

        The rest is for copies in flight and for one checkpoint.
        """
        in_flight_bytes = self.in_flight_bytes(budget_bytes)
        return max(0, budget_bytes - in_flight_bytes - self.checkpoint_bytes)

    def budget_bytes(self, tokens: int) -> int:
        """Return the smallest budget in which a context of ``tokens`` fits."""
        held_bytes = self.live_bytes(tokens) + self.checkpoint_bytes
        share = (held_bytes - 1) * IN_FLIGHT_PARTS // (IN_FLIGHT_PARTS - 1) + 1
        block_bytes = self.full_bytes(self.block_tokens)
        return max(held_bytes + block_bytes, min(held_bytes + IN_FLIGHT_BYTES_MAX, share))

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks a context of ``tokens`` takes, its tail included."""
        assert tokens >= 0, "a context has a length"
        return -(-tokens // self.block_tokens)


def _group(layer: LayerSpec) -> int:
    """Return the group of a layer in 8 bits; 0 where it stays exact."""
    if layer.kind is not LayerKind.FULL or layer.key_dim != layer.value_dim:
        return 0
    return next((size for size in GROUPS if layer.key_dim % size == 0), 0)
