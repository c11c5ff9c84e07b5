"""The sequences of one network: some read their prompt, the others decode in groups.

mlx-lm's own ``BatchGenerator`` decodes everybody in one batch, whose caches are padded to the
longest context, and reads a piece of every new prompt between two decode steps. On the same parts
this class keeps contexts of very different length apart, and it reads one prompt at a time, a piece
whenever it is told to.
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

#: For the parts of mlx-lm that end a sequence by themselves; here its owner does.
_NO_LIMIT = 1 << 62
#: Pieces' worth of short prompts that are read in one go while nobody decodes.
TOGETHER_PIECES_MAX = 4
#: Decode steps after which the allocator gives back what it keeps for later, as in mlx-lm.
STEPS_PER_CLEARING = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A sequence that joins.

    Attributes:
        segments: What is to be computed; reading pauses after each.
        caches: What need not be, or ``None``.
        tokens: Tokens that ``caches`` hold; a list of its own, which grows.
    """

    segments: Sequence[list[int]]
    caches: list[Any] | None = None
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """How far a prompt has been read, of the tokens that were to be computed."""

    uid: int
    done: int
    total: int


@dataclass(slots=True, eq=False)
class _Reading:
    uid: int
    segments: list[list[int]]
    caches: list[Any] | None
    tokens: list[int]
    total: int
    #: Of the whole prompt, with what need not be computed.
    length: int
    done: int = 0
    #: Shared by those that are read together.
    batch: Any = None

    @property
    def left(self) -> int:
        return self.total - self.done

    def advance(self, tokens: int) -> None:
        """Note that so many tokens of the first segment were read."""
        self.done += tokens
        self.segments[0] = self.segments[0][tokens:]
        if not self.segments[0]:
            del self.segments[0]

    @property
    def is_ready(self) -> bool:
        """Whether only the last token is left, with which decoding begins."""
        return self.left == 1

    @property
    def is_short(self) -> bool:
        """Whether one piece is all there is before the last token, and nothing comes before it."""
        piece = self.segments[0]
        return self.done == 0 and self.caches is None and len(piece) == self.total - 1


class DecodeBatches:
    """Reads and decodes. Belongs to the thread that loaded the network.

    Args:
        network: An mlx-lm model.
        sampler: Draws a token for each row of log-probabilities; ``rows`` says whose they are.
        row_bytes: Size of the caches of one sequence of so many tokens, with room for the next.
        padding_bytes_max: What padding may take in a group.
        has_room: Reserves so many bytes for all caches, if that is within the budget.
    """

    def __init__(
        self,
        network: Any,  # noqa: ANN401 - mlx-lm ships no types
        sampler: Callable[[mx.array], mx.array],
        row_bytes: Callable[[int], int],
        padding_bytes_max: int,
        has_room: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self._network = network
        self._sampler = sampler
        self._row_bytes = row_bytes
        self._padding_bytes_max = padding_bytes_max
        self._has_room = has_room
        self._next_uid = 0
        self._reading: dict[int, _Reading] = {}
        self._line: FairQueue[int] = FairQueue()
        self._failed: dict[int, Exception] = {}
        self._groups: list[Any] = []
        self._steps = 0
        self.stream = generation_stream
        #: Whose tokens are being drawn, row by row.
        self.rows: list[int] = []
        #: Prompt tokens computed so far, the last one of each prompt not counted.
        self.tokens_read = 0

    @property
    def is_reading(self) -> bool:
        """Whether a prompt is not yet read."""
        return bool(self._reading)

    @property
    def decoding(self) -> int:
        """Return how many sequences decode."""
        return sum(len(group) for group in self._groups)

    @property
    def lengths(self) -> list[list[int]]:
        """Return the context lengths in each group, in tokens."""
        return [_lengths(group) for group in self._groups]

    def live_bytes(self) -> int:
        """Return the size of all caches once each sequence has its next token, padding included."""
        reading = sum(self._row_bytes(reading.length) for reading in self._reading.values())
        return reading + sum(
            len(group) * self._row_bytes(max(_lengths(group))) for group in self._groups
        )

    def batches(self) -> Iterator[Any]:
        """Yield every mlx-lm batch there is, for ``find_live``."""
        yield from self._groups
        for reading in self._reading.values():
            if reading.batch is not None:
                yield reading.batch

    def insert(self, join: JoinRequest) -> int:
        """Let a sequence join, and return its name.

        Raises:
            ValueError: There is nothing to compute.
        """
        segments = [list(segment) for segment in join.segments if segment]
        if not segments:
            msg = "a prompt has at least one token"
            raise ValueError(msg)
        if len(segments[-1]) > 1:
            segments[-1:] = [segments[-1][:-1], segments[-1][-1:]]
        uid, self._next_uid = self._next_uid, self._next_uid + 1
        total = sum(len(segment) for segment in segments)
        self._reading[uid] = _Reading(
            uid, segments, join.caches, join.tokens, total, len(join.tokens) + total
        )
        self._line.add(uid, cost=total, now=0.0)
        return uid

    def read(self, tokens_max: int) -> list[PrefillProgress]:
        """Read one piece of at most so many tokens: of a long prompt, or of some short ones.

        Returns:
            How far each has come; empty when there is nothing to read, or it failed.
        """
        together = self._next_to_read(tokens_max)
        if not together:
            return []
        pieces = [reading.segments[0][:tokens_max] for reading in together]
        if not self._worked(together, lambda batch: _read(batch, pieces)):
            return []
        for reading, piece in zip(together, pieces, strict=True):
            reading.advance(len(piece))
            self.tokens_read += len(piece)
        return [PrefillProgress(reading.uid, reading.done, reading.total) for reading in together]

    def begin_decoding(self) -> list[PrefillProgress]:
        """Move those whose prompt is read, up to its last token, to those that decode."""
        begun: list[PrefillProgress] = []
        while ready := [reading for reading in self._reading.values() if reading.is_ready]:
            batch = ready[0].batch
            together = [one for one in ready if one.batch is batch]
            if batch is None:
                together = ready[:1]
            if self._worked(together, partial(self._decode_from_now, together)):
                begun += [PrefillProgress(one.uid, one.total, one.total) for one in together]
                with mx.stream(self.stream):
                    self._unite()
        return begun

    def first_tokens(self, uids: AbstractSet[int]) -> list[tuple[int, int]]:
        """Return the first token of sequences that have just begun to decode.

        It is drawn when decoding begins, and ``decode`` returns it again once it is in the caches.
        """
        with mx.stream(self.stream):
            return [
                (uid, token)
                for group in self._groups
                if not uids.isdisjoint(group.uids)
                for uid, token in zip(group.uids, group._next_tokens.tolist(), strict=True)  # noqa: SLF001 - mlx-lm has no other way
                if uid in uids
            ]

    def take_failed(self) -> dict[int, Exception]:
        """Return whose prompts failed since the last call, and why; they have left."""
        failed, self._failed = self._failed, {}
        return failed

    def decode(self) -> list[tuple[int, int]]:
        """Return the next token of every sequence that decodes."""
        tokens = []
        with mx.stream(self.stream):
            for group in self._groups:
                self.rows = group.uids
                tokens += [(response.uid, response.token) for response in group.next()]
        self._steps += 1
        if self._steps % STEPS_PER_CLEARING == 0:
            mx.clear_cache()
        return tokens

    def remove(self, uids: Sequence[int]) -> None:
        """Take sequences out; one that has left already is ignored."""
        gone = set(uids)
        with mx.stream(self.stream):
            for uid in gone & self._reading.keys():
                reading = self._reading.pop(uid)
                self._line.remove(uid)
                if reading.batch is not None:
                    _filter(reading.batch, gone)
            for group in self._groups:
                _filter(group, gone)
            self._groups = [group for group in self._groups if len(group)]
            self._unite()

    def _next_to_read(self, tokens_max: int) -> list[_Reading]:
        """Return whose turn it is, with the short ones that fit into the same piece."""
        order = [self._reading[uid] for uid in self._line.order(0.0)]
        order = [reading for reading in order if not reading.is_ready]
        if not order:
            return []
        first = order[0]
        together = [first]
        if first.is_short and first.left - 1 <= tokens_max:
            longest = first.left - 1
            # With nobody to keep waiting, those that came together begin together.
            room = tokens_max if self._groups else TOGETHER_PIECES_MAX * tokens_max
            for other in order[1:]:
                longest = max(longest, other.left - 1)
                if (
                    longest > tokens_max
                    or not other.is_short
                    or longest * (len(together) + 1) > room
                ):
                    break
                together.append(other)
        for reading in together:
            self._line.record_served(reading.uid, 0.0)
        return together

    def _worked(self, together: Sequence[_Reading], work: Callable[[Any], None]) -> bool:
        """Do something with the batch of some prompts; where it fails, only they leave."""
        try:
            with mx.stream(self.stream):
                if together[0].batch is None:
                    self._begin_reading(together)
                work(together[0].batch)
        except Exception as error:  # noqa: BLE001 - the others go on
            self._failed.update((reading.uid, error) for reading in together)
            self.remove([reading.uid for reading in together])
            return False
        return True

    def _decode_from_now(self, together: Sequence[_Reading], batch: Any) -> None:  # noqa: ANN401 - mlx-lm ships no types
        self.rows = list(batch.uids)
        last = {reading.uid: reading.segments[0] for reading in together}
        self._groups.append(batch.generate([last[uid] for uid in self.rows]))
        for reading in together:
            del self._reading[reading.uid]
            self._line.remove(reading.uid)

    def _begin_reading(self, together: Sequence[_Reading]) -> None:
        batch = PromptProcessingBatch(
            self._network,
            [reading.uid for reading in together],
            [
                make_prompt_cache(self._network) if reading.caches is None else reading.caches
                for reading in together
            ],
            tokens=[reading.tokens for reading in together],
            samplers=[None] * len(together),
            fallback_sampler=self._sampler,
            logits_processors=[[] for _ in together],
            stop_sequences=[StopSequences()] * len(together),
            max_tokens=[_NO_LIMIT] * len(together),
        )
        for reading in together:
            reading.batch, reading.caches = batch, None

    def _unite(self) -> None:
        """Join groups, least padding first, as long as a group's padding stays within its bound."""
        while len(self._groups) > 1:
            padding, one, other = min(
                ((self._padding(a, b), i, j) for (i, a), (j, b) in _pairs(self._groups)),
            )
            if padding > self._padding_bytes_max:
                return
            apart = self._padding(self._groups[one]) + self._padding(self._groups[other])
            if not self._has_room(self.live_bytes() + padding - apart):
                return
            self._groups[one].extend(self._groups.pop(other))

    def _padding(self, *groups: Any) -> int:  # noqa: ANN401 - as above
        """Return the bytes that are no tokens if these groups are one."""
        lengths = [length for group in groups for length in _lengths(group)]
        row_bytes = self._row_bytes
        return len(lengths) * row_bytes(max(lengths)) - sum(map(row_bytes, lengths))


def _read(batch: Any, pieces: Sequence[list[int]]) -> None:  # noqa: ANN401 - mlx-lm ships no types
    batch.prefill_step_size = max(map(len, pieces))
    batch.prompt(pieces)


def _lengths(batch: Any) -> list[int]:  # noqa: ANN401 - mlx-lm ships no types
    return [len(tokens) for tokens in batch.tokens]


def _pairs(groups: Sequence[Any]) -> Iterator[tuple[tuple[int, Any], tuple[int, Any]]]:
    return combinations(enumerate(groups), 2)


def _filter(batch: Any, gone: set[int]) -> None:  # noqa: ANN401 - as above
    keep = [row for row, uid in enumerate(batch.uids) if uid not in gone]
    if len(keep) < len(batch.uids):
        batch.filter(keep)
