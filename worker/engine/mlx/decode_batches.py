"""The sequences of one network: prompts in prefill, and decode batches of similar lengths.

mlx-lm's ``BatchGenerator`` decodes all sequences in one batch, whose caches are padded to the
longest context, and prefills a piece of every new prompt between two decode steps. Built on the
same parts (``PromptProcessingBatch`` and its decode batch), ``DecodeBatches`` decodes contexts of
very different lengths in separate batches, and prefills a piece only when its caller asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import mlx.core as mx
from mlx_lm.generate import (
    PromptProcessingBatch,
    StopSequences,
    generation_stream,
)
from mlx_lm.models.cache import make_prompt_cache

from worker.engine.scheduling.fair_queue import FairQueue

#: Token limit given to mlx-lm, which would end sequences itself; the runner ends them instead.
_NO_LIMIT = 1 << 62
#: Pieces' worth of short prompts that are prefilled together while no sequence decodes.
TOGETHER_PIECES_MAX = 4
#: Decode steps between two calls of ``mx.clear_cache``, as in mlx-lm.
STEPS_PER_CLEARING = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A sequence that joins.

    Attributes:
        segments: Token ids to compute; prefill pauses after each segment.
        caches: Restored caches of the tokens before them, or ``None``.
        tokens: Ids of the tokens in ``caches``. The batch takes the list over and appends to it.
    """

    segments: Sequence[list[int]]
    caches: list[Any] | None = None
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """How many of a prompt's tokens are computed (``done``), of those to compute (``total``)."""

    uid: int
    done: int
    total: int


@dataclass(slots=True, eq=False)
class _PendingPrompt:
    uid: int
    segments: list[list[int]]
    caches: list[Any] | None
    tokens: list[int]
    total: int
    #: Tokens of the whole prompt, restored ones included.
    length: int
    done: int = 0
    #: The mlx-lm batch; prompts that are prefilled together share one.
    batch: Any = None

    @property
    def remaining(self) -> int:
        return self.total - self.done

    def advance(self, tokens: int) -> None:
        """Remove ``tokens`` computed tokens from the first segment."""
        self.done += tokens
        self.segments[0] = self.segments[0][tokens:]
        if not self.segments[0]:
            del self.segments[0]

    @property
    def is_ready(self) -> bool:
        """Whether only the last token is left; decoding starts with it."""
        return self.remaining == 1

    @property
    def is_short(self) -> bool:
        """Whether nothing is restored and all but the last token is one segment."""
        piece = self.segments[0]
        return self.done == 0 and self.caches is None and len(piece) == self.total - 1


class DecodeBatches:
    """Prefills and decodes sequences. Belongs to the thread that loaded the network.

    Args:
        network: An mlx-lm model.
        sampler: Returns a token id for each row of log-probabilities, [rows, vocabulary] to
            [rows]. ``rows`` names the sequences of the rows.
        row_bytes: From the tokens of one sequence to the bytes of its caches, room for the next
            token included.
        padding_bytes_max: Most bytes of padding in one batch.
        reserve: Reserves bytes for all caches together; returns whether the budget allows it.
    """

    def __init__(
        self,
        network: Any,  # noqa: ANN401 - mlx-lm ships no types
        sampler: Callable[[mx.array], mx.array],
        row_bytes: Callable[[int], int],
        padding_bytes_max: int,
        reserve: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self._network = network
        self._sampler = sampler
        self._row_bytes = row_bytes
        self._padding_bytes_max = padding_bytes_max
        self._reserve = reserve
        self._next_uid = 0
        self._prompts: dict[int, _PendingPrompt] = {}
        self._queue: FairQueue[int] = FairQueue()
        self._failed: dict[int, Exception] = {}
        self._batches: list[Any] = []
        self._steps = 0
        self.stream = generation_stream
        #: Uids of the rows that are being sampled, in order.
        self.rows: list[int] = []
        #: Prompt tokens computed so far, the last one of each prompt not counted.
        self.tokens_prefilled = 0

    @property
    def is_prefilling(self) -> bool:
        """Whether a prompt is waiting for prefill or in it."""
        return bool(self._prompts)

    @property
    def decoding(self) -> int:
        """Return how many sequences decode."""
        return sum(len(batch) for batch in self._batches)

    @property
    def lengths(self) -> list[list[int]]:
        """Return the context lengths in each decode batch, in tokens."""
        return [_lengths(batch) for batch in self._batches]

    def live_bytes(self) -> int:
        """Return the bytes of all caches after the next token of each sequence, with padding."""
        prefilling = sum(self._row_bytes(prompt.length) for prompt in self._prompts.values())
        return prefilling + sum(
            len(batch) * self._row_bytes(max(_lengths(batch))) for batch in self._batches
        )

    def batches(self) -> Iterator[Any]:
        """Yield every mlx-lm batch, in decode and in prefill, for ``find_live``."""
        yield from self._batches
        for prompt in self._prompts.values():
            if prompt.batch is not None:
                yield prompt.batch

    def insert(self, join: JoinRequest) -> int:
        """Add a sequence and return its uid.

        Raises:
            ValueError: The request has no token to compute.
        """
        segments = [list(segment) for segment in join.segments if segment]
        if not segments:
            msg = "a prompt has at least one token"
            raise ValueError(msg)
        if len(segments[-1]) > 1:
            segments[-1:] = [segments[-1][:-1], segments[-1][-1:]]
        uid, self._next_uid = self._next_uid, self._next_uid + 1
        total = sum(len(segment) for segment in segments)
        self._prompts[uid] = _PendingPrompt(
            uid, segments, join.caches, join.tokens, total, len(join.tokens) + total
        )
        self._queue.add(uid, cost=total, now=0.0)
        return uid

    def prefill(self, tokens_max: int) -> list[PrefillProgress]:
        """Compute one piece of a long prompt, or several short prompts together.

        Args:
            tokens_max: Most tokens of one prompt in the piece.

        Returns:
            The progress of each prompt; empty where no prompt waits, or prefill failed.
        """
        prompts = self._next_prompts(tokens_max)
        if not prompts:
            return []
        pieces = [prompt.segments[0][:tokens_max] for prompt in prompts]
        if not self._run_isolated(prompts, lambda batch: _prefill(batch, pieces)):
            return []
        for prompt, piece in zip(prompts, pieces, strict=True):
            prompt.advance(len(piece))
            self.tokens_prefilled += len(piece)
        return [PrefillProgress(prompt.uid, prompt.done, prompt.total) for prompt in prompts]

    def start_decoding(self) -> list[PrefillProgress]:
        """Move the prompts that are computed up to their last token into decode batches.

        Returns:
            The progress of each prompt that moved.
        """
        started: list[PrefillProgress] = []
        while ready := [prompt for prompt in self._prompts.values() if prompt.is_ready]:
            batch = ready[0].batch
            prompts = [one for one in ready if one.batch is batch]
            if batch is None:
                prompts = ready[:1]
            if self._run_isolated(prompts, partial(self._move_to_decoding, prompts)):
                started += [PrefillProgress(one.uid, one.total, one.total) for one in prompts]
                with mx.stream(self.stream):
                    self._merge_batches()
        return started

    def first_tokens(self, uids: AbstractSet[int]) -> list[tuple[int, int]]:
        """Return ``(uid, token)`` for the first token of sequences that just started to decode.

        mlx-lm draws the token when decoding starts. ``decode`` returns it again once it is in the
        caches.
        """
        with mx.stream(self.stream):
            return [
                (uid, token)
                for batch in self._batches
                if not uids.isdisjoint(batch.uids)
                for uid, token in zip(batch.uids, batch._next_tokens.tolist(), strict=True)  # noqa: SLF001 - mlx-lm has no other way
                if uid in uids
            ]

    def take_failed(self) -> dict[int, Exception]:
        """Return the sequences removed since the last call because prefill failed, with errors."""
        failed, self._failed = self._failed, {}
        return failed

    def decode(self) -> list[tuple[int, int]]:
        """Run one decode step; return ``(uid, token)`` for every sequence that decodes."""
        tokens = []
        with mx.stream(self.stream):
            for batch in self._batches:
                self.rows = batch.uids
                tokens += [(response.uid, response.token) for response in batch.next()]
        self._steps += 1
        if self._steps % STEPS_PER_CLEARING == 0:
            mx.clear_cache()
        return tokens

    def remove(self, uids: Sequence[int]) -> None:
        """Remove sequences; unknown uids are ignored."""
        removed = set(uids)
        with mx.stream(self.stream):
            for uid in removed & self._prompts.keys():
                prompt = self._prompts.pop(uid)
                self._queue.remove(uid)
                if prompt.batch is not None:
                    _filter(prompt.batch, removed)
            for batch in self._batches:
                _filter(batch, removed)
            self._batches = [batch for batch in self._batches if len(batch)]
            self._merge_batches()

    def _next_prompts(self, tokens_max: int) -> list[_PendingPrompt]:
        """Return the next prompt in fair order, with the short prompts that fit beside it."""
        order = [self._prompts[uid] for uid in self._queue.order(0.0)]
        order = [prompt for prompt in order if not prompt.is_ready]
        if not order:
            return []
        first = order[0]
        prompts = [first]
        if first.is_short and first.remaining - 1 <= tokens_max:
            longest = first.remaining - 1
            # While no sequence decodes, a larger piece delays no token.
            room = tokens_max if self._batches else TOGETHER_PIECES_MAX * tokens_max
            for other in order[1:]:
                longest = max(longest, other.remaining - 1)
                if (
                    longest > tokens_max
                    or not other.is_short
                    or longest * (len(prompts) + 1) > room
                ):
                    break
                prompts.append(other)
        for prompt in prompts:
            self._queue.record_served(prompt.uid, 0.0)
        return prompts

    def _run_isolated(self, prompts: Sequence[_PendingPrompt], work: Callable[[Any], None]) -> bool:
        """Call ``work`` with the batch of some prompts; on an error, remove only those prompts."""
        try:
            with mx.stream(self.stream):
                if prompts[0].batch is None:
                    self._start_prefill(prompts)
                work(prompts[0].batch)
        except Exception as error:  # noqa: BLE001 - other sequences continue
            self._failed.update((prompt.uid, error) for prompt in prompts)
            self.remove([prompt.uid for prompt in prompts])
            return False
        return True

    def _move_to_decoding(self, prompts: Sequence[_PendingPrompt], batch: Any) -> None:  # noqa: ANN401 - mlx-lm ships no types
        self.rows = list(batch.uids)
        last = {prompt.uid: prompt.segments[0] for prompt in prompts}
        self._batches.append(batch.generate([last[uid] for uid in self.rows]))
        for prompt in prompts:
            del self._prompts[prompt.uid]
            self._queue.remove(prompt.uid)

    def _start_prefill(self, prompts: Sequence[_PendingPrompt]) -> None:
        batch = PromptProcessingBatch(
            self._network,
            [prompt.uid for prompt in prompts],
            [
                make_prompt_cache(self._network) if prompt.caches is None else prompt.caches
                for prompt in prompts
            ],
            tokens=[prompt.tokens for prompt in prompts],
            samplers=[None] * len(prompts),
            fallback_sampler=self._sampler,
            logits_processors=[[] for _ in prompts],
            stop_sequences=[StopSequences()] * len(prompts),
            max_tokens=[_NO_LIMIT] * len(prompts),
        )
        for prompt in prompts:
            prompt.batch, prompt.caches = batch, None

    def _merge_batches(self) -> None:
        """Merge decode batches, least padding first, while padding and budget allow it."""
        while len(self._batches) > 1:
            padding, one, other = min(
                ((self._padding(a, b), i, j) for (i, a), (j, b) in _pairs(self._batches)),
            )
            if padding > self._padding_bytes_max:
                return
            apart = self._padding(self._batches[one]) + self._padding(self._batches[other])
            if not self._reserve(self.live_bytes() + padding - apart):
                return
            self._batches[one].extend(self._batches.pop(other))

    def _padding(self, *batches: Any) -> int:  # noqa: ANN401 - as above
        """Return the bytes of padding if these batches were one."""
        lengths = [length for batch in batches for length in _lengths(batch)]
        row_bytes = self._row_bytes
        return len(lengths) * row_bytes(max(lengths)) - sum(map(row_bytes, lengths))


def _prefill(batch: Any, pieces: Sequence[list[int]]) -> None:  # noqa: ANN401 - mlx-lm ships no types
    batch.prefill_step_size = max(map(len, pieces))
    batch.prompt(pieces)


def _lengths(batch: Any) -> list[int]:  # noqa: ANN401 - mlx-lm ships no types
    return [len(tokens) for tokens in batch.tokens]


def _pairs(batches: Sequence[Any]) -> Iterator[tuple[tuple[int, Any], tuple[int, Any]]]:
    return combinations(enumerate(batches), 2)


def _filter(batch: Any, removed: set[int]) -> None:  # noqa: ANN401 - as above
    keep = [row for row, uid in enumerate(batch.uids) if uid not in removed]
    if len(keep) < len(batch.uids):
        batch.filter(keep)
