"""Names of the objects of mlx-lm, mlx-vlm and tokenizers, which ship no types."""

from __future__ import annotations

from typing import Any, TypeAlias

#: A model of mlx-lm, or the tower of one of mlx-vlm.
Network: TypeAlias = Any
#: A part of a network: a layer, an embedding, a convolution.
Module: TypeAlias = Any
#: What one layer of a network remembers of a sequence.
Cache: TypeAlias = Any
#: mlx-lm's wrapper around the tokenizer of a model, or that tokenizer itself.
Tokenizer: TypeAlias = Any
