"""One sequence alone on a model, read from its first token on: no batch, no blocks, no threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence

import mlx.core as mx

from domain.errors import EngineFailure
from domain.kv.spec import BLOCK_TOKENS
from domain.values import Sampling
from worker.engine.grammar.ports import Constraint
from worker.engine.mlx.decode_batches import DecodeBatches, JoinRequest
from worker.engine.mlx.kv.live import cut_at_borders
from worker.engine.mlx.runner import LoadedWeights
from worker.engine.mlx.sampling.logprobs import logprobs_of
from worker.engine.mlx.sampling.sampler import BatchSampler, SamplerRow, draw_scores

#: Draws that are remembered: mlx-lm draws the next token before it returns this one.
DRAWS_KEPT = 4

#: Told how many prompt tokens are read, and of how many.
OnRead = Callable[[int, int], None]


class SoloRun:
    """Draws the tokens of an answer with the parts that the engine computes with.

    The prompt is read in the pieces in which a worker reads one that it knows nothing of while
    nobody else is there: where numbers are rounded, pieces of other lengths may round otherwise.

    Args:
        weights: On the thread that loaded them.
        sampling: How tokens are drawn.
        step_tokens: Prompt tokens computed in one piece.
        cuts: Whether pieces end where blocks do, as they do in a worker that keeps blocks.
        constraint: What the answer is held to, from its first token on.
    """

    def __init__(
        self,
        weights: LoadedWeights,
        sampling: Sampling,
        *,
        step_tokens: int,
        cuts: bool = True,
        constraint: Constraint | None = None,
    ) -> None:
        self._sampling = sampling
        self._constraint = constraint
        self._step_tokens = step_tokens
        self._cuts = cuts
        self._sampler = BatchSampler(lambda _: self._groups.rows)
        self._draws: deque[tuple[int, mx.array]] = deque(maxlen=DRAWS_KEPT)
        self._drawn = 0
        self._groups = DecodeBatches(
            weights.network, self._draw, row_bytes=lambda _: 0, padding_bytes_max=0
        )

    def tokens(self, prompt: Sequence[int], on_read: OnRead = lambda *_: None) -> Generator[int]:
        """Read a prompt and yield what is drawn after it, without an end.

        Raises:
            EngineFailure: The prompt cannot be read.
        """
        uid = self._read(prompt, on_read)
        try:
            while True:
                for _, token in self._groups.decode():
                    for error in self._sampler.faults.values():
                        msg = f"a token could not be drawn: {error}"
                        raise EngineFailure(msg) from error
                    yield token
        finally:
            self._groups.remove([uid])
            self._sampler.drop(uid)

    def logprobs(self, index: int, tokens: Sequence[int]) -> list[float]:
        """Return the log-probabilities that tokens had for one of the last places drawn."""
        return logprobs_of(self._row(index), tokens)

    def scores(self, index: int, tokens: Sequence[int]) -> list[float]:
        """Return what tokens scored there when one was drawn; see ``draw_scores``."""
        row = draw_scores(self._row(index), self._sampling, index)
        return mx.take(row, mx.array(list(tokens))).tolist()  # type: ignore[return-value]

    def _read(self, prompt: Sequence[int], on_read: OnRead) -> int:
        whole = [list(prompt)]
        segments = cut_at_borders(prompt, 0, BLOCK_TOKENS) if self._cuts else whole
        uid = self._groups.insert(JoinRequest(segments=segments, tokens=[]))
        self._sampler.add(uid, SamplerRow(self._sampling, 0, self._constraint))
        while self._groups.is_reading:
            for read in self._groups.read(self._step_tokens):
                on_read(read.done, read.total)
            self._groups.begin_decoding()
            for error in self._groups.take_failed().values():
                msg = f"the prompt cannot be read: {type(error).__name__}: {error}"
                raise EngineFailure(msg) from error
        return uid

    def _draw(self, logprobs: mx.array) -> mx.array:
        tokens = self._sampler(logprobs)
        drawn_from = self._sampler.drawn_from
        assert drawn_from is not None, "something was drawn from"
        self._draws.append((self._drawn, drawn_from[0]))
        self._drawn += 1
        return tokens

    def _row(self, index: int) -> mx.array:
        rows = dict(self._draws)
        assert index in rows, "only the last draws are remembered"
        return rows[index]
