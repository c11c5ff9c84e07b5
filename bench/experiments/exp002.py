"""EXP-002: what does allocating memory cost?  ``python -m bench.experiments.exp002``.

The pool holds parked contexts of 8 blocks that the disk has. An operation is what a start and an
end ask of it: whether there is room, the room, a context, the names of its blocks, and to free or
park it. Where memory is full, each start frees the least recently used context. There are no
arrays. Each operation is timed on its own, in processor time, so that other load counts little.
Beside it, what a start looks up.
"""

from __future__ import annotations

import gc
import itertools
import random
import time
from collections.abc import Callable, Iterator

from bench.report.section import percentile, print_conditions, print_table, print_verdict
from domain.kv.contexts import Context
from domain.kv.hashing import pack_ids
from domain.kv.pool import BlockPool
from domain.kv.relief import Holder
from domain.kv.spec import BLOCK_TOKENS, LayerKind, LayerSpec, ModelCacheSpec

CONTEXTS = (10, 1_000, 3_000)
BLOCKS = 8
OPERATIONS = 1_000
P95_MS_MAX = 1.0

_LAYER = LayerSpec(kind=LayerKind.FULL, kv_heads=3, key_dim=64, value_dim=64, element_bytes=2)
_SPEC = ModelCacheSpec(layers=(_LAYER,) * 30, dtype="bfloat16")
_SLOTS = BLOCKS * BLOCK_TOKENS


class _NoArrays:
    def keep(self, context: Context, start: int, stop: int, slots: int) -> None:
        del context, start, stop, slots

    def drop(self, holder: Holder) -> None:
        """Do nothing."""


class _Starts:
    """Starts and ends of contexts in a pool.

    Args:
        contexts: Parked contexts at the beginning.
        room: Contexts that fit beside them.
    """

    def __init__(self, contexts: int, room: int) -> None:
        self._size_bytes = _SPEC.live_bytes(_SLOTS)
        budget_bytes = (contexts + room) * self._size_bytes
        self._pool = BlockPool("model", _SPEC, budget_bytes, _NoArrays(), may_lose=lambda: False)
        self._seeds = itertools.count()
        for _ in range(contexts):
            self.prepare()
            self.start_and_park()

    def prepare(self) -> None:
        """Set a prompt that no context has, and the names of its blocks."""
        self._ids = random.Random(next(self._seeds)).choices(range(100_000), k=_SLOTS)
        self._names = list(self._pool.hasher.chain(pack_ids(self._ids), BLOCK_TOKENS))

    def look_up(self) -> None:
        """Look for the prompt as the plan of a start does."""
        self._pool.diverged_at(self._ids)
        self._pool.find(self._ids)

    def start_and_free(self) -> None:
        """Start a context and drop it."""
        self._pool.free(self._start())

    def start_and_park(self) -> None:
        """Start a context and park it, so that a later one frees it."""
        context = self._start()
        self._pool.park(context)
        self._pool.record_saved(context)

    def _start(self) -> Context:
        assert self._pool.could_take(self._size_bytes, alone=True)
        assert self._pool.make_room(self._size_bytes, alone=True)
        context = self._pool.allocate(_SLOTS)
        context.token_ids += self._ids
        for name in self._names:
            self._pool.seal(context, name)
        return context


def main() -> None:
    """Print the table."""
    started_s = time.monotonic()
    p95s_ms: list[float] = []
    titles = (">contexts", "memory", "operation", ">p50 ms", ">p95 ms", ">p99 ms")
    print_table(titles, _rows(p95s_ms))
    worst_ms = max(p95s_ms)
    print_verdict(
        reached=worst_ms < P95_MS_MAX,
        why=f"to allocate and free takes {worst_ms:.3f} ms at p95 where it takes longest;"
        f" {P95_MS_MAX:.0f} ms are allowed.",
    )
    print_conditions(started_s)


def _rows(p95s_ms: list[float]) -> Iterator[tuple[object, ...]]:
    """Yield the rows; the p95 of each allocation is added to ``p95s_ms``."""
    for contexts in CONTEXTS:
        free, full = _Starts(contexts, room=1), _Starts(contexts, room=0)
        for memory, name, starts, operation in (
            ("free", "allocate and free", free, free.start_and_free),
            ("full", "allocate, and free for it", full, full.start_and_park),
            ("full", "look up a new prompt", full, full.look_up),
        ):
            times_ms = _times_ms(starts, operation)
            shares = [percentile(times_ms, share) for share in (0.5, 0.95, 0.99)]
            if name.startswith("allocate"):
                p95s_ms.append(shares[1])
            yield f"{contexts:,}", memory, name, *(f"{one:.4f}" for one in shares)


def _times_ms(starts: _Starts, operation: Callable[[], None]) -> list[float]:
    times_ms = []
    gc.collect()
    for _ in range(OPERATIONS):
        starts.prepare()
        before_ns = time.thread_time_ns()
        operation()
        times_ms.append((time.thread_time_ns() - before_ns) / 1e6)
    return times_ms


if __name__ == "__main__":
    main()
