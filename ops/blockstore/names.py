"""File names of blocks: ``<model>/<2 hex>/<hash>-<parent>-<tokens>.kv``.

The name has all that a search needs, so blocks are found by hash or parent without opening a file,
and a start with a hundred thousand blocks reads directories only.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import NamedTuple

from domain.kv.hashing import BlockHash
from ops.blockstore.blocks import MODEL_CHARS

#: The parent in the name of a context's first block.
ROOT = "root"

_BLOCK = re.compile(r"([0-9a-f]{64})-([0-9a-f]{64}|root)-([1-9][0-9]{0,5})\.kv")
_DRAFT = re.compile(r"\.([1-9][0-9]{0,9})-[0-9a-f]{16}\.tmp")
_MODEL = re.compile(rf"[0-9a-f]{{{MODEL_CHARS}}}")
_FAN = re.compile(r"[0-9a-f]{2}")


class BlockName(NamedTuple):
    """The properties in a file's name."""

    hash: BlockHash
    parent: BlockHash | None
    tokens: int


def block_path(root: Path, model: str, name: BlockName) -> Path:
    """Return the path of a block of ``model`` below ``root``."""
    digits = name.hash.hex()
    parent = name.parent.hex() if name.parent else ROOT
    return root / model / digits[:2] / f"{digits}-{parent}-{name.tokens}.kv"


def parse_block(file: str) -> BlockName | None:
    """Parse the name of a block's file; ``None`` if it is not such a name."""
    found = _BLOCK.fullmatch(file)
    if found is None:
        return None
    digits, parent, tokens = found.groups()
    return BlockName(
        BlockHash(bytes.fromhex(digits)),
        None if parent == ROOT else BlockHash(bytes.fromhex(parent)),
        int(tokens),
    )


def draft_path(directory: Path) -> Path:
    """Return a unique name for a file that this process writes."""
    return directory / f".{os.getpid()}-{secrets.token_hex(8)}.tmp"


def parse_draft(file: str) -> int | None:
    """Return the pid of a draft's writer; ``None`` if the name is not that of a draft."""
    found = _DRAFT.fullmatch(file)
    return int(found.group(1)) if found else None


def is_model(directory: str) -> bool:
    """Return whether a directory holds the blocks of a model."""
    return _MODEL.fullmatch(directory) is not None


def is_fan(directory: str) -> bool:
    """Return whether a directory is one of the 256 of a model."""
    return _FAN.fullmatch(directory) is not None
