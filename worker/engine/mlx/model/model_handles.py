"""Loads local models by fingerprint, for replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import mlx.core as mx

from domain.chat.ports import RecordedAnswers
from domain.job.replay import Refusal, ReplayRefused
from domain.model.registry import ModelRegistry
from worker.engine.mlx.fingerprint import fingerprint
from worker.engine.mlx.model.loader import LoadedWeights, ModelSource, find_model, load_weights
from worker.engine.ports import ModelLoadError

_FINGERPRINT_CHARS = len("sha256:") + 12


@dataclass(slots=True)
class ModelHandles:
    """Loads models by fingerprint, one at a time, on the calling thread.

    Attributes:
        source: The configured model, which is tried first.
        registry: The registered models, of which an answer may have the name.
        answers: Answers recorded in the log, so that prompts continue them.
        only: Whether only the configured model may be used.
    """

    source: ModelSource
    registry: ModelRegistry
    answers: RecordedAnswers
    only: bool = False
    _loaded: dict[str, LoadedWeights] = field(default_factory=dict)

    def load(self, model: str, wanted: str) -> LoadedWeights:
        """Return the model with the fingerprint ``wanted``.

        Args:
            model: The model's name, id or directory when the answer was recorded.
            wanted: Fingerprint over weights, tokenizer, chat template and configuration.

        Raises:
            ReplayRefused: No local model has this fingerprint.
        """
        if wanted not in self._loaded:
            self._loaded.clear()
            self._loaded[wanted] = self._load(model, wanted)
        return self._loaded[wanted]

    def close(self) -> None:
        """Free the loaded model's memory."""
        self._loaded.clear()
        mx.clear_cache()
        # A stream thread that is alive at exit aborts the process.
        mx.clear_streams()

    def _load(self, model: str, wanted: str) -> LoadedWeights:
        seen: list[str] = []
        for source in dict.fromkeys((self.source, self.source if self.only else self._of(model))):
            try:
                here = self._fingerprint(find_model(source.id, source.revision))
                if here == wanted:
                    return load_weights(source, self.answers)
            except ModelLoadError as error:
                seen.append(error.message)
            else:
                seen.append(f"{source.id} computes with {here[:_FINGERPRINT_CHARS]}…")
        raise ReplayRefused(Refusal.MODEL_DIFFERS, _refusal(model, wanted, seen))

    def _of(self, model: str) -> ModelSource:
        entry = self.registry.get(model)
        if entry is None:
            return replace(self.source, id=model, revision=None)
        return replace(self.source, id=entry.source, revision=entry.revision)

    def _fingerprint(self, directory: Path) -> str:
        return fingerprint(directory, cache_file=self.source.digest_cache)


def _refusal(model: str, wanted: str, seen: Sequence[str]) -> str:
    return (
        f"the answer is {model}'s when it computed with {wanted[:_FINGERPRINT_CHARS]}… (weights,"
        f" their type, tokenizer, template, configuration); now {'; '.join(seen)}"
    )
