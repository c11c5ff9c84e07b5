"""Where blocks are: in the memory and on the disk of each worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from domain.kv.hashing import BlockHash
from domain.values import WorkerId

#: Most blocks that one request names; at 256 tokens a block, a context of a million tokens.
NAMES_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBlocks:
    """Which of some blocks a worker has, in the order in which they were named."""

    worker: WorkerId
    in_memory: tuple[bool, ...]
    on_disk: tuple[bool, ...]


class BlockPlaces(Protocol):
    """Finds and deletes blocks of the workers that have a model.

    Its methods raise ``QueueUnavailable`` where the broker cannot be reached.
    """

    def find(self, names: Sequence[BlockHash]) -> tuple[FoundBlocks, ...]:
        """Return what the workers have that answer in time; empty if none does.

        Args:
            names: At most ``NAMES_MAX``.
        """

    def forget(self, names: Sequence[BlockHash]) -> int:
        """Delete blocks in memory and on disk; return the number of workers that began to.

        A running sequence keeps the blocks that it uses.

        Args:
            names: At most ``NAMES_MAX``.
        """
