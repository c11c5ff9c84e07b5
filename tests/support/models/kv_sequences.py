"""One sequence on a tiny network: prefill in pieces, cut blocks, decode, compare."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from domain.kv.spec import ModelCacheSpec
from tests.support.models.tiny_architectures import VOCABULARY
from worker.engine.mlx.kv.arrays import BlockArrays
from worker.engine.mlx.kv.gather import gather
from worker.engine.mlx.kv.split import extract
from worker.engine.mlx.kv.window_cache import make_row_caches

#: Tokens decoded after every restore.
DECODED = 8


def random_tokens(count: int, seed: int) -> list[int]:
    """Return a prompt."""
    rng = random.Random(seed)
    return [rng.randrange(VOCABULARY) for _ in range(count)]


class Sequence1:
    """A sequence alone, with its blocks cut as it grows.

    Args:
        model: The network.
        spec: What it remembers.
        caches: Restored ones, or ``None`` to start empty.
        tokens: Tokens that ``caches`` hold.
    """

    def __init__(
        self, model: Any, spec: ModelCacheSpec, caches: list[Any] | None = None, tokens: int = 0
    ) -> None:
        self.model = model
        self.spec = spec
        self.caches = make_row_caches(model) if caches is None else caches
        self.tokens = tokens
        self.blocks: list[BlockArrays] = []

    def fork(self) -> Sequence1:
        """Return a copy that goes its own way, never cut or restored."""
        twin = Sequence1(self.model, self.spec, copy.deepcopy(self.caches), self.tokens)
        twin.blocks = list(self.blocks)
        return twin

    def prefill(self, tokens: Sequence[int]) -> mx.array:
        """Compute a piece in one go and return the logits after its last token."""
        logits: mx.array = self.model(mx.array([list(tokens)]), cache=self.caches)[0, -1]
        self.tokens += len(tokens)
        return logits

    def prefill_blocks(self, prompt: Sequence[int], stop: int) -> None:
        """Go on to ``stop``, pausing at every border to cut the block."""
        while self.tokens < stop:
            size = self.spec.block_tokens
            end = min(stop, (self.tokens // size + 1) * size)
            self.prefill(prompt[self.tokens : end])
            if end % size == 0:
                self.blocks.append(self.cut(end - size, end))

    def cut(self, start: int, stop: int) -> BlockArrays:
        """Return a block that must be there."""
        block = extract(self.caches, start, stop, cached_tokens=self.tokens)
        assert block is not None
        return block

    def tail(self) -> BlockArrays | None:
        """Return what comes after the last border."""
        start = self.tokens - self.tokens % self.spec.block_tokens
        return self.cut(start, self.tokens) if start < self.tokens else None

    def decode(self, rest: Sequence[int]) -> tuple[list[int], mx.array]:
        """Prefill ``rest`` and take the likeliest tokens; return them and all the logits."""
        logits = self.prefill(rest)
        tokens, seen = [], []
        for _ in range(DECODED):
            seen.append(logits)
            tokens.append(int(mx.argmax(logits)))
            logits = self.prefill(tokens[-1:])
        return tokens, mx.stack(seen)


def restore(
    model: Any,
    spec: ModelCacheSpec,
    blocks: Sequence[BlockArrays],
    tail: BlockArrays | None = None,
    tail_tokens: int | None = None,
) -> Sequence1:
    """Return a sequence that starts out of blocks."""
    used = (tail.tokens if tail else 0) if tail_tokens is None else tail_tokens
    caches = gather(spec, blocks, tail, used, lambda: make_row_caches(model))
    return Sequence1(model, spec, caches, len(blocks) * spec.block_tokens + used)


def difference(one: mx.array, other: mx.array) -> float:
    """Return the largest difference of two arrays of one shape; 0 means bit-equal."""
    assert one.shape == other.shape
    assert one.dtype == other.dtype
    if bool(mx.array_equal(one, other, equal_nan=True)):
        return 0.0
    return float(mx.abs(one.astype(mx.float32) - other.astype(mx.float32)).max()) or 1.0


def block_difference(one: BlockArrays, other: BlockArrays) -> float:
    """Return the largest difference of two blocks of one form."""
    assert one.tokens == other.tokens
    assert one.tensors.keys() == other.tensors.keys()
    return max(difference(one.tensors[name], other.tensors[name]) for name in one.tensors)
