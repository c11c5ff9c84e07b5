"""What the pool needs of the owner of the arrays."""

from __future__ import annotations

from typing import Protocol

from domain.kv.contexts import Context
from domain.kv.relief import Holder


class ContextArrays(Protocol):
    """The arrays of contexts and checkpoints. The pool calls it without its lock."""

    def keep(self, context: Context, start: int, stop: int, slots: int) -> int | None:
        """Free all but the tokens ``start`` to ``stop``, with room for ``slots``.

        Returns:
            The bytes that are left where some layers are packed; else ``None``.
        """
        ...

    def pack(self, context: Context, needed_bytes: int) -> tuple[bool, int]:
        """Store layers in 8 bits until ``needed_bytes`` are free.

        Returns:
            Whether all layers are packed, and the bytes that are left.
        """
        ...

    def drop(self, holder: Holder) -> None:
        """Free all arrays of a context or a checkpoint."""
        ...
