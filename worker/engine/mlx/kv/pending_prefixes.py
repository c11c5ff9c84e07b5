"""Prefixes that running sequences will hold soon, so that a like prompt waits for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from domain.kv.hashing import BlockHash, pack_ids
from domain.kv.pool import BlockPool


class PendingPrefixes:
    """Names of prefixes that are being computed or restored. Belongs to the engine thread.

    Of a model with full-attention layers alone these are blocks, and the end of the prompt. Of
    other models they are the checkpoints to come.

    Args:
        pool: The contexts in memory.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._size = pool.spec.block_tokens
        #: By name: the number of tokens up to its end.
        self._pending: dict[BlockHash, int] = {}
        #: Waiting prompts, each with the name that it waits for, by ``id`` of their tokens.
        self._waiting: dict[int, tuple[Sequence[int], BlockHash]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(
        self,
        token_ids: Sequence[int],
        names: Sequence[BlockHash],
        restored: int,
        pauses: Collection[int],
    ) -> dict[BlockHash, int]:
        """Add the prefixes of a prompt; return those that no other sequence is to hold.

        Args:
            token_ids: The prompt without its last token.
            names: Hashes of its whole blocks.
            restored: Tokens that its row holds already.
            pauses: Positions at which checkpoints are made.
        """
        ends = pauses if self._pool.spec.has_ends else (len(token_ids),)
        found = {} if self._pool.spec.has_ends else self._blocks(names)
        found |= {self._name(token_ids, names, end): end for end in ends if end > restored}
        new = {
            name: end
            for name, end in found.items()
            if end > restored and name not in self._pending and name not in self._pool
        }
        self._pending |= new
        return new

    def remove(self, names: Collection[BlockHash]) -> None:
        """Remove prefixes that are held now, or will not be."""
        for name in names:
            self._pending.pop(name, None)

    def must_wait(self, token_ids: Sequence[int]) -> bool:
        """Return whether more of a prompt is pending than memory has.

        A call with the same object as before is cheap until the answer may have changed.
        """
        if not self._pending:
            self._waiting.clear()
            return False
        tokens, awaited = self._waiting.get(id(token_ids), (None, None))
        if tokens is token_ids and awaited in self._pending:
            return True
        self._waiting.pop(id(token_ids), None)
        for name in self._prefixes(token_ids[:-1]):
            if name in self._pending:
                self._waiting[id(token_ids)] = token_ids, name
                return True
        return False

    def clear(self) -> None:
        """Forget all prefixes and prompts."""
        self._pending.clear()
        self._waiting.clear()

    def _prefixes(self, wanted: Sequence[int]) -> Iterator[BlockHash]:
        """Yield the names of a prompt that may be pending."""
        if self._pool.spec.has_ends:
            names = list(self._pool.hasher.chain(pack_ids(wanted), self._size))
            for end in sorted(set(self._pending.values())):
                if end <= len(wanted):
                    yield self._name(wanted, names, end)
            return
        names = []
        for name in self._pool.hasher.chain(pack_ids(wanted), self._size):
            yield name
            names.append(name)
            if name not in self._pending and name not in self._pool:
                return
        if wanted:
            yield self._name(wanted, names, len(wanted))

    def _blocks(self, names: Sequence[BlockHash]) -> dict[BlockHash, int]:
        return {name: (at + 1) * self._size for at, name in enumerate(names)}

    def _name(self, token_ids: Sequence[int], names: Sequence[BlockHash], end: int) -> BlockHash:
        """Return the name of the first ``end`` tokens, as of a checkpoint there."""
        block = (end - 1) // self._size
        parent = names[block - 1] if block else None
        return self._pool.checkpoints.name_of(parent, token_ids[block * self._size : end])
