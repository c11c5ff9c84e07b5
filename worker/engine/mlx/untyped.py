"""Names of the objects of mlx-lm, mlx-vlm and tokenizers, which ship no types."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

#: A model of mlx-lm, or the tower of one of mlx-vlm.
Network: TypeAlias = Any
#: A part of a network: a layer, an embedding, a convolution.
Module: TypeAlias = Any
#: What one layer of a network remembers of a sequence.
Cache: TypeAlias = Any
#: mlx-lm's wrapper around the tokenizer of a model, or that tokenizer itself.
Tokenizer: TypeAlias = Any


def replace_function(
    network: Network, function: Callable[..., Any], by: Callable[..., Any]
) -> None:
    """Let the modules that define the layers of a network call another function of its name."""
    for module in {sys.modules[type(part).__module__] for part in network.modules()}:
        if getattr(module, function.__name__, None) is function:
            setattr(module, function.__name__, by)
