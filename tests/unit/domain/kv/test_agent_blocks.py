from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.kv.agent_blocks import AgentBlocks
from domain.kv.hashing import BlockHash, block_hash
from domain.values import AgentId

AGENT = AgentId("agent-1")
MANIFEST = AgentBlocks.of(AGENT, "sha256:m", range(10), block_tokens=4)


@given(st.lists(st.integers(min_value=0, max_value=2**32 - 1), max_size=20))
def test_a_manifest_survives_json(ids: list[int]) -> None:
    manifest = AgentBlocks.of(AGENT, "sha256:m", ids, block_tokens=4)
    assert manifest.token_count == len(ids)
    assert AgentBlocks.from_dict(json.loads(json.dumps(manifest.to_dict()))) == manifest


def test_the_blocks_are_the_whole_ones_and_the_tail() -> None:
    first = block_hash("sha256:m", None, [0, 1, 2, 3])
    second = block_hash("sha256:m", first, [4, 5, 6, 7])
    assert MANIFEST.blocks == (first, second, block_hash("sha256:m", second, [8, 9]))


def test_a_context_that_ends_at_a_border_has_no_tail() -> None:
    manifest = AgentBlocks.of(AGENT, "sha256:m", range(8), block_tokens=4)
    assert manifest.tail_hash is None
    assert manifest.blocks == manifest.hashes


@pytest.mark.parametrize(
    "damage",
    [
        {"hashes": ["00"]},
        {"hashes": ["zz" * 32]},
        {"hashes": "00" * 32},
        {"hashes": []},
        {"tail_hash": None},
        {"tail_hash": "00" * 32},
        {"tail_hash": 7},
        {"tail_ids": [8, 10]},
        {"tail_ids": [8, -9]},
        {"tail_ids": [8, "9"]},
        {"tail_ids": None},
        {"token_count": 11},
        {"token_count": 0},
        {"token_count": "10"},
        {"fingerprint": "sha256:other"},
        {"fingerprint": ""},
        {"agent": None},
    ],
    ids=str,
)
def test_a_damaged_manifest_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        AgentBlocks.from_dict(MANIFEST.to_dict() | damage)


@pytest.mark.parametrize("key", sorted(MANIFEST.to_dict()))
def test_a_manifest_without_a_key_is_refused(key: str) -> None:
    data = MANIFEST.to_dict()
    del data[key]
    with pytest.raises(ValueError, match=key):
        AgentBlocks.from_dict(data)


def test_a_tail_without_its_name_is_refused() -> None:
    with pytest.raises(ValueError, match="tail"):
        AgentBlocks(agent=AGENT, fingerprint="m", tail_ids=(1,), token_count=1)


def test_a_name_without_its_tail_is_refused() -> None:
    with pytest.raises(ValueError, match="tail"):
        AgentBlocks(agent=AGENT, fingerprint="m", tail_hash=BlockHash(bytes(32)))
