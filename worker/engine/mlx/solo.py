"""For replay: loads models by fingerprint, and runs one sequence alone, without prefix cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx

from domain.audit.replay import Refusal, ReplayRefused
from domain.chat.ports import RecordedAnswers
from domain.errors import EngineFailure
from domain.model.registry import ModelEntry, ModelRegistry
from domain.values import Sampling
from worker.engine.grammar.ports import Constraint
from worker.engine.mlx.kv.probe import checked_spec, probe_spec
from worker.engine.mlx.kv.window_cache import make_row_caches
from worker.engine.mlx.model.loader import (
    LoadedWeights,
    find_model,
    fingerprint_of,
    load_weights,
)
from worker.engine.mlx.rows.ragged_states import RowSupport
from worker.engine.mlx.rows.running_sequences import JoinRequest, RunningSequences
from worker.engine.mlx.sampling.logprobs import logprobs_of
from worker.engine.mlx.sampling.sampler import BatchSampler, SamplerRow, draw_scores
from worker.engine.ports import ModelLoadError

#: Draws whose log-probabilities are kept: the next token is drawn before it returns this one.
DRAWS_KEPT = 4

#: Receives the number of prompt tokens computed, and the number to compute.
OnProgress = Callable[[int, int], None]


class SoloRun:
    """Draws the tokens of an answer with the engine's own prefill, decode and sampling.

    The prompt is computed in the pieces that an idle worker without a cached prefix would use,
    because pieces of other lengths may round differently.

    Args:
        weights: The model; used on the thread that loaded it.
        step_tokens: Prompt tokens computed in one piece.
        constraint: Restricts the answer from its first token on; ``None`` for no restriction.
    """

    def __init__(
        self,
        weights: LoadedWeights,
        sampling: Sampling,
        *,
        step_tokens: int,
        constraint: Constraint | None = None,
    ) -> None:
        self._sampling = sampling
        self._constraint = constraint
        self._step_tokens = step_tokens
        self._sampler = BatchSampler(lambda _: self._sequences.sampled)
        self._draws: deque[tuple[int, mx.array]] = deque(maxlen=DRAWS_KEPT)
        self._drawn = 0
        self._sequences = RunningSequences(
            weights.network,
            self._draw,
            row_bytes=lambda _: 0,
            support=RowSupport(),
            new_caches=_new_caches(weights),
        )

    def tokens(
        self, prompt: Sequence[int], on_progress: OnProgress = lambda *_: None
    ) -> Generator[int]:
        """Prefill a prompt and yield drawn token ids. The caller ends the iteration.

        Raises:
            EngineFailure: Prefill failed, or a token could not be drawn.
        """
        uid = self._prefill(prompt, on_progress)
        try:
            while True:
                for _, token in self._sequences.decode():
                    for error in self._sampler.faults.values():
                        raise EngineFailure(f"a token could not be drawn: {error}") from error
                    yield token
        finally:
            self._sequences.remove([uid])
            self._sampler.drop(uid)

    def logprobs(self, index: int, tokens: Sequence[int]) -> list[float]:
        """Return the log-probabilities of tokens at ``index``, one of the last draws."""
        return logprobs_of(self._row(index), tokens)

    def scores(self, index: int, tokens: Sequence[int]) -> list[float]:
        """Return the draw scores of tokens at ``index``, one of the last; see ``draw_scores``."""
        row = draw_scores(self._row(index), self._sampling, index)
        return mx.take(row, mx.array(list(tokens))).tolist()  # type: ignore[return-value]

    def _prefill(self, prompt: Sequence[int], on_progress: OnProgress) -> int:
        uid = self._sequences.insert(JoinRequest(prompt=prompt))
        self._sampler.add(uid, SamplerRow(self._sampling, 0, self._constraint, tokens=prompt))
        while self._sequences.is_prefilling:
            for progress in self._sequences.prefill(self._step_tokens):
                on_progress(progress.done, progress.total)
            self._sequences.start_decoding()
            for fault in self._sequences.take_failed():
                error = fault.error
                msg = f"the prompt cannot be computed: {type(error).__name__}: {error}"
                raise EngineFailure(msg) from error
        return uid

    def _draw(self, logits: mx.array, read: mx.array | Sequence[int]) -> mx.array:
        tokens = self._sampler(logits, read)
        drawn_from = self._sampler.drawn_from
        assert drawn_from is not None, "the sampler keeps the rows of its last draw"
        self._draws.append((self._drawn, drawn_from[0]))
        self._drawn += 1
        return tokens

    def _row(self, index: int) -> mx.array:
        rows = dict(self._draws)
        assert index in rows, "only the last draws are kept"
        return rows[index]


def _new_caches(weights: LoadedWeights) -> Callable[[], list[Any]] | None:
    """Return what makes caches in the form of the engine's; ``None`` where they are exact."""
    if not weights.kv_bits:
        return None
    spec = checked_spec(weights.network, probe_spec(weights.network))
    return partial(make_row_caches, weights.network, spec=spec)


_FINGERPRINT_CHARS = len("sha256:") + 12


@dataclass(slots=True)
class ModelHandles:
    """Loads models by fingerprint, one at a time, on the calling thread.

    Attributes:
        source: The configured model, which is tried first.
        digests: As for ``fingerprint_of``.
        registry: The registered models, of which an answer may have the name.
        only: Whether only the configured model may be used.
    """

    source: ModelEntry
    digests: Path | None
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

    def load_configured(self) -> LoadedWeights:
        """Return the configured model, whatever its fingerprint.

        Raises:
            ReplayRefused: It cannot be loaded.
        """
        source = self.source
        try:
            here = self._fingerprint_of(source)
            if here not in self._loaded:
                self._loaded.clear()
                self._loaded[here] = load_weights(source, self.answers, digests=self.digests)
        except ModelLoadError as error:
            raise ReplayRefused(Refusal.MODEL_DIFFERS, error.message) from error
        return self._loaded[here]

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
                here = self._fingerprint_of(source)
                if here == wanted:
                    return load_weights(source, self.answers, digests=self.digests)
            except ModelLoadError as error:
                seen.append(error.message)
            else:
                seen.append(f"{source.source} computes with {here[:_FINGERPRINT_CHARS]}…")
        msg = (
            f"the answer is {model}'s when it computed with {wanted[:_FINGERPRINT_CHARS]}…"
            f" (weights, their type, tokenizer, template, configuration); now {'; '.join(seen)}"
        )
        raise ReplayRefused(Refusal.MODEL_DIFFERS, msg)

    def _of(self, model: str) -> ModelEntry:
        known = self.registry.get(model)
        return known or replace(self.source, source=model, revision=None, adapter=None)

    def _fingerprint_of(self, model: ModelEntry) -> str:
        model_dir = find_model(model.source, model.revision)
        return fingerprint_of(model, model_dir, self.digests)
