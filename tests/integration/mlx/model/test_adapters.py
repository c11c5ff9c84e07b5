"""LoRA adapters: equal to mlx-lm's, apart in the cache, and quick to change."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.utils
import pytest

from domain.model.registry import ModelEntry
from tests.support.models.adapters import make_adapter
from tests.support.models.tiny_models import make_tiny_llama
from worker.engine.mlx.model.adapters import KeptBase
from worker.engine.mlx.model.loader import load_weights
from worker.engine.ports import ModelLoadError

PROMPT = mx.array([[5, 9, 100, 42, 7, 300]])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("base"))


def logits(network: Any) -> mx.array:
    found: mx.array = network(PROMPT)
    mx.eval(found)
    return found


def expected(base: Path, adapter: Path | None) -> mx.array:
    network, _ = mlx_lm.utils.load_model(base)
    return logits(network if adapter is None else mlx_lm.utils.load_adapters(network, str(adapter)))


def loaded(base: Path, adapter: Path | None, kept: KeptBase | None = None) -> Any:
    source = ModelEntry(
        name="tiny", source=str(base), adapter=None if adapter is None else str(adapter)
    )
    return load_weights(source, kept=kept)


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_an_adapter_computes_as_in_mlx_lm(base: Path, tmp_path: Path, kind: str) -> None:
    adapter = make_adapter(tmp_path, base, seed=1, kind=kind)
    found = logits(loaded(base, adapter).network)
    assert mx.array_equal(found, expected(base, adapter))
    assert not mx.allclose(found, expected(base, None))


def test_weights_stay_while_adapters_change(base: Path, tmp_path: Path) -> None:
    adapters = [make_adapter(tmp_path / str(seed), base, seed=seed) for seed in (1, 2)]
    kept = KeptBase()
    first = loaded(base, adapters[0], kept)
    found: list[Any] = []

    def change() -> None:  # as the next worker does, on its own engine thread
        for adapter in (adapters[1], None, adapters[0]):
            again = loaded(base, adapter, kept)
            found.append((again.network is first.network, logits(again.network), adapter))
        mx.clear_streams()

    thread = threading.Thread(target=change)
    thread.start()
    thread.join()
    assert len(found) == 3
    for is_same, got, adapter in found:
        assert is_same
        assert mx.array_equal(got, expected(base, adapter))


def test_changed_files_are_read_again(tmp_path: Path) -> None:
    base, kept = make_tiny_llama(tmp_path), KeptBase()
    first = loaded(base, None, kept)
    make_tiny_llama(base, seed=8)
    again = loaded(base, None, kept)
    assert again.network is not first.network
    assert mx.array_equal(logits(again.network), expected(base, None))


def test_each_adapter_has_a_fingerprint_of_its_own(base: Path, tmp_path: Path) -> None:
    one, two = (make_adapter(tmp_path / str(seed), base, seed=seed) for seed in (1, 2))
    (one / "0000100_adapters.safetensors").write_bytes(b"a checkpoint of the training")
    cards = [loaded(base, adapter).model.card.fingerprint for adapter in (None, one, two)]
    assert len(set(cards)) == 3
    copied = make_adapter(tmp_path / "copy", base, seed=1)
    assert loaded(base, copied).model.card.fingerprint == cards[1]


def test_what_is_no_adapter_is_refused_by_name(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"adapter_config\.json and adapters\.safetensors"):
        loaded(base, tmp_path)
    adapter = make_adapter(tmp_path, base, seed=1)
    config = json.loads((adapter / "adapter_config.json").read_text())
    for change, why in (
        ({"fine_tune_type": "full"}, "mlx_lm.fuse"),
        ({"lora_parameters": {"rank": 4, "alpha": 8}}, "scale"),
        ({"lora_parameters": {**config["lora_parameters"], "rank": 8}}, "does not match"),
    ):
        (adapter / "adapter_config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelLoadError, match=why):
            loaded(base, adapter)
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8}')
    with pytest.raises(ModelLoadError, match="lora_parameters"):
        loaded(base, adapter)
