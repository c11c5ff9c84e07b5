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

from domain.kv.hashing import BlockHash, block_hash
from domain.kv.spec import ModelCacheSpec
from domain.model.registry import ModelEntry
from ops.blockstore.blocks import NewBlock, StoredBlock
from ops.blockstore.disk import Disk
from ops.blockstore.store import BlockStore
from ops.clock import SystemClock
from tests.support.builders.blocks import FINGERPRINT
from worker.engine.mlx.kv.codec import decoded, to_raw
from worker.engine.mlx.kv.context_caches import ContextCaches
from worker.engine.mlx.kv.probe import packed_spec, probe_spec
from worker.engine.mlx.kv.window_cache import make_row_caches
from worker.engine.mlx.model.loader import LoadedWeights, load_weights

BLOCK = 128
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
GEMMA_TOKENS = 512
#: Change of the perplexity that keys and values in 8 bits may cause.
SHARE_MAX = 0.005

_log = logging.getLogger(__name__)


def _prose() -> Iterator[str]:
    """Yield documentation of the standard library."""
    for name in MODULES + MORE:
        module = import_module(name)
        for _, one in sorted(vars(module).items()):
            if inspect.isclass(one) or inspect.isfunction(one):
                yield inspect.getdoc(one) or ""


def _text(characters: int) -> str:
    return "\n\n".join(dict.fromkeys(filter(None, _prose())))[:characters]


@pytest.fixture(
    scope="module", params=[256, pytest.param(8192, marks=pytest.mark.nightly)], ids=str
)
def tokens(request: pytest.FixtureRequest, real_model: Callable[[str], Path]) -> list[int]:
    tokenizer = mlx_lm.utils.load_tokenizer(real_model("smollm2-float32"))
    ids: list[int] = tokenizer.encode(_text(8 * request.param))[: request.param]
    assert len(ids) == request.param
    return ids


def test_perplexity_is_that_of_the_cold_context(
    smollm2: LoadedWeights,
    tokens: list[int],
    tmp_path: Path,
) -> None:
    network, found = smollm2.network, {}
    exact = probe_spec(network)
    for name, spec in (("exact", exact), ("8 bits", packed_spec(network, exact))):
        cold = _empty(network, spec)
        _read(network, tokens[: len(tokens) // 2], cold.caches)
        restored = _restored(network, spec, cold, tokens[: len(tokens) // 2], tmp_path / name)
        found[name] = _perplexity(network, tokens, cold)
        assert abs(_perplexity(network, tokens, restored) - found[name]) <= 1e-4
    _log.info("perplexity: %s", found)
    assert abs(found["8 bits"] / found["exact"] - 1) <= SHARE_MAX


@pytest.mark.nightly
def test_perplexity_of_a_network_with_windows_is_nearly_that_of_exact_keys(
    real_model: Callable[[str], Path],
) -> None:
    directory = real_model("gemma3-270m")
    tokens = mlx_lm.utils.load_tokenizer(directory).encode(_text(4 * GEMMA_TOKENS))[:GEMMA_TOKENS]
    network, found = load_weights(ModelEntry(name="tiny", source=str(directory))).network, []
    exact = probe_spec(network)
    for spec in (exact, packed_spec(network, exact)):
        caches = _empty(network, spec)
        _read(network, tokens[: len(tokens) // 2], caches.caches)
        found.append(_perplexity(network, tokens, caches))
    _log.info("perplexity: %s", found)
    assert abs(found[1] / found[0] - 1) <= SHARE_MAX


def _empty(network: Any, spec: ModelCacheSpec) -> ContextCaches:
    return ContextCaches(spec, make_row_caches(network, spec=spec))


def _read(network: Any, tokens: list[int], cache: list[Any]) -> None:
    """Compute tokens in pieces behind a cache."""
    for at in range(0, len(tokens), BLOCK):
        mx.eval(network(mx.array([tokens[at : at + BLOCK]]), cache=cache)[0])


def _perplexity(network: Any, tokens: list[int], context: ContextCaches) -> float:
    """Return the perplexity of the second half, behind a context of the first."""
    half, surprise = len(tokens) // 2, 0.0
    for at in range(half, len(tokens) - 1, BLOCK):
        end = min(at + BLOCK, len(tokens) - 1)
        logits = network(mx.array([tokens[at:end]]), cache=context.caches)[0]
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        drawn = mx.array(tokens[at + 1 : end + 1])[:, None]
        surprise -= float(mx.take_along_axis(logprobs, drawn, axis=-1).sum())
    return math.exp(surprise / (len(tokens) - 1 - half))


def _restored(
    network: Any, spec: ModelCacheSpec, cold: ContextCaches, tokens: list[int], directory: Path
) -> ContextCaches:
    """Return a context with what a store has on disk, after it was written there in blocks."""
    names = _written(cold, tokens, directory)
    store = _store(directory)
    restored = _empty(network, spec)
    for _ in restored.reserve(len(tokens)):
        pass
    for at, name in enumerate(names):
        found = store.get(name, FINGERPRINT)
        assert isinstance(found, StoredBlock), found
        restored.write(decoded(spec, found.payload, BLOCK), at * BLOCK, BLOCK)
    restored.set_tokens(len(tokens))
    return restored


def _written(cold: ContextCaches, tokens: list[int], directory: Path) -> list[BlockHash]:
    store, names = _store(directory), list[BlockHash]()
    for at in range(0, len(tokens), BLOCK):
        ids = tokens[at : at + BLOCK]
        parent = names[-1] if names else None
        names.append(block_hash(FINGERPRINT, parent, ids))
        block = NewBlock(
            hash=names[-1],
            parent=parent,
            fingerprint=FINGERPRINT,
            token_ids=ids,
            payload=to_raw(cold.read(at, at + BLOCK)),
        )
        store.put_many([block])
    return names


def _store(directory: Path) -> BlockStore:
    store = BlockStore(
        directory, budget_bytes=STORE_BYTES, clock=SystemClock(), disk=Disk(sync=False)
    )
    store.scan()
    return store
