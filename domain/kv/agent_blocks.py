"""The manifest of an agent: the blocks of its context, recorded after its last job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from domain.kv.hashing import HASH_BYTES, BlockHash, BlockHasher, block_hashes, pack_ids
from domain.values import AgentId

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentBlocks:
    """The context of an agent as names of blocks; several agents may share a block.

    Attributes:
        agent: The agent.
        fingerprint: Fingerprint of the model that computed the blocks.
        hashes: Names of the whole blocks, in order.
        tail_hash: Name of the partly filled block after them, if there is one.
        tail_ids: Its tokens.
        token_count: Length of the whole context.

    Raises:
        ValueError: The parts are inconsistent.
    """

    agent: AgentId
    fingerprint: str
    hashes: tuple[BlockHash, ...] = ()
    tail_hash: BlockHash | None = None
    tail_ids: tuple[int, ...] = ()
    token_count: int = 0

    def __post_init__(self) -> None:
        if not self.agent or not self.fingerprint:
            raise ValueError("a manifest names its agent and its fingerprint")
        if any(len(name) != HASH_BYTES for name in self.hashes):
            raise ValueError("a block is named by 32 bytes")
        in_blocks = self.token_count - len(self.tail_ids)
        if in_blocks < 0:
            raise ValueError("the tail is longer than the context")
        if in_blocks % max(1, len(self.hashes)) or (in_blocks != 0) is not bool(self.hashes):
            raise ValueError("the tokens are not those of the blocks and the tail")
        if self.tail_hash != self._tail_name():
            raise ValueError("the tail's name is not that of its tokens")

    @classmethod
    def of(
        cls, agent: AgentId, fingerprint: str, token_ids: Sequence[int], block_tokens: int
    ) -> AgentBlocks:
        """Return the manifest of a context given by its tokens."""
        names = block_hashes(fingerprint, token_ids, block_tokens)
        return cls(
            agent=agent,
            fingerprint=fingerprint,
            hashes=names.full,
            tail_hash=names.tail_hash,
            tail_ids=names.tail_ids,
            token_count=len(token_ids),
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AgentBlocks:
        """Return the manifest that ``to_dict`` described.

        Raises:
            ValueError: The data is no manifest.
        """
        try:
            tail_hash = data["tail_hash"]
            return cls(
                agent=AgentId(_typed(str, data["agent"])),
                fingerprint=_typed(str, data["fingerprint"]),
                hashes=tuple(_name(digits) for digits in _typed(list, data["hashes"])),
                tail_hash=None if tail_hash is None else _name(tail_hash),
                tail_ids=tuple(_typed(list, data["tail_ids"])),
                token_count=_typed(int, data["token_count"]),
            )
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not a manifest of blocks: {error!r}") from error

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest as JSON values, names in hexadecimal."""
        return {
            "agent": self.agent,
            "fingerprint": self.fingerprint,
            "hashes": [name.hex() for name in self.hashes],
            "tail_hash": None if self.tail_hash is None else self.tail_hash.hex(),
            "tail_ids": list(self.tail_ids),
            "token_count": self.token_count,
        }

    @property
    def blocks(self) -> tuple[BlockHash, ...]:
        """Names of all blocks, the tail last."""
        return self.hashes if self.tail_hash is None else (*self.hashes, self.tail_hash)

    def _tail_name(self) -> BlockHash | None:
        if not self.tail_ids:
            return None
        parent = self.hashes[-1] if self.hashes else None
        return BlockHasher(self.fingerprint).of_packed(parent, pack_ids(self.tail_ids))


def _name(digits: str) -> BlockHash:
    return BlockHash(bytes.fromhex(digits))


def _typed(kind: type[_Value], value: object) -> _Value:
    if isinstance(value, kind):
        return value
    raise TypeError(f"{value!r} is no {kind.__name__}")
