"""The caches of one context: a running row, or a segment that is parked.

The arrays of a full-attention layer are the context's only copy in memory. A move evaluates what it
copies before it returns, so that no view of a buffer outlives it: a view that is left makes the
next write of one token copy the whole buffer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import mlx.core as mx

from domain.kv.checkpoints import CacheCheckpoint, CheckpointKind
from domain.kv.contexts import Context
from domain.kv.pool import BlockPool
from domain.kv.relief import Holder
from domain.kv.spec import LayerKind, LayerSpec, ModelCacheSpec
from worker.engine.mlx.kv.codec import (
    TOKEN_AXIS,
    BlockArrays,
    part_names,
    parts_of,
)
from worker.engine.mlx.kv.row_target import RowTarget, untouched_arrays
from worker.engine.mlx.kv.window_cache import leaves

#: Bytes that one step of a move copies, about 5 ms of a slow processor.
MOVED_AT_ONCE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class FullLayer:
    """A full-attention layer of a context."""

    index: int
    leaf: Any
    sizes: LayerSpec

    def buffers(self) -> dict[str, mx.array]:
        """Return the buffers of the cache by the names of their tensors."""
        return {
            f"{self.index}.{name}": getattr(self.leaf, attribute)
            for name, attribute in part_names(self.sizes)
        }

    def rebuild(self, first: int, last: int, slots: int) -> None:
        """Copy some slots to the front of new buffers, which are evaluated."""
        for _, attribute in part_names(self.sizes):
            held = getattr(self.leaf, attribute)
            setattr(self.leaf, attribute, _with_room(held[:, :, first:last], slots))
        mx.eval([getattr(self.leaf, attribute) for _, attribute in part_names(self.sizes)])


class ContextCaches:
    """The caches of one context.

    Args:
        start: The token that the first slot of the full-attention layers holds.
    """

    def __init__(self, spec: ModelCacheSpec, caches: list[Any]) -> None:
        self._spec = spec
        self.caches = caches
        #: The caches without nesting.
        self.leaves = leaves(caches)
        self.start = 0

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(leaf.nbytes for leaf in self.leaves)

    # --- full-attention layers ---------------------------------------------------------------

    def reserve(self, tokens: int) -> Iterator[None]:
        """Make room for ``tokens`` in all, one layer at a time; yields after each layer.

        At most one layer exists twice meanwhile.
        """
        assert self.start == 0, "only a whole context runs"
        for layer in self._full():
            buffers = layer.buffers()
            held = min(0 if one is None else one.shape[TOKEN_AXIS] for one in buffers.values())
            if held >= tokens:
                continue
            if held:
                layer.rebuild(0, layer.leaf.offset, tokens)
                yield
            else:
                parts = parts_of(self._spec, layer.sizes)
                forms = {part.attribute: (part.shape(tokens), part.dtype) for part in parts}
                for name, buffer in untouched_arrays(forms).items():
                    setattr(layer.leaf, name, buffer)

    def copy_from(self, source: ContextCaches, start: int, stop: int) -> Iterator[None]:
        """Copy tokens of the full-attention layers; yields after each part.

        Args:
            stop: The token after the last one; there is room for it.
        """
        first, last = start - source.start, stop - source.start
        for indexes in self._together(stop - start):
            held, written = source._buffers(indexes), self._buffers(indexes)
            for name, buffer in written.items():
                buffer[:, :, start:stop] = held[name][:, :, first:last]
            mx.eval(written)
            yield

    def write(self, block: BlockArrays, start: int, tokens: int) -> None:
        """Write the first ``tokens`` of a stored block into the slots from ``start`` on."""
        buffers = self._buffers()
        for name, buffer in buffers.items():
            buffer[:, :, start : start + tokens] = block.tensors[name][:, :, :tokens]
        mx.eval(buffers)

    def target(self, start: int) -> RowTarget:
        """Return the slots from ``start`` on as memory that other threads write blocks to.

        The row writes to its buffers only after the last view of them is gone.
        """
        return RowTarget(self._buffers(), start, self._spec.block_tokens)

    def read(self, start: int, stop: int) -> BlockArrays:
        """Return a copy of the tokens ``start`` to ``stop`` of the full-attention layers."""
        first, last = start - self.start, stop - self.start
        tensors = {
            name: mx.contiguous(buffer[:, :, first:last])
            for name, buffer in self._buffers().items()
        }
        mx.eval(tensors)
        return BlockArrays(stop - start, MappingProxyType(tensors))

    def set_tokens(self, tokens: int) -> None:
        """Set how many tokens the full-attention layers hold."""
        for layer in self._full():
            layer.leaf.offset = tokens - self.start

    def keep(self, start: int, stop: int, capacity: int) -> None:
        """Keep only the tokens ``start`` to ``stop`` of a parked context, one layer at a time.

        Windows and states are dropped unless the end is kept.
        """
        first, last = start - self.start, stop - self.start
        ends_before = any(last < layer.leaf.offset for layer in self._full())
        for layer in self._full():
            layer.rebuild(first, last, capacity)
            layer.leaf.offset = last - first
        if ends_before:
            self.drop_ends()
        self.start = start

    def rewind(self, tokens: int) -> None:
        """Return to ``tokens`` after a step that failed, where windows and states allow it.

        Raises:
            Exception: Whatever the arrays raise when they are evaluated.
        """
        self.set_tokens(tokens)
        windows = [leaf for _, leaf, layer in self._ends() if layer.kind is LayerKind.SLIDING]
        if len(windows) < sum(1 for _ in self._ends()) or any(
            leaf.trimmable < leaf.offset - tokens or leaf.offset < tokens for leaf in windows
        ):
            self.drop_ends()
        else:
            for leaf in windows:
                leaf.trim(leaf.offset - tokens)
        mx.eval(self._buffers())
        mx.eval([leaf.state for _, leaf, _ in self._ends() if leaf.nbytes])

    # --- windows and states ------------------------------------------------------------------

    def drop_ends(self) -> None:
        """Drop what windows and states remember."""
        for _, leaf, layer in self._ends():
            if layer.kind is LayerKind.STATE:
                leaf.cache = [None] * len(leaf.cache)
            else:
                leaf.state = (None, None, 0, 0)

    def own_ends(self) -> None:
        """Copy the states, which may be views into the states of a whole batch."""
        for _, leaf, layer in self._ends():
            if layer.kind is LayerKind.STATE:
                leaf.cache = [None if one is None else _own(one) for one in leaf.cache]
                mx.eval([one for one in leaf.cache if one is not None])

    def can_end_at(self, tokens: int, held: int) -> bool:
        """Return whether windows and states can go on after ``tokens`` of the ``held`` ones."""
        return all(
            all(one is not None for one in leaf.cache) and tokens == held
            if layer.kind is LayerKind.STATE
            else leaf.offset == held and leaf.length - (held - tokens) >= layer.kept_tokens(tokens)
            for _, leaf, layer in self._ends()
        )

    def trim_end(self, tokens: int, held: int) -> None:
        """Drop the tokens after ``tokens``, where ``can_end_at`` allows it; copies nothing."""
        for _, leaf, layer in self._ends():
            if layer.kind is LayerKind.SLIDING:
                leaf.trim(held - tokens)
        self.set_tokens(tokens)

    def ends_at(self, tokens: int, held: int) -> dict[str, mx.array]:
        """Return copies of what windows and states remember after ``tokens`` of the ``held`` ones.

        Raises:
            AssertionError: They cannot end there; see ``can_end_at``.
        """
        tensors = {
            name: _own(view) if kind is LayerKind.STATE else mx.contiguous(view)
            for name, view, kind in self._ends_views(tokens, held)
        }
        mx.eval(tensors)
        return tensors

    def _ends_views(self, tokens: int, held: int) -> Iterator[tuple[str, mx.array, LayerKind]]:
        """Yield name, content and layer of what ``ends_at`` returns; nothing is evaluated."""
        assert self.can_end_at(tokens, held), "the window has moved on"
        for index, leaf, layer in self._ends():
            if layer.kind is LayerKind.STATE:
                for part, state in enumerate(leaf.cache):
                    yield f"{index}.s{part}", state, layer.kind
            else:
                stop = leaf.length - (leaf.offset - tokens)
                first = stop - layer.kept_tokens(tokens)
                yield f"{index}.k", leaf.keys[:, :, first:stop], layer.kind
                yield f"{index}.v", leaf.values[:, :, first:stop], layer.kind

    def set_ends(self, tensors: Mapping[str, mx.array], tokens: int) -> Iterator[None]:
        """Set windows and states from what ``ends_at`` returned; yields after each layer.

        Each tensor is looked up once, when its layer is set, so that a mapping may make it then.
        """
        for index, leaf, layer in self._ends():
            if layer.kind is LayerKind.STATE:
                names = [f"{index}.s{part}" for part in range(len(leaf.cache))]
                # Copies, because item assignment changes the array for every holder of the handle.
                leaf.cache = [mx.contiguous(tensors[name]) for name in names]
                mx.eval(leaf.cache)
            else:
                pair = (tensors[f"{index}.k"], tensors[f"{index}.v"])
                length = pair[0].shape[TOKEN_AXIS]
                keys, values = (_with_room(one, leaf.slots_for(length)) for one in pair)
                leaf.state = (keys, values, tokens, length)
                mx.eval(keys, values)
            yield

    def copy_ends(self, source: ContextCaches, tokens: int, held: int) -> Iterator[None]:
        """Set windows and states from those of a parked context; yields after each layer.

        Args:
            source: The context, which is not changed meanwhile.
            tokens: Its first tokens, after which windows and states go on here.
            held: All tokens of it.
        """
        views = source._ends_views(tokens, held)
        return self.set_ends({name: view for name, view, _ in views}, tokens)

    # --- layers ------------------------------------------------------------------------------

    def _full(self, indexes: Collection[int] | None = None) -> Iterator[FullLayer]:
        """Yield the full-attention layers, all or those of some indexes."""
        for index, (leaf, layer) in enumerate(zip(self.leaves, self._spec.layers, strict=True)):
            if layer.kind is LayerKind.FULL and (indexes is None or index in indexes):
                yield FullLayer(index, leaf, layer)

    def _buffers(self, indexes: Collection[int] | None = None) -> dict[str, mx.array]:
        """Return the buffers of full-attention layers by the names of their tensors."""
        return {name: one for layer in self._full(indexes) for name, one in layer.buffers().items()}

    def _ends(self) -> Iterator[tuple[int, Any, LayerSpec]]:
        for index, (leaf, layer) in enumerate(zip(self.leaves, self._spec.layers, strict=True)):
            if layer.kind is not LayerKind.FULL:
                yield index, leaf, layer

    def _together(self, tokens: int) -> Iterator[Sequence[int]]:
        """Yield groups of full-attention layers of about ``MOVED_AT_ONCE_BYTES``."""
        part: list[int] = []
        part_bytes = 0
        for layer in self._full():
            part.append(layer.index)
            part_bytes += tokens * layer.sizes.token_bytes
            if part_bytes >= MOVED_AT_ONCE_BYTES:
                yield part
                part, part_bytes = [], 0
        if part:
            yield part


def _own(array: mx.array) -> mx.array:
    """Return a copy in a buffer of its own size.

    ``mx.contiguous`` may return a view instead, which keeps up to 16 KB more in memory.
    """
    return mx.take(array, mx.arange(array.shape[0]), axis=0)


def _with_room(tokens: mx.array, slots: int) -> mx.array:
    """Return a copy of [1, kv_heads, tokens, head_dim] in a buffer of ``slots`` tokens."""
    _, heads, held, dim = tokens.shape
    room = mx.zeros((1, heads, max(0, slots - held), dim), tokens.dtype)
    return mx.concatenate([tokens, room], axis=TOKEN_AXIS)


class ContextStore:
    """The arrays of one model's contexts. Belongs to the engine thread."""

    def __init__(
        self,
        fingerprint: str,
        spec: ModelCacheSpec,
        budget_bytes: int,
        *,
        in_flight_bytes: int,
        may_lose: Callable[[], bool],
    ) -> None:
        self.pool = BlockPool(
            fingerprint,
            spec,
            budget_bytes,
            self,
            in_flight_bytes=in_flight_bytes,
            may_lose=may_lose,
            lock=threading.RLock(),
        )
        self._caches: dict[Context, ContextCaches] = {}
        self._ends: dict[CacheCheckpoint, Mapping[str, mx.array]] = {}

    def caches(self, context: Context) -> ContextCaches:
        """Return the caches of a context."""
        return self._caches[context]

    def ends(self, checkpoint: CacheCheckpoint) -> Mapping[str, mx.array]:
        """Return the arrays of a checkpoint."""
        return self._ends[checkpoint]

    def open(self, caches: ContextCaches, slots: int) -> Context:
        """Add a running context without tokens. The caller has made room for it."""
        context = self.pool.allocate(slots)
        self._caches[context] = caches
        return context

    def park(self, context: Context, caches: ContextCaches) -> None:
        """Turn a running context into a segment; copies nothing."""
        self._caches[context] = caches
        self.pool.park(context)

    def add_checkpoint(
        self,
        context: Context,
        kind: CheckpointKind,
        position: int,
        cut: Callable[[], Mapping[str, mx.array]],
    ) -> CacheCheckpoint | None:
        """Add the checkpoint of a context, whose arrays ``cut`` returns; see ``BlockPool``."""

        def make(checkpoint: CacheCheckpoint) -> None:
            self._ends[checkpoint] = cut()

        return self.pool.add_checkpoint(context, kind, position, make)

    # --- for the pool --------------------------------------------------------------------------

    def keep(self, context: Context, start: int, stop: int, slots: int) -> None:
        """See ``ContextArrays``."""
        self._caches[context].keep(start, stop, slots)

    def drop(self, holder: Holder) -> None:
        """See ``ContextArrays``."""
        if isinstance(holder, Context):
            del self._caches[holder]
        else:
            del self._ends[holder]
