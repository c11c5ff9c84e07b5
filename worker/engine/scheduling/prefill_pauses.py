"""Where the prefill of a prompt pauses, so that its caches can be copied. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from domain.kv.spec import LayerKind, ModelCacheSpec


def pause_positions(
    spec: ModelCacheSpec, start: int, stop: int, *, checkpoints: Iterable[int] = ()
) -> list[int]:
    """Return the positions at which prefill pauses, besides the one before the last token.

    Keys and values of full attention are copied at any later time, so they need no pause. A window
    forgets and a state changes: both are copied at checkpoints, and a state also at the end of
    each block.

    Args:
        spec: What the layers remember.
        start: Tokens of the prompt that are restored.
        stop: Tokens of the prompt.
        checkpoints: Positions from which other prompts are likely to continue differently.

    Returns:
        Numbers of tokens greater than ``start`` and less than ``stop - 1``, ascending.
    """
    assert 0 <= start < stop, "a prompt has a token to compute"
    kinds = {layer.kind for layer in spec.layers}
    positions: set[int] = set()
    if kinds != {LayerKind.FULL}:
        positions.update(checkpoints)
    if LayerKind.STATE in kinds:
        size = spec.block_tokens
        positions.update(range(start - start % size + size, stop, size))
    return sorted(one for one in positions if start < one < stop - 1)
