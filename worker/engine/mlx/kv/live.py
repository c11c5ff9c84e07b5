"""Copy blocks out of running sequences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import mlx.core as mx

from worker.engine.mlx.kv.arrays import BlockArrays
from worker.engine.mlx.kv.split import extract


class Sequences(Protocol):
    """Running sequences, as ``RunningSequences`` offers them."""

    @property
    def stream(self) -> mx.Stream:
        """The stream on which they are computed."""
        ...

    def find(self, uid: int) -> tuple[list[Any], list[int]] | None:
        """Return a sequence's caches, one for each layer, and the ids of the tokens in them.

        Between two steps the caches hold exactly those tokens: in prefill, the prompt up to the
        end of the last piece; in decode, the prompt and every token that was returned, the newest
        included. Both are valid until the next step.
        """
        ...


def extract_live(sequences: Sequences, uid: int, start: int, stop: int) -> BlockArrays | None:
    """Copy the tokens ``start`` to ``stop`` of a running sequence; see ``extract``.

    Returns:
        The block, or ``None`` when the sequence is not running, has fewer than ``stop`` tokens,
        or no longer holds the block.
    """
    found = sequences.find(uid)
    if found is None or len(found[1]) < stop:
        return None
    caches, tokens = found
    # On the sequences' stream, so that the copy comes after the step that has already started.
    with mx.stream(sequences.stream):
        return extract(caches, start, stop, cached_tokens=len(tokens))


def cut_at_borders(
    tokens: Sequence[int], restored_tokens: int, block_tokens: int
) -> list[list[int]]:
    """Split a prompt at block boundaries, so that prefill pauses when a block is complete.

    A recurrent state can be copied only at such a pause.

    Args:
        tokens: The prompt without the tokens that are restored.
        restored_tokens: Number of restored tokens.
        block_tokens: Tokens in a block.

    Returns:
        The pieces. The generator itself pauses once more before the last token, where the tail
        block of the prompt can be copied.
    """
    first = block_tokens - restored_tokens % block_tokens
    borders = [0, *range(first, len(tokens), block_tokens), len(tokens)]
    return [list(tokens[start:stop]) for start, stop in pairwise(borders)]
