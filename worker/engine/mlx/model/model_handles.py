"""The models that are here, asked for by what they compute with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import mlx.core as mx

from domain.chat.ports import RecordedAnswers
from domain.job.replay import Refusal, ReplayRefused
from worker.engine.mlx.fingerprint import fingerprint
from worker.engine.mlx.model.loader import ModelSource, find_model, load_weights
from worker.engine.mlx.runner import LoadedWeights
from worker.engine.ports import ModelLoadError

_FINGERPRINT_CHARS = len("sha256:") + 12


@dataclass(slots=True)
class ModelHandles:
    """Loads models, one at a time, on the thread that computes.

    Attributes:
        source: The model of the settings, looked at first.
        answers: What was said before: prompts go on where it ended.
        only: Whether no other may be looked at: somebody asked for this one.
    """

    source: ModelSource
    answers: RecordedAnswers
    only: bool = False
    _loaded: dict[str, LoadedWeights] = field(default_factory=dict)

    def load(self, model: str, wanted: str) -> LoadedWeights:
        """Return the model that computes with ``wanted``.

        Args:
            model: What it was called.
            wanted: Its fingerprint: weights, their type, tokenizer, template and configuration.

        Raises:
            ReplayRefused: None that is here does.
        """
        if wanted not in self._loaded:
            self._loaded.clear()
            self._loaded[wanted] = self._load(model, wanted)
        return self._loaded[wanted]

    def close(self) -> None:
        """Free what the model holds."""
        self._loaded.clear()
        mx.clear_cache()
        # A stream's own thread that is still there when the process exits aborts it.
        mx.clear_streams()

    def _load(self, model: str, wanted: str) -> LoadedWeights:
        seen: list[str] = []
        for name in dict.fromkeys((self.source.id, self.source.id if self.only else model)):
            try:
                here = self._fingerprint(find_model(name))
                if here == wanted:
                    return load_weights(replace(self.source, id=name), self.answers)
            except ModelLoadError as error:
                seen.append(error.message)
            else:
                seen.append(f"{name} computes with {here[:_FINGERPRINT_CHARS]}…")
        raise ReplayRefused(Refusal.MODEL_DIFFERS, _refusal(model, wanted, seen))

    def _fingerprint(self, directory: Path) -> str:
        return fingerprint(directory, cache_file=self.source.digest_cache)


def _refusal(model: str, wanted: str, seen: Sequence[str]) -> str:
    return (
        f"the answer is {model}'s when it computed with {wanted[:_FINGERPRINT_CHARS]}… (weights,"
        f" their type, tokenizer, template, configuration); now {'; '.join(seen)}"
    )
