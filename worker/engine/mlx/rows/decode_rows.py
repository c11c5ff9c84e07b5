"""Decode of running rows: one forward pass for all of them, one token each.

As in mlx-lm, the pass that computes the next tokens is started before the present ones are read, so
that the device computes while the host handles tokens. A pass that verifies drafts
(``worker.engine.mlx.drafting.speculation``) needs the present tokens first.

A row starts in the pass of the others: its present token is the last one of its prompt. Pieces of
prompts are computed in that pass too, so that it reads the weights once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import mlx.core as mx

from worker.engine.mlx.drafting.speculation import Speculation
from worker.engine.mlx.kv.window_cache import is_state, leaves, nest
from worker.engine.mlx.rows.output_head import OutputHead
from worker.engine.mlx.rows.ragged_cache import RaggedKind, forward_rows, pass_caches
from worker.engine.mlx.rows.ragged_states import RaggedState, RowSupport
from worker.engine.mlx.untyped import Cache, Network
from worker.engine.mlx.vision.row_images import Piece, RowImages, images_in_pass

#: From the logits of some rows, [rows, vocabulary], and the token that each has read to the drawn
#: token of each, [rows].
Sampler: TypeAlias = Callable[[mx.array, mx.array | Sequence[int]], mx.array]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One running sequence.

    Attributes:
        caches: Its caches, one for each layer. While it decodes, ``DecodeRows`` holds the states
            of recurrent layers.
        tokens: Ids of the tokens in ``caches``.
    """

    uid: int
    caches: list[Any]
    tokens: list[int]
    images: RowImages | None = None

    def piece(self, count: int) -> Piece:
        """Return its next tokens as a pass has them."""
        return self.images, len(self.tokens), count


#: Prompt tokens of a pass whose buffers are given back to the system. Those of a smaller one are
#: about as large as a decode step's, which needs them again; the cache of buffers has a limit.
CLEARED_TOKENS_MIN = 256


#: Rows of prompts, each with the piece that a pass computes.
Pieces: TypeAlias = Sequence[tuple[Row, Sequence[int]]]


class JoinFailed(Exception):
    """A pass in which rows started or prompts were read failed; no row has its tokens.

    Attributes:
        uids: Those rows and prompts; one of them is the likely cause.
    """

    def __init__(self, uids: AbstractSet[int], error: Exception) -> None:
        super().__init__(f"rows {sorted(uids)} cannot join: {error}")
        self.uids, self.error = uids, error


class DecodeRows:
    """The rows that decode. Belongs to the thread that loaded the network.

    Args:
        sampler: Draws a token id for each row of logits, [rows, vocabulary] to [rows], given the
            token that each row has read, [rows]. ``sampled`` names the rows.
        speculation: Drafts tokens of the rows; ``None`` for one token of each row in a pass, as
            where ``support`` has a refusal.
        head: Selects the tokens whose logits are computed; ``None``: no prompt is read beside rows.
    """

    def __init__(
        self,
        network: Network,
        sampler: Sampler,
        *,
        support: RowSupport,
        speculation: Speculation | None = None,
        head: OutputHead | None = None,
    ) -> None:
        assert speculation is None or not support.draft_refusal, "drafts can be verified"
        self._network = network
        self._sampler = sampler
        self._ragged = support.kind
        self._speculation = speculation
        self._hooks = support.hooks
        self._head = head
        self.rows: list[Row] = []
        #: Uids of the rows that are being sampled, in order.
        self.sampled: list[int] = []
        #: States of all rows, [rows, …], by the index of their layer.
        self._states: dict[int, Any] = {}
        #: The token of each row that the next pass reads, [rows].
        self._next: mx.array | None = None
        #: Uids of the rows whose next token is the last one of their prompt.
        self._starting: set[int] = set()

    def __len__(self) -> int:
        return len(self.rows)

    def start(self, row: Row, last_token: int) -> None:
        """Add a row whose prompt is in its caches but for the last token.

        The next pass draws its first token.
        """
        self.interrupt()
        if self._ragged:
            for index, leaf in enumerate(leaves(row.caches)):
                if is_state(leaf):
                    self._join_state(index, leaf)
        self.rows.append(row)
        self._starting.add(row.uid)
        token = mx.array([last_token], dtype=mx.uint32)
        self._next = token if self._next is None else mx.concatenate([self._next, token])

    def first_tokens(self, uids: AbstractSet[int]) -> list[tuple[int, int]]:
        """Return ``(uid, token)`` of the next token of some rows; ``next`` returns them again."""
        if self._next is None or uids.isdisjoint(row.uid for row in self.rows):
            return []
        drawn: list[int] = self._next.tolist()  # type: ignore[assignment]  # one axis
        pairs = zip(self.rows, drawn, strict=True)
        return [(row.uid, token) for row, token in pairs if row.uid in uids]

    def next(self, prompts: Pieces = ()) -> list[tuple[int, int]]:
        """Return ``(uid, token)`` of the drawn tokens that are in the caches now, in order.

        A row has one, or several where a part of its draft was drawn; none where it started.

        Args:
            prompts: Pieces that the pass computes too, and appends to their rows. Needs a row that
                decodes, and ``head``.

        Raises:
            JoinFailed: Some rows or prompts cannot be computed; the others go on once those are
                removed.
        """
        if self._next is None:
            return []
        # Several draws of a row cannot be taken back after a failed start.
        drafts = None if self._starting else self._drafts(self._next)
        if prompts:
            self.interrupt()
        if drafts is None:
            tokens = self._advance(self._next, prompts)
        else:
            tokens = self._verify(*drafts, prompts)
        if prompts:
            self.interrupt()
            for row, piece in prompts:
                row.tokens.extend(piece)
            clear_after(piece for _, piece in prompts)
        return tokens

    def interrupt(self) -> None:
        """Note that something else is computed before the next pass."""
        if self._speculation is not None:
            self._speculation.times.interrupt()

    def _advance(self, tokens: mx.array, prompts: Pieces) -> list[tuple[int, int]]:
        """Start the pass that draws the next tokens, and read the present ones."""
        self.sampled = [row.uid for row in self.rows]
        lengths = [1] * len(self.rows)
        forward = partial(self._forward, tokens, lengths, prompts)
        with self._watched() as states:
            logits = self._joined(forward, prompts) if self._starting or prompts else forward()
        self._next = self._sampler(logits, tokens)
        mx.async_eval(self._next)  # type: ignore[no-untyped-call]  # mlx has no types for it
        drawn: list[int] = tokens.tolist()  # type: ignore[assignment]  # one axis
        for row, token in zip(self.rows, drawn, strict=True):
            row.tokens.append(token)
        if self._speculation is not None:
            self._observe(states, lengths, lengths)
            self._speculation.times.record_plain(len(self.rows))
        started, self._starting = self._starting, set()
        pairs = zip(self.sampled, drawn, strict=True)
        return [(uid, token) for uid, token in pairs if uid not in started]

    def _drafts(self, tokens: mx.array) -> tuple[list[int], list[list[int]]] | None:
        """Return the present token and the draft of each row; ``None`` where none is drafted."""
        if self._speculation is None:
            return None
        guesses = self._speculation.guess(self.rows)
        if not guesses:
            return None
        drawn: list[int] = tokens.tolist()  # type: ignore[assignment]  # one axis
        drafts = self._speculation.confirm(self.rows, drawn, guesses)
        return (drawn, drafts) if any(drafts) else None

    def _verify(
        self, drawn: list[int], drafts: list[list[int]], prompts: Pieces
    ) -> list[tuple[int, int]]:
        """Compute the present tokens and their drafts; keep what the sampler draws again."""
        assert self._speculation is not None, "there are drafts"
        assert self._next is not None, "rows have a next token"
        pieces = [[token, *draft] for token, draft in zip(drawn, drafts, strict=True)]
        lengths = [len(piece) for piece in pieces]
        self.sampled = [
            row.uid for row, length in zip(self.rows, lengths, strict=True) for _ in range(length)
        ]
        read = [token for piece in pieces for token in piece]
        tokens = mx.array(read, dtype=self._next.dtype)
        states: Mapping[int, RaggedState] = {}
        with ExitStack() as stack:
            if self._states:
                assert self._hooks is not None, "states can be chosen"
                states = stack.enter_context(self._hooks.drafting(self._states, lengths))
            forward = partial(self._forward, tokens, lengths, prompts, states)
            watched = stack.enter_context(self._watched())
            logits = self._joined(forward, prompts) if prompts else forward()
        draws: list[int] = self._sampler(logits, read).tolist()  # type: ignore[assignment]  # one axis
        accepted = self._speculation.settle(self.rows, drafts, draws, is_timed=not prompts)
        first, following, returned = 0, [], []
        for row, piece, count in zip(self.rows, pieces, accepted, strict=True):
            following.append(draws[first + count])
            first += len(piece)
            kept = piece[: 1 + count]
            _trim(row, len(piece) - len(kept))
            row.tokens.extend(kept)
            returned += [(row.uid, token) for token in kept]
        kept_tokens = [1 + count for count in accepted]
        self._observe(watched, lengths, kept_tokens)
        for state in states.values():
            state.keep_tokens(kept_tokens)
        self._next = mx.array(following, dtype=self._next.dtype)
        return returned

    def _watched(self) -> AbstractContextManager[list[mx.array]]:
        """Return what collects the states that the output head reads, for a drafter."""
        if self._head is None or self._speculation is None:
            return nullcontext([])
        return self._head.watched()

    def _observe(
        self, states: Sequence[mx.array], lengths: Sequence[int], kept: Sequence[int]
    ) -> None:
        """Show the drafter the states after the tokens that the rows have now."""
        if self._speculation is not None and states:
            found = states[0].reshape(-1, states[0].shape[-1])
            self._speculation.observe(self.rows, found, lengths, kept)

    def remove(self, uids: AbstractSet[int]) -> None:
        """Remove rows; unknown uids are ignored."""
        if self._speculation is not None:
            self._speculation.drop(uids)
        keep = [at for at, row in enumerate(self.rows) if row.uid not in uids]
        if len(keep) == len(self.rows):
            return
        self.rows = [self.rows[at] for at in keep]
        self._starting -= uids
        if not keep:
            self._next, self._states = None, {}
            return
        assert self._next is not None, "rows have a next token"
        self._next = self._next[mx.array(keep)]
        for state in self._states.values():
            state.filter(mx.array(keep))

    def caches_of(self, row: Row) -> list[Any]:
        """Return the caches of a row, recurrent states included, as views that must not be kept."""
        if not self._states:
            return row.caches
        at = self.rows.index(row)
        found = leaves(row.caches)
        for index, state in self._states.items():
            found[index] = type(state)(len(state.cache))
            found[index].cache = [None if one is None else one[at : at + 1] for one in state.cache]
        return nest(row.caches, iter(found))

    def _join_state(self, index: int, state: Cache) -> None:
        """Move the state of a new row, empty before its first token, to those of the others."""
        rows, new = len(self.rows), state.cache
        # A cache of its own, because the row's cache object stays empty from here on.
        held = self._states.setdefault(index, type(state)(len(new)))
        held.cache = [_joined_part(*pair, rows) for pair in zip(held.cache, new, strict=True)]
        state.cache = [None] * len(new)

    def _joined(self, forward: Callable[[], mx.array], prompts: Pieces) -> mx.array:
        """Return the logits of a pass in which rows start or prompts are read.

        Raises:
            JoinFailed: The pass failed, and every row is as it was before.
        """
        joining = [row for row, _ in prompts]
        found = [leaf for row in (*self.rows, *joining) for leaf in leaves(row.caches)]
        states = [*filter(is_state, found), *self._states.values()]
        before = [list(state.cache) for state in states]
        try:
            logits = forward()
            # Here, because what is drawn cannot be taken back.
            mx.eval(logits, [leaf.state for row in joining for leaf in leaves(row.caches)])
        except Exception as error:
            for state, cache in zip(states, before, strict=True):
                state.cache = cache
            if not all(map(_rewound, [*self.rows, *joining])):
                raise
            uids = self._starting | {row.uid for row in joining}
            raise JoinFailed(uids, error) from error
        return logits

    def _forward(
        self,
        tokens: mx.array,
        lengths: Sequence[int],
        prompts: Pieces = (),
        states: Mapping[int, Any] | None = None,
    ) -> mx.array:
        """Compute new tokens of each row, and pieces of prompts beside them.

        Args:
            tokens: The new tokens, row by row, [tokens].
            lengths: How many of them each row has.
            states: In place of the states of all rows.

        Returns:
            The logits after each of those tokens, [tokens, vocabulary].
        """
        if not self._ragged:
            alone = []
            for at, row in enumerate(self.rows):
                with images_in_pass([row.piece(1)]):
                    alone.append(self._network(tokens[at : at + 1, None], cache=row.caches)[0])
            return mx.concatenate(alone)
        pieces = [one.piece(count) for one, count in zip(self.rows, lengths, strict=True)]
        with images_in_pass([*pieces, *(row.piece(len(piece)) for row, piece in prompts)]):
            return self._ragged_pass(tokens, lengths, prompts, states or self._states)

    def _ragged_pass(
        self,
        tokens: mx.array,
        lengths: Sequence[int],
        prompts: Pieces,
        states: Mapping[int, Any],
    ) -> mx.array:
        rows = [row.caches for row in (*self.rows, *(row for row, _ in prompts))]
        all_lengths = [*lengths, *(len(piece) for _, piece in prompts)]
        caches = pass_caches(rows, all_lengths, states, self._ragged)
        if len(rows) == 1:
            alone: mx.array = self._network(tokens[None], cache=caches)
            return alone[0]
        if not prompts:
            logits: mx.array = self._network(tokens[:, None], cache=caches)
            return logits[:, 0]
        assert self._head is not None, "prompts are read beside rows"
        read = [mx.array(list(piece), dtype=tokens.dtype) for _, piece in prompts]
        with self._head.of(tokens.size):
            logits = self._network(mx.concatenate([tokens, *read])[:, None], cache=caches)
        return logits[:, 0]


def prefill(
    network: Network,
    rows: Sequence[Row],
    pieces: Sequence[Sequence[int]],
    kind: RaggedKind,
    on_logits: Callable[[mx.array], None] | None = None,
) -> None:
    """Compute a piece of the prompt of each row, and append its tokens to the row.

    ``on_logits`` gets the logits after each token, row by row: [tokens, vocabulary]. Several rows
    need a network that computes the new tokens of a row together and has no recurrent layer.
    """
    assert len(rows) == len(pieces), "one piece for each row"
    caches = [row.caches for row in rows]
    with images_in_pass([one.piece(len(new)) for one, new in zip(rows, pieces, strict=True)]):
        logits = forward_rows(network, caches, pieces, {}, kind)
    if on_logits is not None:
        on_logits(logits)
    mx.eval([leaf.state for row in rows for leaf in leaves(row.caches)])
    clear_after(pieces)
    for row, piece in zip(rows, pieces, strict=True):
        row.tokens.extend(piece)


def clear_after(pieces: Iterable[Sequence[int]]) -> None:
    """Give buffers back to the system after a pass over pieces of prompts, if they are large."""
    if sum(map(len, pieces)) >= CLEARED_TOKENS_MIN:
        mx.clear_cache()


def _joined_part(held: mx.array | None, new: mx.array | None, rows: int) -> mx.array | None:
    """Return one part of the states of ``rows`` and of a new row; an empty state is zero."""
    known = new if held is None else held
    if known is None:
        return None
    shape, dtype = known.shape[1:], known.dtype
    held = mx.zeros((rows, *shape), dtype) if held is None else held
    new = mx.zeros((1, *shape), dtype) if new is None else new
    return mx.concatenate([held, new])


def _rewound(row: Row) -> bool:
    """Take back what a failed pass wrote beyond the tokens of a row; return whether it could."""
    found = [leaf for leaf in leaves(row.caches) if not is_state(leaf)]
    written = [leaf.offset - len(row.tokens) for leaf in found]
    return all(leaf.trim(new) == new for leaf, new in zip(found, written, strict=True) if new)


def _trim(row: Row, tokens: int) -> None:
    """Take back the last tokens of a row."""
    for leaf in leaves(row.caches) if tokens else ():
        if is_state(leaf):
            continue
        trimmed = leaf.trim(tokens)
        assert trimmed == tokens, "a draft fits what a cache can take back"
