"""The head that a model brings for drafts: multi-token prediction (MTP) of the Qwen3.5 family.

From the state after a token, as the output head reads it, and the token that follows, it computes
a state that the same output head reads for the token after that. mlx-lm leaves its weights out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.utils
import structlog
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten
from mlx_lm.models.base import create_attention_mask

from domain.kv.owned_tokens import plain_ids
from domain.kv.plan import HEAD_SHARE_MAX, DrafterMemory, size_text
from domain.kv.spec import WINDOW_SLACK_TOKENS, WINDOW_STEP_TOKENS
from domain.model.registry import DRAFT_HEAD, NO_DRAFTER, ModelEntry
from ops.models.hub_cache import WEIGHTS
from worker.engine.mlx.cpu import computes_on_cpu, in_single_precision
from worker.engine.mlx.drafting.speculation import (
    FIRST_DRAFT_TOKENS_MAX,
    DrafterSource,
    SpeculatedRow,
)
from worker.engine.mlx.kv.window_cache import WindowKVCache
from worker.engine.mlx.memory.at_load import parameter_bytes
from worker.engine.mlx.memory.device import ProcessDevice
from worker.engine.mlx.model.draft_model import load_draft
from worker.engine.mlx.model.loader import find_model
from worker.engine.mlx.rows.ragged_cache import RaggedKind, pass_caches

_log = structlog.get_logger(__name__)

#: Tokens of a row that the head sees.
HEAD_CONTEXT_TOKENS = 1024
#: States of a row that wait for the head at most. It reads them when it drafts.
STATES_MAX = 512
#: Families of mlx-lm whose head is known.
HEAD_FAMILIES = ("mlx_lm.models.qwen3_5", "mlx_lm.models.qwen3_5_moe", "mlx_lm.models.qwen3_next")
#: A gain is stored as its difference from 1 if its mean is below this, whatever the other weights
#: show: some conversions leave the head as it was.
_GAIN_MIN = 0.1


class MtpHead(Module):
    """One layer of attention over pairs of a state and the token that follows.

    Args:
        text: The language model that it belongs to, as ``text_model`` returns it.
    """

    def __init__(self, text: Any) -> None:  # noqa: ANN401 - mlx-lm ships no types
        super().__init__()  # type: ignore[no-untyped-call]  # mlx has no types for it
        args, layers, at = text.args, text.model.layers, text.model.fa_idx
        size, eps = args.hidden_size, args.rms_norm_eps
        self.pre_fc_norm_embedding = RMSNorm(size, eps=eps)
        self.pre_fc_norm_hidden = RMSNorm(size, eps=eps)
        self.fc = Linear(2 * size, size, bias=False)
        self.layers = [type(layers[at])(args, at)]
        self.norm = RMSNorm(size, eps=eps)

    def __call__(self, states: mx.array, embeddings: mx.array, caches: Sequence[Any]) -> mx.array:
        """Return the states after the tokens, of the shape of both inputs: [rows, tokens, dim]."""
        pair = [self.pre_fc_norm_embedding(embeddings), self.pre_fc_norm_hidden(states)]
        hidden = self.fc(mx.concatenate(pair, axis=-1))
        for layer, cache in zip(self.layers, caches, strict=True):
            hidden = layer(hidden, create_attention_mask(hidden, cache), cache)
        after: mx.array = self.norm(hidden)
        return after


def text_model(network: Any) -> Any:  # noqa: ANN401 - mlx-lm ships no types
    """Return the part of a network that has embedding, layers and output head."""
    return getattr(network, "language_model", network)


def has_known_head(network: Any) -> bool:  # noqa: ANN401 - mlx-lm ships no types
    """Return whether weights of its family may bring a head that this module computes."""
    return type(network).__module__ in HEAD_FAMILIES


def draft_loader(model: ModelEntry) -> Callable[[Any, str], DrafterSource | None] | None:
    """Return what loads the drafter that ``ModelEntry.draft`` means; ``None`` for no drafter."""
    draft = model.draft
    if draft == NO_DRAFTER:
        return None

    def load(network: Any, refusal: str) -> DrafterSource | None:  # noqa: ANN401 - mlx-lm ships no types
        if refusal:
            if draft is not None:
                _log.warning("draft_model_unused", why=refusal)
            return None
        if draft is None or draft == DRAFT_HEAD:
            return load_head(model, network, is_asked=draft is not None)
        return load_draft(draft, model)

    return load


def load_head(model: ModelEntry, network: Any, *, is_asked: bool) -> DrafterSource | None:  # noqa: ANN401 - mlx-lm ships no types
    """Load the head of a model on the engine thread; ``None`` where there is none of use.

    Args:
        network: The loaded model.
        is_asked: Whether the settings name it: then a line in the log has the reason for none.
    """
    try:
        why = f"heads of the family {type(network).__module__.rpartition('.')[2]} are not known"
        if has_known_head(network):
            why = "the weights have no mtp tensors"
            tensors = read_head(find_model(model.source, model.revision, downloads=False))
            if tensors:
                head = draft_head(network, tensors)
                left_bytes = ProcessDevice().memory().usable_bytes - mx.get_active_memory()
                size_bytes = parameter_bytes(head)
                if is_asked or size_bytes <= HEAD_SHARE_MAX * left_bytes:
                    return warmed(network, head)
                why, is_asked = f"it takes {size_text(size_bytes)} of the memory", True
    except Exception as error:  # noqa: BLE001 - of many types on odd weights; the model goes on
        why, is_asked = f"{type(error).__name__}: {error}", True
    if is_asked:
        _log.warning("draft_head_unused", why=why)
    return None


def draft_head(network: Any, tensors: Mapping[str, mx.array]) -> MtpHead:  # noqa: ANN401 - mlx-lm ships no types
    """Return a head of some tensors, with the quantization that they have; they stay lazy.

    Raises:
        ValueError: A tensor is missing, or belongs to no part of the head.
    """
    head = MtpHead(text_model(network))
    quantize(
        head,
        class_predicate=lambda path, module: (
            f"{path}.scales" in tensors
            and hasattr(module, "to_quantized")
            and mlx_lm.utils.infer_quant_config(path, module, tensors)
        ),
    )
    named: Any = tree_flatten(head.parameters())  # type: ignore[no-untyped-call]  # mlx has no types for it
    # Gains that are left out are 1.
    wanted = {name for name, _ in named}
    missing = {name for name in wanted - tensors.keys() if not name.endswith("norm.weight")}
    if missing or tensors.keys() - wanted:
        odd = f"missing {sorted(missing)}, unknown {sorted(tensors.keys() - wanted)}"
        raise ValueError(f"its tensors are others than expected: {odd}")
    head.load_weights(list(tensors.items()), strict=False)
    if computes_on_cpu():
        in_single_precision(head, ProcessDevice().memory().usable_bytes)
    return head


def memory_of(network: Any, head: MtpHead) -> DrafterMemory:  # noqa: ANN401 - mlx-lm ships no types
    """Return what a head takes; embedding and output head are those of the network."""
    args, element = text_model(network).args, head.norm.weight.dtype.size
    slots = HEAD_CONTEXT_TOKENS + WINDOW_SLACK_TOKENS + WINDOW_STEP_TOKENS
    row = slots * 2 * args.num_key_value_heads * args.head_dim + STATES_MAX * args.hidden_size
    return DrafterMemory(weights_bytes=parameter_bytes(head), row_bytes=element * row)


def head_memory(network: Any, dtype: mx.Dtype) -> DrafterMemory | None:  # noqa: ANN401 - mlx-lm ships no types
    """Return what a head takes that no bits quantize; ``None`` where none is known."""
    if not has_known_head(network):
        return None
    head = MtpHead(text_model(network))
    head.set_dtype(dtype)
    return memory_of(network, head)


def warmed(network: Any, head: MtpHead) -> DrafterSource:  # noqa: ANN401 - mlx-lm ships no types
    """Compute a draft, so that the first one of a row takes no longer than others."""
    arrays: Any = head.parameters()  # type: ignore[no-untyped-call]  # mlx has no types for it
    mx.eval(arrays)
    drafter, row = HeadDrafter(network, head), _WarmRow()
    drafter.observe([row], mx.zeros((1, text_model(network).args.hidden_size)), [1], [1])
    drafter.propose([row], [0], FIRST_DRAFT_TOKENS_MAX)
    return DrafterSource(
        partial(HeadDrafter, network, head),
        memory_of(network, head),
        ability="a head of its own drafts too",
    )


def read_head(model_dir: Path) -> dict[str, mx.array]:
    """Return the tensors of the head in a directory, named as its modules; empty for none.

    Files of Hugging Face have the gains of norms as differences from 1, and fused or single
    experts; those of mlx-lm have neither.
    """
    tensors, is_raw = {}, False
    for file in sorted(model_dir.glob(WEIGHTS)):
        found: Any = mx.load(str(file))
        for name, array in found.items():
            _, is_head, rest = f".{name}".partition(".mtp.")
            if is_head:
                tensors[rest] = array
            elif name.endswith("conv1d.weight") and array.shape[-1] != 1:
                is_raw = True
    for name, array in tensors.items():
        if name.endswith("norm.weight") and (is_raw or float(mx.mean(array)) < _GAIN_MIN):
            tensors[name] = array + 1.0
    return _with_experts_together(tensors)


def _with_experts_together(tensors: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Return the tensors with those of all experts in one, as the layers of mlx-lm have them."""
    found: dict[str, mx.array] = {}
    single: dict[str, dict[int, mx.array]] = {}
    for name, array in tensors.items():
        before, is_expert, rest = name.partition(".experts.")
        place = f"{before}.switch_mlp"
        number, _, part = rest.partition(".")
        if not is_expert:
            found[name] = array
        elif rest == "gate_up_proj":
            gate, up = mx.split(array, 2, axis=-2)
            found |= {f"{place}.gate_proj.weight": gate, f"{place}.up_proj.weight": up}
        elif rest == "down_proj":
            found[f"{place}.down_proj.weight"] = array
        else:
            single.setdefault(f"{place}.{part}", {})[int(number)] = array
    stacked = {
        name: mx.stack([parts[at] for at in sorted(parts)]) for name, parts in single.items()
    }
    return found | stacked


@dataclass(frozen=True, slots=True)
class _WarmRow:
    """A row of one token."""

    uid: int = 0
    tokens: list[int] = field(default_factory=lambda: [0])


@dataclass(slots=True)
class _HeadRow:
    """What the head knows of a row.

    Attributes:
        end: Tokens of the row that the network has read.
        waiting: The states after its last tokens which the head has not read: an array of states,
            and where they begin and end in it.
        count: How many they are.
        held: States of the arrays that they are parts of, divided by the rows of the pass.
    """

    caches: list[Any]
    end: int
    waiting: deque[tuple[mx.array, int, int, int]] = field(default_factory=deque)
    count: int = 0
    held: int = 0

    def add(self, states: mx.array, first: int, count: int, held: int) -> None:
        self.waiting.append((states, first, first + count, held))
        self.end += count
        self.count += count
        self.held += held
        while max(self.count, self.held) > STATES_MAX:
            _, first, stop, held = self.waiting.popleft()
            self.count -= stop - first
            self.held -= held

    def take(self) -> list[mx.array]:
        """Return the states that wait, which the head reads now."""
        parts = [states[first:stop] for states, first, stop, _ in self.waiting]
        self.waiting.clear()
        self.count = self.held = 0
        return parts


class HeadDrafter:
    """Drafts the likeliest tokens of a head. Belongs to the thread that loaded it.

    It begins at the last token of the prompt, whose state is that of the first decode step. What it
    has read of a sequence is not kept when the sequence ends.
    """

    def __init__(self, network: Any, head: MtpHead) -> None:  # noqa: ANN401 - mlx-lm ships no types
        text = text_model(network)
        self._head = head
        self._embed = text.model.embed_tokens
        self._logits = text.lm_head if "lm_head" in text else self._embed.as_linear
        self._rows: dict[int, _HeadRow] = {}

    def observe(
        self,
        rows: Sequence[SpeculatedRow],
        states: mx.array,
        lengths: Sequence[int],
        kept: Sequence[int],
    ) -> None:
        """Keep the states after the tokens that rows have read in a pass."""
        first = 0
        for row, length, count in zip(rows, lengths, kept, strict=True):
            start = len(row.tokens) - count
            mine = self._rows.get(row.uid)
            if mine is None or mine.end != start:
                caches = [WindowKVCache(HEAD_CONTEXT_TOKENS) for _ in self._head.layers]
                mine = self._rows[row.uid] = _HeadRow(caches, start)
            # Until no row waits with a part of them, the states of the pass are held whole.
            mine.add(states, first, count, -(-states.shape[0] // len(rows)))
            first += length

    def drop(self, uids: Iterable[int]) -> None:
        """Forget sequences; unknown uids are ignored."""
        for uid in uids:
            self._rows.pop(uid, None)

    def propose(
        self, rows: Sequence[SpeculatedRow], drawn: Sequence[int], count: int
    ) -> list[list[int]]:
        """Return the next ``count`` tokens of each row after the drawn one."""
        assert count > 0, "something is drafted"
        held = [self._rows[row.uid] for row in rows]
        caches, lengths = [one.caches for one in held], [one.count for one in held]
        parts = [part for one in held for part in one.take()]
        read: list[int] = []
        for row, token, length in zip(rows, drawn, lengths, strict=True):
            # The first of the states that wait is followed by the token after its own.
            read += [*plain_ids(row.tokens[len(row.tokens) - length + 1 :]), token]
        states = self._forward(mx.concatenate(parts), mx.array(read), caches, lengths)
        states = states[mx.array([end - 1 for end in accumulate(lengths)])]
        drafts = [self._likeliest(states)]
        for _ in range(count - 1):
            states = self._forward(states, drafts[-1], caches, [1] * len(rows))
            drafts.append(self._likeliest(states))
        drafted: list[list[int]] = mx.stack(drafts, axis=1).tolist()  # type: ignore[assignment]  # two axes
        for one in held:
            for cache in one.caches:
                cache.trim(count - 1)
        return drafted

    def _forward(
        self,
        states: mx.array,
        tokens: mx.array,
        caches: Sequence[Sequence[Any]],
        lengths: Sequence[int],
    ) -> mx.array:
        """Return the states of the head, [tokens, dim], from those before, row by row."""
        axis = 0 if len(caches) == 1 else 1
        step = pass_caches(caches, lengths, {}, RaggedKind.WHOLE)
        embeddings = mx.expand_dims(self._embed(tokens), axis)
        return self._head(mx.expand_dims(states, axis), embeddings, step).squeeze(axis)

    def _likeliest(self, states: mx.array) -> mx.array:
        return mx.argmax(self._logits(states), axis=-1)
