"""A small network with the same vocabulary drafts tokens for the rows of a large one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.utils

from domain.chat.images import IMAGE_ID_MIN
from domain.kv.owned_tokens import plain_ids
from domain.kv.plan import DrafterMemory
from domain.kv.spec import BLOCK_TOKENS
from domain.model.registry import ModelEntry
from worker.engine.mlx.cpu import computes_on_cpu, in_single_precision, use_openblas
from worker.engine.mlx.drafting.speculation import (
    DRAFT_TOKENS_MAX,
    DrafterSource,
    SpeculatedRow,
)
from worker.engine.mlx.kv.probe import probe_spec
from worker.engine.mlx.kv.window_cache import (
    UnsupportedCache,
    is_state,
    leaves,
    make_row_caches,
)
from worker.engine.mlx.memory.at_load import parameter_bytes
from worker.engine.mlx.memory.device import ProcessDevice
from worker.engine.mlx.model.loader import TOKENIZER, find_model, vocabulary_of
from worker.engine.mlx.rows.ragged_cache import forward_rows, pass_caches
from worker.engine.mlx.rows.ragged_states import RowSupport, find_row_support
from worker.engine.ports import ModelLoadError

#: Last tokens of a row that the network reads when a row is new to it. It starts anew at twice as
#: many, so that its caches stay small and no prompt is read whole a second time.
DRAFT_CONTEXT_TOKENS = 512
#: Most tokens in the caches of a row.
DRAFT_TOKENS_HELD = 2 * DRAFT_CONTEXT_TOKENS + DRAFT_TOKENS_MAX
#: Tokens of a pass that reads the context of a row, and those from which on there is one.
_PIECE_TOKENS, _CAUGHT_UP_TOKENS = 256, 32


def load_draft(draft: str, model: ModelEntry) -> DrafterSource:
    """Load a draft model on the engine thread.

    Args:
        draft: A directory, or a hub id.
        model: The one that it drafts for.

    Raises:
        ModelLoadError: It is not found, cannot draft, or has another vocabulary.
    """
    model_dir, draft_dir = find_model(model.source, model.revision), find_model(draft)
    try:
        network, config = mlx_lm.utils.load_model(draft_dir, lazy=True)
        if computes_on_cpu():
            use_openblas()
            in_single_precision(network, ProcessDevice().memory().usable_bytes)
        mx.eval(network.parameters())
        vocabulary = vocabulary_of(mlx_lm.utils.load_config(model_dir))
        wrong = _other_vocabulary(model_dir, draft_dir, vocabulary_of(config))
        support = find_row_support(network)
        row_bytes = probe_spec(network, BLOCK_TOKENS).live_bytes(DRAFT_TOKENS_HELD)
    except UnsupportedCache as error:
        raise ModelLoadError(f"the draft model {draft} cannot draft: {error}") from error
    except Exception as error:
        # mlx, mlx-lm and transformers raise exceptions of many types on a broken directory.
        msg = f"the draft model in {draft_dir} cannot be loaded: {type(error).__name__}: {error}"
        raise ModelLoadError(msg) from error
    if wrong:
        msg = f"the draft model {draft} has another vocabulary than {model.source}: {wrong}"
        raise ModelLoadError(msg)
    if support.draft_refusal:
        raise ModelLoadError(f"the draft model {draft} cannot draft: {support.draft_refusal}")
    memory = DrafterMemory(weights_bytes=parameter_bytes(network), row_bytes=row_bytes)
    return DrafterSource(partial(ModelDrafter, network, support, vocabulary), memory)


def _other_vocabulary(model_dir: Path, draft_dir: Path, draft_ids: int | None) -> str:
    """Return how two vocabularies differ; an empty text if a draft model can use them.

    Args:
        draft_ids: Number of ids that the draft model can read.
    """
    wanted, given = _tokens_of(model_dir), _tokens_of(draft_dir)
    for number in sorted(wanted.keys() & given.keys()):
        if wanted[number] != given[number]:
            return f"token {number} is {given[number]!r} and not {wanted[number]!r}"
    if draft_ids is not None and max(wanted) >= draft_ids:
        return f"it has {draft_ids} ids, and {wanted[max(wanted)]!r} is token {max(wanted)}"
    return ""


def _tokens_of(model_dir: Path) -> Mapping[int, str]:
    tokenizer = mlx_lm.utils.load_tokenizer(model_dir, dict(TOKENIZER))
    return {number: token for token, number in tokenizer.get_vocab().items()}


@dataclass(slots=True)
class _DraftRow:
    """What the network has read of a row.

    Attributes:
        first: Position of the first token that it has read.
        end: Position after the last one.
    """

    caches: list[Any]
    first: int
    end: int


class ModelDrafter:
    """Drafts the likeliest tokens of a draft model. Belongs to the thread that loaded it.

    Args:
        network: An mlx-lm model.
        support: How it computes several rows; without a refusal.
        vocabulary: Ids below this are drafted: those of the network that verifies them.
    """

    def __init__(
        self,
        network: Any,  # noqa: ANN401 - mlx-lm ships no types
        support: RowSupport,
        vocabulary: int | None,
    ) -> None:
        self._network = network
        self._support = support
        self._vocabulary = vocabulary
        self._rows: dict[int, _DraftRow] = {}

    def observe(self, *_: object) -> None:
        """Do nothing: it reads tokens."""

    def drop(self, uids: Iterable[int]) -> None:
        """Forget sequences; unknown uids are ignored."""
        for uid in uids:
            self._rows.pop(uid, None)

    def propose(
        self, rows: Sequence[SpeculatedRow], drawn: Sequence[int], count: int
    ) -> list[list[int]]:
        """Return the next ``count`` tokens of each row after the drawn one."""
        assert count > 0, "something is drafted"
        held, pieces = [], []
        for row, token in zip(rows, drawn, strict=True):
            mine = self._row_of(row)
            held.append(mine)
            last = (self._vocabulary or IMAGE_ID_MIN) - 1
            new = [min(one, last) for one in plain_ids(row.tokens[mine.end :])]
            pieces.append(self._read(mine, [*new, token]))
            mine.end = len(row.tokens) + 1
        caches = [one.caches for one in held]
        flat = [leaves(one) for one in caches]
        states = {
            index: type(leaf).merge([found[index] for found in flat])
            for index, leaf in enumerate(flat[0])
            if is_state(leaf)
        }
        tokens = self._likeliest(self._forward(caches, pieces, states))
        confirmed = {index: list(state.cache) for index, state in states.items()}
        drafts = [tokens]
        for _ in range(count - 1):
            step = pass_caches(caches, [1] * len(rows), states, self._support.kind)
            tokens = self._likeliest(self._network(tokens[:, None], cache=step)[:, -1])
            drafts.append(tokens)
        drafted: list[list[int]] = mx.stack(drafts, axis=1).tolist()  # type: ignore[assignment]  # two axes
        for at, found in enumerate(flat):
            for index, leaf in enumerate(found):
                if is_state(leaf):
                    leaf.cache = [part[at : at + 1] for part in confirmed[index]]
                else:
                    leaf.trim(count - 1)
        return drafted

    def _row_of(self, row: SpeculatedRow) -> _DraftRow:
        """Return what was read of a row; nothing of a new one, or of one that is too long."""
        end = len(row.tokens)
        mine = self._rows.get(row.uid)
        if mine is None or end - mine.first >= 2 * DRAFT_CONTEXT_TOKENS:
            first = max(0, end - DRAFT_CONTEXT_TOKENS)
            mine = self._rows[row.uid] = _DraftRow(make_row_caches(self._network), first, first)
        return mine

    def _read(self, mine: _DraftRow, tokens: list[int]) -> list[int]:
        """Read tokens of a row that are new or many; return those that a common pass reads."""
        left = _CAUGHT_UP_TOKENS if mine.end > mine.first else 1
        while len(tokens) > left:
            size = min(_PIECE_TOKENS, len(tokens) - 1)
            self._network(mx.array([tokens[:size]]), cache=mine.caches)
            mx.eval([leaf.state for leaf in leaves(mine.caches)])
            tokens = tokens[size:]
        return tokens

    def _forward(
        self, caches: list[list[Any]], pieces: list[list[int]], states: dict[int, Any]
    ) -> mx.array:
        """Compute the tokens that are new to the network; return the logits after the last ones."""
        lengths = list(map(len, pieces))
        kind, hooks = self._support.kind, self._support.hooks
        if states and hooks is not None and max(lengths) > 1:
            with hooks.drafting(states, lengths) as ragged:
                logits = forward_rows(self._network, caches, pieces, ragged, kind)
            for state in ragged.values():
                state.keep_tokens(lengths)
        else:
            logits = forward_rows(self._network, caches, pieces, states, kind)
        return logits[mx.array([end - 1 for end in accumulate(lengths)])]

    def _likeliest(self, logits: mx.array) -> mx.array:
        return mx.argmax(logits[:, : self._vocabulary], axis=-1)
