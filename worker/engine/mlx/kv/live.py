"""Find a running sequence in its batch, and copy blocks out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import mlx.core as mx

from worker.engine.mlx.kv.arrays import BlockArrays
from worker.engine.mlx.kv.split import extract


@dataclass(frozen=True, slots=True)
class LiveSequence:
    """A sequence in a batch. Valid until the next call of the generator.

    Attributes:
        caches: The batch's caches, one for each layer.
        row: The sequence's row in them.
        tokens: Ids of the sequence's tokens in the caches. The generator appends to this list.
    """

    caches: Sequence[Any]
    row: int
    tokens: Sequence[int]


def find_live(generator: Any, uid: int) -> LiveSequence | None:  # noqa: ANN401 - mlx-lm ships no types
    """Return the batch row of a sequence that is in prefill or decode.

    Between two steps of the generator the caches hold exactly ``tokens``: in prefill, the
    prompt up to the end of the last piece; in decode, the prompt and every token that was
    returned, the newest included.

    Args:
        generator: A ``DecodeBatches``, or another object whose ``batches()`` yields mlx-lm's.
        uid: The sequence, as ``insert`` returned it.

    Returns:
        The row, or ``None`` if the sequence waits, has finished or was removed.
    """
    # mlx-lm's extract_cache would copy the whole context at every call.
    for batch in generator.batches():
        if uid in batch.uids:
            row = batch.uids.index(uid)
            return LiveSequence(batch.prompt_cache, row, batch.tokens[row])
    return None


def extract_live(generator: Any, uid: int, start: int, stop: int) -> BlockArrays | None:  # noqa: ANN401 - as above
    """Copy the tokens ``start`` to ``stop`` of a running sequence; see ``extract``.

    Returns:
        The block, or ``None`` when the sequence is not running, has fewer than ``stop`` tokens,
        or no longer holds the block.
    """
    live = find_live(generator, uid)
    if live is None or len(live.tokens) < stop:
        return None
    # On the generator's stream, so the copy comes after the step that it has already started.
    with mx.stream(generator.stream):
        return extract(live.caches, start, stop, cached_tokens=len(live.tokens), row=live.row)


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
