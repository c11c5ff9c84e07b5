"""Other weights under the same name and configuration: never a hit, whatever lies on disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from domain.chat.generation import Outcome
from domain.model.registry import ModelEntry
from ops.blockstore.disk import Disk
from ops.blockstore.store import BlockStore
from ops.clock import SystemClock
from tests.support.models.engine_probe import CollectingSink, ask, finished, submit
from tests.support.models.tiny_models import make_tiny_llama
from worker.cachestore.tier import DiskTier
from worker.engine.engine import BatchEngine
from worker.engine.mlx.model.loader import load_weights
from worker.engine.mlx.runner import BatchRunner

WAIT_S = 60.0
REQUEST = ask("the quick brown fox jumps over the lazy dog " * 12, max_tokens=12)

Say = Callable[[Path], Outcome]


@pytest.fixture
def say(tmp_path: Path) -> Say:
    """Return what asks a model in an engine of its own; all engines share one store."""

    def one(model_dir: Path) -> Outcome:
        clock = SystemClock()
        store = BlockStore(
            tmp_path / "store", budget_bytes=1 << 28, clock=clock, disk=Disk(sync=False)
        )
        tier = DiskTier(store, clock=clock)
        tier.start()
        assert tier.wait_scanned(WAIT_S)
        source, digests = ModelEntry(name="tiny", source=str(model_dir)), tmp_path / "digests.json"
        engine = BatchEngine(
            runner_factory=lambda: BatchRunner(
                load_weights=lambda: load_weights(source, digests=digests),
                prefill_step_tokens=32,
                kv_budget_bytes=1 << 26,
                block_tokens=32,
                tier=tier,
            ),
            sink=CollectingSink(),
            clock=clock,
            max_batch_size=4,
        )
        engine.start()
        try:
            return finished(submit(engine, "job", REQUEST))
        finally:
            engine.close(0)
            assert tier.close(WAIT_S)

    return one


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return make_tiny_llama(tmp_path / "model", seed=7)


def known(outcome: Outcome) -> int:
    return outcome.usage.prompt_tokens - 1


def test_swapped_weights_are_a_miss_and_say_their_own(
    say: Say, model_dir: Path, tmp_path: Path
) -> None:
    first = say(model_dir)
    assert say(model_dir).usage.cached_tokens == known(first)

    other = make_tiny_llama(tmp_path / "other", seed=8)
    weights = model_dir / "model.safetensors"
    before = weights.stat()
    kept = tmp_path / "kept.safetensors"
    shutil.copy2(weights, kept)
    shutil.copyfile(other / "model.safetensors", weights)
    # As cp -p and archives do: neither size nor time tells.
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert weights.stat().st_size == before.st_size

    swapped = say(model_dir)
    assert swapped.usage.cached_tokens == 0
    assert swapped.token_ids == say(other).token_ids
    assert swapped.token_ids != first.token_ids

    shutil.copyfile(kept, weights)
    back = say(model_dir)
    assert back.usage.cached_tokens == known(first)
    assert back.token_ids == first.token_ids


def test_copied_model_and_one_whose_time_changed_keep_their_contexts(
    say: Say, model_dir: Path, tmp_path: Path
) -> None:
    first = say(model_dir)
    copied = say(Path(shutil.copytree(model_dir, tmp_path / "copy")))
    assert (copied.token_ids, copied.usage.cached_tokens) == (first.token_ids, known(first))
    for path in model_dir.iterdir():
        os.utime(path, (1, 1))
    touched = say(model_dir)
    assert (touched.token_ids, touched.usage.cached_tokens) == (first.token_ids, known(first))


def test_other_template_is_a_miss(say: Say, model_dir: Path) -> None:
    first = say(model_dir)
    template = model_dir / "chat_template.jinja"
    template.write_text(template.read_text() + "{# the same words by another template #}")
    again = say(model_dir)
    assert (again.token_ids, again.usage.cached_tokens) == (first.token_ids, 0)
