"""Where a sequence is while a batch generator works on it."""

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
    """A sequence in a batch, good until the next call of the generator.

    Attributes:
        caches: The batch's caches.
        row: The sequence's row in them.
        tokens: The tokens they hold of it; the generator's own list, which grows.
    """

    caches: Sequence[Any]
    row: int
    tokens: Sequence[int]


def find_live(generator: Any, uid: int) -> LiveSequence | None:  # noqa: ANN401 - mlx-lm ships no types
    """Return where a sequence is that is being prefilled or decoded.

    Between two steps of the generator the caches hold exactly ``tokens``: in prefill, the
    prompt up to the end of the last piece; once ``end_of_prompt`` was reported, the whole prompt;
    in decode, the prompt and every token that was returned, the newest included.

    Args:
        generator: Whatever tells its mlx-lm ``batches()``.
        uid: What its ``insert`` returned.

    Returns:
        The place, or ``None`` if the sequence waits, has finished or was removed.
    """
    # mlx-lm's own extract_cache copies the whole context at every look.
    for batch in generator.batches():
        if uid in batch.uids:
            row = batch.uids.index(uid)
            return LiveSequence(batch.prompt_cache, row, batch.tokens[row])
    return None


def extract_live(generator: Any, uid: int, start: int, stop: int) -> BlockArrays | None:  # noqa: ANN401 - as above
    """Copy a block out of a running sequence; see ``extract``.

    Returns:
        The block, or ``None`` when the sequence is not there, has not come so far, or no longer
        holds the block.
    """
    live = find_live(generator, uid)
    if live is None or len(live.tokens) < stop:
        return None
    # On the generator's stream, behind the step that it has already begun.
    with mx.stream(generator.stream):
        return extract(live.caches, start, stop, held=len(live.tokens), row=live.row)


def cut_at_borders(tokens: Sequence[int], held: int, block_tokens: int) -> list[list[int]]:
    """Cut a prompt so that prefill pauses wherever a block is complete.

    A state can be had only there. Models without one can take longer pieces: after a piece, a
    sliding window still holds all of it.

    Args:
        tokens: The prompt without the tokens that are restored.
        held: How many those are.
        block_tokens: Tokens in a block; at most the generator's ``prefill_step_size``.

    Returns:
        The pieces. Reading pauses once more before the last token, and there a tail of the prompt
        can be had.
    """
    first = block_tokens - held % block_tokens
    borders = [0, *range(first, len(tokens), block_tokens), len(tokens)]
    return [list(tokens[start:stop]) for start, stop in pairwise(borders)]
