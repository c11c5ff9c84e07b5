"""A network that fails when it reads certain tokens."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

import mlx.core as mx

from worker.engine.mlx.model.loader import LoadedWeights


def poisoned(weights: LoadedWeights, tokens: AbstractSet[int]) -> LoadedWeights:
    """Let a forward pass of one token for each row raise if one of them is in ``tokens``."""
    network = weights.network

    class Poisoned(type(network)):  # type: ignore[misc]  # the class is known at run time
        def __call__(self, inputs: mx.array, *more: Any, **by_name: Any) -> Any:
            if inputs.shape[1] == 1 and tokens & set(inputs[:, 0].tolist()):  # type: ignore[arg-type]  # one axis
                raise RuntimeError("the network does not like this token")
            return super().__call__(inputs, *more, **by_name)

    network.__class__ = Poisoned
    return weights
