"""What a trained network makes of text after blocks of its context came from the disk."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.models.cache import make_prompt_cache

from domain.kv.hashing import BlockHash, block_hash
from ops.blockstore.blocks import NewBlock, StoredBlock
from ops.blockstore.disk import Disk
from ops.blockstore.store import BlockStore
from ops.clock import SystemClock
from tests.support.builders.blocks import FINGERPRINT
from worker.cachestore.tier import Storage
from worker.engine.mlx.kv.codec import BlockArrays, BlockCodec
from worker.engine.mlx.kv.probe import probe_spec
from worker.engine.mlx.model.loader import LoadedWeights

BLOCK = 256
MODULES = ("argparse", "asyncio", "collections", "decimal", "email", "http.client", "json")
MORE = (
    "logging",
    "pathlib",
    "random",
    "socket",
    "subprocess",
    "statistics",
    "threading",
    "zipfile",
)
STORE_BYTES = 1 << 32

_log = logging.getLogger(__name__)


def _prose() -> Iterator[str]:
    """Yield documentation of the standard library."""
    for name in MODULES + MORE:
        module = import_module(name)
        for _, one in sorted(vars(module).items()):
            if inspect.isclass(one) or inspect.isfunction(one):
                yield inspect.getdoc(one) or ""


@pytest.fixture(
    scope="module", params=[512, pytest.param(8192, marks=pytest.mark.nightly)], ids=str
)
def tokens(request: pytest.FixtureRequest, real_model: Callable[[str], Path]) -> list[int]:
    tokenizer = mlx_lm.utils.load_tokenizer(real_model("smollm2-float32"))
    text = "\n\n".join(dict.fromkeys(filter(None, _prose())))[: 8 * request.param]
    ids: list[int] = tokenizer.encode(text)[: request.param]
    assert len(ids) == request.param
    return ids


def test_perplexity_is_that_of_the_cold_context(
    smollm2: LoadedWeights,
    tokens: list[int],
    tmp_path: Path,
) -> None:
    network, half = smollm2.network, len(tokens) // 2
    cold = make_prompt_cache(network)
    _read(network, tokens[:half], cold)
    contexts = {
        storage: _restored(network, cold, tokens[:half], storage, tmp_path / storage.value)
        for storage in (Storage.EXACT, Storage.INT8)
    }
    expected = _perplexity(network, tokens, cold)
    restored = _perplexity(network, tokens, contexts[Storage.EXACT])
    int8 = _perplexity(network, tokens, contexts[Storage.INT8])
    _log.info("perplexity: cold %.6f, restored %.6f, int8 %.6f", expected, restored, int8)
    assert abs(restored - expected) <= 1e-4
    assert abs(int8 / expected - 1) <= 0.005


def _read(network: Any, tokens: list[int], cache: list[Any]) -> list[mx.array]:
    """Return the logits of tokens, computed in pieces behind a cache."""
    logits = []
    for at in range(0, len(tokens), BLOCK):
        logits.append(network(mx.array([tokens[at : at + BLOCK]]), cache=cache)[0])
        mx.eval(logits[-1])
    return logits


def _perplexity(network: Any, tokens: list[int], cache: list[Any]) -> float:
    """Return the perplexity of the second half, behind a cache of the first."""
    half, surprise = len(tokens) // 2, 0.0
    for at in range(half, len(tokens) - 1, BLOCK):
        end = min(at + BLOCK, len(tokens) - 1)
        logits = network(mx.array([tokens[at:end]]), cache=cache)[0]
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        drawn = mx.array(tokens[at + 1 : end + 1])[:, None]
        surprise -= float(mx.take_along_axis(logprobs, drawn, axis=-1).sum())
    return math.exp(surprise / (len(tokens) - 1 - half))


def _restored(
    network: Any, cache: list[Any], tokens: list[int], storage: Storage, directory: Path
) -> list[Any]:
    """Return a cache with what a store has on disk, after it was written there in blocks."""
    codec = BlockCodec(probe_spec(network), storage)
    names = _written(cache, tokens, codec, directory)
    store = _store(directory)
    blocks = []
    for name in names:
        found = store.get(name, FINGERPRINT)
        assert isinstance(found, StoredBlock), found
        blocks.append(codec.decode(found.payload, BLOCK).tensors)
    restored: list[Any] = make_prompt_cache(network)
    for layer, one in enumerate(restored):
        keys, values = (
            mx.concatenate([block[f"{layer}.{part}"] for block in blocks], axis=2) for part in "kv"
        )
        one.update_and_fetch(keys, values)
        mx.eval(one.keys, one.values)
    return restored


def _written(
    cache: list[Any], tokens: list[int], codec: BlockCodec, directory: Path
) -> list[BlockHash]:
    store, names = _store(directory), list[BlockHash]()
    for at in range(0, len(tokens), BLOCK):
        tensors = {
            f"{layer}.{part}": mx.contiguous(array[:, :, at : at + BLOCK])
            for layer, one in enumerate(cache)
            for part, array in (("k", one.keys), ("v", one.values))
        }
        ids = tokens[at : at + BLOCK]
        parent = names[-1] if names else None
        names.append(block_hash(FINGERPRINT, parent, ids))
        payload = codec.encode(BlockArrays(len(ids), tensors))
        store.put_many(
            [
                NewBlock(
                    hash=names[-1],
                    parent=parent,
                    fingerprint=FINGERPRINT,
                    token_ids=ids,
                    payload=payload,
                )
            ]
        )
    return names


def _store(directory: Path) -> BlockStore:
    store = BlockStore(
        directory, budget_bytes=STORE_BYTES, clock=SystemClock(), disk=Disk(sync=False)
    )
    store.scan()
    return store
