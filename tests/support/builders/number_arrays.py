"""A pool without MLX: arrays that are numbers, and the order of relief by looking at everything."""

from __future__ import annotations

from dataclasses import dataclass

from domain.kv.checkpoints import CacheCheckpoint
from domain.kv.contexts import Context
from domain.kv.pool import BlockPool
from domain.kv.relief import DropCheckpoint, Holder, Relief
from domain.kv.spec import ModelCacheSpec

#: Small blocks, so that few tokens make many.
BLOCK_TOKENS = 4


@dataclass
class Rows:
    """The arrays of a context: its tokens."""

    tokens: tuple[int, ...] = ()
    start: int = 0


class NumbersForArrays:
    """Arrays that know only their sizes."""

    def __init__(self, spec: ModelCacheSpec) -> None:
        self.spec = spec
        self.rows: dict[Context, Rows] = {}
        self.ends: dict[CacheCheckpoint, int] = {}

    def keep(self, context: Context, start: int, stop: int, slots: int) -> None:
        assert context.is_idle, "an array in use is cut"
        rows = self.rows[context]
        assert rows.start <= start < stop <= rows.start + len(rows.tokens)
        assert stop - start <= slots < stop - start + BLOCK_TOKENS
        rows.tokens = rows.tokens[start - rows.start : stop - rows.start]
        rows.start = start

    def drop(self, holder: Holder) -> None:
        if isinstance(holder, Context):
            del self.rows[holder]
        else:
            del self.ends[holder]


def scanned(
    pool: BlockPool,
    contexts: list[Context],
    checkpoints: list[CacheCheckpoint],
    *,
    unsaved: bool,
) -> Context | CacheCheckpoint | None:
    """Return what is freed first, by looking at everything."""
    free = [one for one in checkpoints if not one.users and (one.is_saved or unsaved)]
    if free:
        return min(free, key=lambda one: one.used)
    idle = sorted((one for one in contexts if one.is_idle), key=lambda one: one.used)
    held = [name for one in pool.contexts() for name in one.names[one.start // BLOCK_TOKENS :]]
    for context in idle:
        first = context.names[context.start // BLOCK_TOKENS :][:1]
        if not context.is_forgotten and first and held.count(first[0]) > 1:
            return context
    idle = [one for one in idle if one.is_saved or unsaved]
    return next(iter(idle), None)


def freed_by(relief: Relief | None) -> Holder | None:
    if relief is None:
        return None
    return relief.checkpoint if isinstance(relief, DropCheckpoint) else relief.context
