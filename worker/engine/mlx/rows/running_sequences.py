"""The running sequences of one network: rows that open, prompts in prefill, rows that decode."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import mlx.core as mx
import structlog
from mlx_lm.generate import generation_stream

from domain.chat.images import PromptImage
from worker.engine.mlx.cpu import is_on_gpu
from worker.engine.mlx.drafting.speculation import Speculation
from worker.engine.mlx.kv.window_cache import is_state, leaves, make_row_caches
from worker.engine.mlx.rows.decode_rows import DecodeRows, JoinFailed, Row, Sampler, prefill
from worker.engine.mlx.rows.output_head import OutputHead
from worker.engine.mlx.rows.ragged_cache import RaggedKind
from worker.engine.mlx.rows.ragged_states import RowSupport
from worker.engine.mlx.sampling.logprobs import SCORED_PIECE_TOKENS, PromptRows
from worker.engine.mlx.untyped import Network
from worker.engine.mlx.vision.row_images import ImageInputs, RowImages
from worker.engine.ports import Fault
from worker.engine.scheduling.waiting_queue import FairQueue

_log = structlog.get_logger(__name__)

#: Pieces' worth of short prompts that are prefilled together while no sequence decodes, and most
#: tokens of such a pass if a piece is smaller, so that it takes no more memory than a large piece.
TOGETHER_PIECES_MAX = 4
TOGETHER_TOKENS_MAX = 1024
#: Decode steps between two calls of ``mx.clear_cache``, as in mlx-lm.
STEPS_PER_CLEARING = 512


#: Yields ``True`` after a step of work and ``False`` where it waits; returns the tokens restored.
Opening: TypeAlias = Generator[bool, None, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A sequence that joins.

    Attributes:
        prompt: Token ids of the whole prompt.
        pauses: Positions in the prompt at which prefill pauses, in order.
        tokens: Ids of the tokens in ``caches``. The row takes the list over and appends to it.
        opening: Prepares the caches; ``None`` where there is nothing to do.
        images: Those of the prompt, in order.
    """

    prompt: Sequence[int]
    pauses: Sequence[int] = ()
    tokens: list[int] = field(default_factory=list)
    caches: list[Any] | None = None
    opening: Opening | None = None
    is_alone: bool = False
    images: tuple[PromptImage, ...] = ()


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """How many of a prompt's tokens are computed (``done``), of those to compute (``total``).

    ``restored`` tokens precede them.
    """

    uid: int
    done: int
    total: int
    restored: int = 0


@dataclass(slots=True, eq=False)
class _PendingPrompt:
    row: Row
    segments: list[list[int]]
    total: int
    #: Tokens of the whole prompt, restored ones included.
    length: int
    is_alone: bool
    done: int = 0

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
    def progress(self) -> PrefillProgress:
        return PrefillProgress(self.row.uid, self.done, self.total, self.length - self.total)

    @property
    def is_ready(self) -> bool:
        """Whether only the last token is left; decoding starts with it."""
        return self.remaining == 1

    @property
    def is_short(self) -> bool:
        """Whether nothing is restored and all but the last token is one segment."""
        return (
            not self.is_alone
            and self.done == 0
            and not self.row.tokens
            and len(self.segments[0]) == self.total - 1
        )


class RunningSequences:
    """Prefills and decodes sequences. Belongs to the thread that loaded the network.

    Args:
        sampler: Draws a token for each row. ``sampled`` names the sequences of the rows.
        row_bytes: From the tokens of one sequence to the bytes of its caches, room for the next
            token included.
        support: How the network computes several rows, as ``find_row_support`` returns; where it
            cannot in one pass, rows decode one by one.
        new_caches: Returns the caches of a sequence that brings none; by default exact ones.
        speculation: Drafts tokens of the sequences that decode, where ``support`` has no refusal.
        head: Selects the logits of the sequences that decode in a pass that reads prompts too;
            ``None``: prompts are read in passes of their own.
        scored: Gets the logits of the prompts that it names, each of which is prefilled alone.

    Attributes:
        images: Gives the network the images of its rows; ``None`` where it sees none.
        reads_beside: Whether decode steps read prompts too.
        read_beside: Progress of the prompts that the last decode step read too.
    """

    def __init__(
        self,
        network: Network,
        sampler: Sampler,
        row_bytes: Callable[[int], int],
        *,
        support: RowSupport,
        new_caches: Callable[[], list[Any]] | None = None,
        speculation: Speculation | None = None,
        head: OutputHead | None = None,
        scored: PromptRows | None = None,
    ) -> None:
        self._network = network
        self.images: ImageInputs | None = None
        self._scored = PromptRows() if scored is None else scored
        self._new_caches = new_caches or partial(make_row_caches, network)
        self._row_bytes = row_bytes
        self._next_uid = 0
        #: Rows that are being opened, each with its request.
        self._joining: dict[int, tuple[Row, JoinRequest, Opening]] = {}
        self._prompts: dict[int, _PendingPrompt] = {}
        self._queue: FairQueue[int] = FairQueue()
        self._failed: list[Fault] = []
        self._steps = 0
        self.stream = generation_stream
        stateless = not any(map(is_state, leaves(self._new_caches())))
        self._ragged = support.kind
        #: Whether several prompts can be prefilled in one pass.
        self._together = self._ragged >= RaggedKind.BY_ROW and stateless
        self.reads_beside = self._together and head is not None
        self._rows = DecodeRows(
            network,
            sampler,
            support=support,
            speculation=None if support.draft_refusal else speculation,
            head=head,
        )
        #: Prompts that the next decode step reads too, each with its piece.
        self._beside: list[tuple[_PendingPrompt, list[int]]] = []
        self.read_beside: list[PrefillProgress] = []
        #: Prompt tokens computed so far, the last one of each prompt not counted.
        self.tokens_prefilled = 0

    @property
    def sampled(self) -> list[int]:
        """Return the uids of the rows that are being sampled, in order."""
        return self._rows.sampled

    @property
    def is_prefilling(self) -> bool:
        """Whether a prompt is waiting for prefill or in it."""
        return bool(self._prompts)

    @property
    def waiting_tokens(self) -> int:
        """Return how many tokens of all prompts are to be computed before the last ones."""
        return sum(prompt.remaining - 1 for prompt in self._prompts.values())

    @property
    def decoding(self) -> int:
        """Return how many sequences decode."""
        return len(self._rows)

    @property
    def lengths(self) -> list[int]:
        """Return the tokens in the caches of each sequence that decodes."""
        return [len(row.tokens) for row in self._rows.rows]

    def live_bytes(self) -> int:
        """Return the bytes of all caches after the next token of each sequence."""
        joining = (len(join.prompt) for _, join, _ in self._joining.values())
        prefilling = (prompt.length for prompt in self._prompts.values())
        return sum(map(self._row_bytes, (*joining, *prefilling, *self.lengths)))

    def find(self, uid: int) -> tuple[list[Any], list[int]] | None:
        """Return the caches of a running sequence and the ids of the tokens in them.

        Returns:
            Views that are valid until the next call; ``None`` for a sequence without tokens in its
            caches, and for an unknown uid.
        """
        row = next((row for row in self._rows.rows if row.uid == uid), None)
        if row is not None:
            return self._rows.caches_of(row), row.tokens
        prompt = self._prompts.get(uid)
        if prompt is None or not prompt.row.tokens:
            return None
        return prompt.row.caches, prompt.row.tokens

    def insert(self, join: JoinRequest) -> int:
        """Add a sequence and return its uid.

        Raises:
            ValueError: The request has no token.
        """
        if not join.prompt:
            raise ValueError("a prompt has at least one token")
        uid, self._next_uid = self._next_uid, self._next_uid + 1
        caches = join.caches or self._new_caches()
        row = Row(uid, caches, join.tokens)
        if self.images is not None and join.images:
            row = replace(row, images=RowImages(join.images, len(join.prompt), self.images))
        if join.opening is None:
            self._queue_prompt(row, join, len(join.tokens))
        else:
            self._joining[uid] = row, join, join.opening
        return uid

    @property
    def opening(self) -> int:
        """Return how many sequences are being opened."""
        return len(self._joining)

    def open_rows(self, is_due: Callable[[], bool]) -> dict[int, int]:
        """Prepare the caches of new sequences until other work is due.

        Returns:
            The restored tokens of the sequences that are ready for prefill, by uid. The caller adds
            their ids to ``JoinRequest.tokens`` before the next call.
        """
        if not self._joining:
            return {}
        self._rows.interrupt()
        ready: dict[int, int] = {}
        waiting: set[int] = set()
        with mx.stream(self.stream):
            while len(waiting) < len(self._joining):
                for uid in [one for one in self._joining if one not in waiting]:
                    restored = self._open_further(uid, waiting)
                    if restored is not None:
                        ready[uid] = restored
                    if is_due():
                        return ready
        return ready

    def _open_further(self, uid: int, waiting: set[int]) -> int | None:
        """Do a step for a new row; return its restored tokens once it is ready for prefill."""
        row, join, opening = self._joining[uid]
        try:
            is_waiting = not next(opening)
        except StopIteration as end:
            restored: int = end.value
        except Exception as error:  # noqa: BLE001 - the other rows go on
            del self._joining[uid]
            self._failed.append(Fault(uid, error, retryable=True, is_restore=True))
            return None
        else:
            waiting |= {uid} if is_waiting else set()
            return None
        del self._joining[uid]
        self._queue_prompt(row, join, restored)
        return restored

    def _queue_prompt(self, row: Row, join: JoinRequest, restored: int) -> None:
        """Queue the tokens of a prompt that are to be computed."""
        length = len(join.prompt)
        last = max(length - 1, restored)
        borders = {restored, last, length, *(at for at in join.pauses if restored < at < last)}
        segments = [list(join.prompt[one:next_]) for one, next_ in pairwise(sorted(borders))]
        self._prompts[row.uid] = _PendingPrompt(
            row, segments, length - restored, length, join.is_alone
        )
        self._queue.add(row.uid, cost=length - restored, now=0.0)

    def prefill(self, tokens_max: int, *, together_max: int = 0) -> list[PrefillProgress]:
        """Compute one piece of a long prompt, or several short prompts together.

        Where sequences decode, the next call of ``decode`` computes it if the network can.

        Args:
            tokens_max: Most tokens of one prompt in the piece.
            together_max: Most tokens of short prompts beside sequences that decode, if more.

        Returns:
            The progress of each prompt; empty where no prompt waits, the next decode step computes
            the piece, or prefill failed.
        """
        prompts = self._next_prompts(tokens_max, together_max)
        if not prompts:
            return []
        on_logits, uid = None, prompts[0].row.uid
        if uid in self._scored:
            on_logits = partial(self._scored.note, uid)
            tokens_max = min(tokens_max, SCORED_PIECE_TOKENS)
        pieces = [prompt.segments[0][:tokens_max] for prompt in prompts]
        is_alone = prompts[0].is_alone or on_logits is not None
        if self.reads_beside and self.decoding and not is_alone:
            self._beside = list(zip(prompts, pieces, strict=True))
            return []
        self._rows.interrupt()
        rows = [prompt.row for prompt in prompts]
        read = partial(prefill, self._network, rows, pieces, self._ragged, on_logits)
        if not self._run_isolated(prompts, read):
            return []
        return self._advance(list(zip(prompts, pieces, strict=True)))

    def _advance(self, read: Sequence[tuple[_PendingPrompt, list[int]]]) -> list[PrefillProgress]:
        """Record the pieces of prompts that were computed; return the progress of each prompt."""
        for prompt, piece in read:
            prompt.advance(len(piece))
            self.tokens_prefilled += len(piece)
        return [prompt.progress for prompt, _ in read]

    def start_decoding(self) -> list[PrefillProgress]:
        """Let the next step draw the first tokens of computed prompts; return their progress.

        A prompt that is prefilled alone starts without another one.
        """
        ready = [one for one in self._prompts.values() if one.is_ready]
        started = [one for one in ready if one.is_alone][:1] or ready
        with mx.stream(self.stream):
            for prompt in started:
                self._rows.start(prompt.row, prompt.segments[0][0])
                del self._prompts[prompt.row.uid]
                self._queue.remove(prompt.row.uid)
        return [replace(prompt.progress, done=prompt.total) for prompt in started]

    def first_tokens(self, uids: AbstractSet[int]) -> list[tuple[int, int]]:
        """Return ``(uid, token)`` for the drawn token of each of some rows, which just started.

        ``decode`` returns it again once it is in the caches.
        """
        with mx.stream(self.stream):
            return self._rows.first_tokens(uids)

    def take_failed(self) -> list[Fault]:
        """Return the sequences removed since the last call because prefill or start failed."""
        failed, self._failed = self._failed, []
        return failed

    def decode(self) -> list[tuple[int, int]]:
        """Run one decode step; return ``(uid, token)`` for every token that it added, in order.

        Tokens of prompts are left out. Where prompts cannot be computed or start, nothing is
        returned.
        """
        beside, self._beside, self.read_beside = self._beside, [], []
        try:
            with mx.stream(self.stream):
                tokens = self._rows.next([(prompt.row, piece) for prompt, piece in beside])
        except JoinFailed as failed:
            self._fail_prompts(failed.uids, failed.error)
            return []
        self.read_beside = self._advance(beside)
        self._steps += 1
        if self._steps % STEPS_PER_CLEARING == 0:
            mx.clear_cache()
        return tokens

    def remove(self, uids: Collection[int]) -> None:
        """Remove sequences; unknown uids are ignored."""
        removed = set(uids)
        for uid in removed & self._joining.keys():
            self._joining.pop(uid)[2].close()
        for uid in removed & self._prompts.keys():
            del self._prompts[uid]
            self._queue.remove(uid)
        self._beside = [one for one in self._beside if one[0].row.uid not in removed]
        with mx.stream(self.stream):
            self._rows.remove(removed)

    def _next_prompts(self, tokens_max: int, together_max: int) -> list[_PendingPrompt]:
        """Return the next prompt in fair order, with the short prompts that fit beside it."""
        queued = (self._prompts[turn.item] for turn in self._queue.turns(0.0))
        order = [prompt for prompt in queued if not prompt.is_ready]
        if not order:
            return []
        first = order[0]
        prompts = [first]
        if self._together and first.is_short and first.remaining - 1 <= tokens_max:
            # While no sequence decodes, a larger pass delays no token.
            several = TOGETHER_PIECES_MAX * tokens_max
            wanted = together_max if self.decoding else several
            room = max(tokens_max, min(wanted, several, TOGETHER_TOKENS_MAX))
            room -= first.remaining - 1
            for other in order[1:]:
                room -= other.remaining - 1
                if not other.is_short or other.remaining - 1 > tokens_max or room < 0:
                    break
                prompts.append(other)
        for prompt in prompts:
            self._queue.record_served(prompt.row.uid, 0.0)
        return prompts

    def _run_isolated(self, prompts: Sequence[_PendingPrompt], work: Callable[[], None]) -> bool:
        """Call ``work`` for some prompts; on an error, remove only those prompts."""
        try:
            with mx.stream(self.stream):
                work()
        except Exception as error:  # noqa: BLE001 - the others go on
            self._fail_prompts([prompt.row.uid for prompt in prompts], error)
            return False
        return True

    def _fail_prompts(self, uids: Collection[int], error: Exception) -> None:
        """Remove sequences that were computed together, of which one may be the cause."""
        _log.warning("prompt_failed", exc_info=error)
        for uid in uids:
            fault = Fault(uid, error, retryable=True, is_shared=len(uids) > 1)
            self._failed.append(fault)
        self.remove(uids)


#: Most tokens of a piece on a GPU, where a pass over few tokens leaves it idle.
GPU_PIECE_TOKENS = 2048
#: Most tokens of a piece on the CPU, where larger pieces are not faster and delay cancellations.
CPU_PIECE_TOKENS = 256


def piece_tokens(wanted: int | None) -> int:
    """Return the most tokens of a piece: ``wanted``, or the default of the device."""
    if wanted is not None:
        return wanted
    return GPU_PIECE_TOKENS if is_on_gpu() else CPU_PIECE_TOKENS
