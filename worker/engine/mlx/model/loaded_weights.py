"""A loaded model, as the loader hands it to the runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from worker.engine.ports import LoadedModel


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """A loaded model.

    Attributes:
        network: An mlx-lm model; only the thread that loaded it may use it.
        end_ids: Token ids that end an answer.
        model: Tokenizer, renderer and model card, for any thread.
    """

    network: Any
    end_ids: frozenset[int]
    model: LoadedModel
