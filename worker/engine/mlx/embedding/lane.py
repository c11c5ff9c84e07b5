"""The lane of vectors: slices on the engine thread, in memory that is set aside at the start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Final

import structlog

from domain.chat.embedding import Vectors
from domain.chat.items import Failed
from domain.errors import Draining, EngineFailure, EngineLost, SemanticError
from domain.model.registry import Pooling
from worker.engine.mlx.embedding.network import EmbeddingNetwork, VectorComputation
from worker.engine.mlx.memory.device import EmbeddingAccount
from worker.engine.ports import SideWork, is_device_error

_log = structlog.get_logger(__name__)

_STOPPED: Final = Failed(error=Draining.code, message="the worker stopped", retryable=True)

#: Least tokens of a slice, also of the first one, as of a piece of a prompt. Each slice reads all
#: weights and starts all kernels, so shorter ones take many times as long together.
SLICE_TOKENS_MIN: Final = 16
#: A slice has at most so many times the tokens of the one before.
GROWTH_MAX: Final = 2
#: Part of the pace that a slice without the processor leaves.
PACE_KEPT: Final = 0.5


@dataclass(slots=True, kw_only=True, eq=False)
class VectorWork:
    """The texts of one request.

    Attributes:
        texts: Token ids of each text.
        on_end: Gets the vectors or the failure; ``None`` after a cancellation. Ignores later ends.
        is_cancelled: Set by any thread.
        began_at: When its first slice began, in seconds on the monotonic clock.
    """

    directory: Path
    pooling: Pooling
    texts: Sequence[Sequence[int]]
    dimensions: int
    memory_bytes: int
    on_end: Callable[[Vectors | Failed | None], None]
    is_cancelled: bool = False
    began_at: float | None = None
    computation: VectorComputation | None = field(default=None, init=False)


@dataclass(slots=True)
class _Loaded:
    """The embedding model in memory; ``loading`` has parts left until it is ``None``."""

    directory: Path
    network: EmbeddingNetwork
    loading: Iterator[None] | None
    pace: float = 0.0
    tokens: int = SLICE_TOKENS_MIN


class EmbeddingLane(SideWork):
    """Computes vectors in slices. The engine thread calls all but ``submit`` and ``abandon``.

    Args:
        clock: Seconds; monotonic.

    Attributes:
        wake: Ends the wait of an idle engine thread.
    """

    def __init__(
        self, account: EmbeddingAccount, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.account = account
        self.wake: Callable[[], None] = lambda: None
        self._clock = clock
        self._inbox: SimpleQueue[VectorWork] = SimpleQueue()
        self._queue: list[VectorWork] = []
        self._loaded: _Loaded | None = None
        self._is_closed = False
        self._submits = Lock()

    def submit(self, work: VectorWork) -> None:
        """Append a request; any thread may call it.

        Raises:
            EngineLost: The lane is closed.
        """
        with self._submits:
            if self._is_closed:
                raise EngineLost("the worker stopped")
            self._inbox.put(work)
        self.wake()

    def run_slice(self, seconds: float) -> bool:
        """Compute for about ``seconds``; see ``SideWork.run_slice``."""
        work = self._next()
        if work is None:
            return False
        self.account.begin_slice()
        try:
            self._advance(work, seconds)
        except Exception as error:
            if is_device_error(error):
                raise
            self._loaded = None
            _log.warning("vectors_failed", exc_info=error)
            self._end(work, _failure_of(error))
        else:
            self._pass_turn()
        finally:
            self.account.end_slice(self._own_bytes())
        return bool(self._queue) or not self._inbox.empty()

    def close(self) -> None:
        """End all requests; the next worker computes them."""
        with self._submits:
            self._is_closed = True
        self._loaded = None
        while (work := self._next()) is not None:
            self._end(work, _STOPPED)

    def abandon(self, failure: Failed) -> None:
        """End all requests without a call of MLX; any thread may call it, also during a slice.

        Only requests that have begun get ``failure``; the next worker computes the others.
        """
        with self._submits:
            self._is_closed = True
            left = list(self._queue)
            while not self._inbox.empty():
                left.append(self._inbox.get())
        for work in left:
            work.on_end(_STOPPED if work.began_at is None else failure)

    def _next(self) -> VectorWork | None:
        """Return the request whose turn it is, after the end of those that were cancelled."""
        with self._submits:
            while not self._inbox.empty():
                self._queue.append(self._inbox.get())
        for work in [one for one in self._queue if one.is_cancelled]:
            self._end(work, None)
        return self._queue[0] if self._queue else None

    def _advance(self, work: VectorWork, seconds: float) -> None:
        work.began_at = work.began_at or self._clock()
        self.account.require(work.memory_bytes)
        loaded = self._load(work.directory)
        if loaded.loading is not None:
            if next(loaded.loading, _END) is _END:
                loaded.loading = None
            return
        if work.computation is None or work.computation.network is not loaded.network:
            work.computation = VectorComputation(
                loaded.network, work.texts, work.pooling, work.dimensions
            )
        began = self._clock()
        fitting = min(int(loaded.pace * seconds), GROWTH_MAX * loaded.tokens)
        loaded.tokens = max(SLICE_TOKENS_MIN, fitting)
        computed = work.computation.advance(loaded.tokens)
        if GROWTH_MAX * computed >= loaded.tokens:  # few tokens measure the overhead alone
            pace = computed / max(1e-6, self._clock() - began)
            loaded.pace = max(pace, PACE_KEPT * loaded.pace)
        if work.computation.is_done:
            self._end(work, work.computation.vectors())

    def _pass_turn(self) -> None:
        """Put the request of this slice behind the others for its model, unless a text is open."""
        first = self._queue[0] if self._queue else None
        if first is None or first.computation is None or first.computation.cache_bytes:
            return
        alike = takewhile(lambda one: one.directory == first.directory, self._queue)
        size = sum(1 for _ in alike)
        self._queue[:size] = [*self._queue[1:size], first]

    def _load(self, directory: Path) -> _Loaded:
        if self._loaded is None or self._loaded.directory != directory:
            self._loaded = None  # freed before the next one is read
            network = EmbeddingNetwork(directory)
            self._loaded = _Loaded(directory, network, network.load())
        return self._loaded

    def _own_bytes(self) -> int:
        if self._loaded is None:
            return 0
        computation = self._queue[0].computation if self._queue else None
        caches = 0 if computation is None else computation.cache_bytes
        return self._loaded.network.weights_bytes + caches

    def _end(self, work: VectorWork, end: Vectors | Failed | None) -> None:
        self._queue.remove(work)
        work.computation = None
        work.on_end(end)


#: What ``next`` returns after the last part of a load.
_END: Final = object()


def _failure_of(error: Exception) -> Failed:
    if isinstance(error, SemanticError):
        return Failed(error=error.code, message=error.message, retryable=error.retryable)
    message = f"the vectors failed: {type(error).__name__}: {error}"
    return Failed(error=EngineFailure.code, message=message, retryable=False)
