"""A model is loaded as its registration has it: sampling defaults, revision, context."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.utils
import pytest

from domain.chat.request import ChatRequest, Message
from domain.model.registry import ModelEntry
from domain.values import Sampling, SamplingWish
from ops.settings.models import DEMO_MODEL
from tests.support.models.hub_cache import cache_model
from tests.support.models.tiny_models import make_tiny_llama
from tests.support.polling import scaled
from worker.engine.mlx import runner
from worker.engine.mlx.model import loader
from worker.engine.mlx.model.loader import (
    find_model,
    fingerprint_of,
    load_renderer,
    load_weights,
)
from worker.engine.mlx.rows.ragged_states import RowSupport, find_row_support
from worker.engine.mlx.runner import BatchRunner
from worker.engine.ports import ModelLoadError

OWN = {"temperature": 0.9, "top_k": 5, "top_p": 0.8}


def test_the_registration_beats_the_model_and_the_request_beats_both(tmp_path: Path) -> None:
    model_dir = make_tiny_llama(tmp_path / "tiny")
    (model_dir / "generation_config.json").write_text(json.dumps(OWN))
    registered = SamplingWish(temperature=0.2, min_p=0.1)
    source = ModelEntry(name="coder", source=str(model_dir), context_length=64, sampling=registered)
    model = load_weights(source).model
    assert model.sampling == Sampling(temperature=0.2, top_p=0.8, top_k=5, min_p=0.1)
    assert (model.card.id, model.card.context_length) == ("coder", 64)
    asked = SamplingWish(temperature=0.0, top_k=7, seed=3).resolve(model.sampling)
    assert asked == Sampling(temperature=0.0, top_p=0.8, top_k=7, min_p=0.1, seed=3)


def test_the_form_of_keys_and_values_is_a_part_of_the_fingerprint(tmp_path: Path) -> None:
    model_dir = make_tiny_llama(tmp_path / "tiny")
    exact, packed = (
        ModelEntry(name="tiny", source=str(model_dir), kv_bits=bits) for bits in (0, 8)
    )
    loaded = load_weights(packed)
    assert loaded.kv_bits == 8
    assert loaded.model.card.fingerprint == fingerprint_of(packed, model_dir, None)
    assert fingerprint_of(packed, model_dir, None) != fingerprint_of(exact, model_dir, None)


def test_a_greedy_model_samples_where_its_registration_sets_a_temperature(tmp_path: Path) -> None:
    model_dir = make_tiny_llama(tmp_path / "tiny")
    (model_dir / "generation_config.json").write_text('{"do_sample": false}')
    source = ModelEntry(name="tiny", source=str(model_dir), sampling=SamplingWish(temperature=0.5))
    assert load_weights(source).model.sampling.temperature == 0.5


def test_the_pinned_revision_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    new = cache_model(tmp_path, "org/m", commit="b" * 40)
    old = cache_model(tmp_path, "org/m", commit="a" * 40, ref="v1")
    assert find_model("org/m") == new
    assert find_model("org/m", "v1") == find_model("org/m", "a" * 40) == old
    shutil.rmtree(old)
    with pytest.raises(ModelLoadError, match="org/m"):
        find_model("org/m", "v1")


def test_prompts_are_rendered_without_the_weights() -> None:
    source = ModelEntry(name=DEMO_MODEL, source=DEMO_MODEL)
    request = ChatRequest(
        model=DEMO_MODEL,
        messages=(Message(role="user", content="Hello, who are you?"),),
        max_tokens=10,
        sampling=SamplingWish(),
    )
    before = mx.get_active_memory()
    rendered = load_renderer(source)(request)
    assert mx.get_active_memory() <= before  # less where earlier tests left arrays
    assert rendered.tokens == load_weights(source).model.render(request).tokens


def test_a_directory_without_a_tokenizer_is_a_load_error(tmp_path: Path) -> None:
    model_dir = make_tiny_llama(tmp_path / "tiny")
    (model_dir / "tokenizer.json").write_text("{")
    with pytest.raises(ModelLoadError, match="tokenizer"):
        load_renderer(ModelEntry(name="tiny", source=str(model_dir)))


def test_tokenizer_is_loaded_while_the_network_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir = make_tiny_llama(tmp_path / "tiny")
    both = threading.Barrier(2, timeout=scaled(60))
    check, tokenize = find_row_support, mlx_lm.utils.load_tokenizer
    checks = []

    def checked(network: Any) -> RowSupport:
        both.wait()
        checks.append(network)
        return check(network)

    def tokenized(*given: Any, **named: Any) -> Any:
        both.wait()
        return tokenize(*given, **named)

    monkeypatch.setattr(loader, "find_row_support", checked)
    monkeypatch.setattr(runner, "find_row_support", checked)
    monkeypatch.setattr(mlx_lm.utils, "load_tokenizer", tokenized)
    BatchRunner(
        load_weights=lambda: load_weights(ModelEntry(name="tiny", source=str(model_dir)))
    ).load()
    assert len(checks) == 1, "the check computes several forward passes"


def test_broken_tokenizer_ends_the_load_before_large_weights_are_read(tmp_path: Path) -> None:
    network, _ = mlx_lm.utils.load_model(make_tiny_llama(tmp_path / "tiny"))
    broken: Future[object] = Future()
    broken.set_exception(ValueError("no vocabulary"))
    with pytest.raises(ValueError, match="no vocabulary"):
        loader._read_weights(network, broken)


def test_broken_tokenizer_beside_good_weights_is_a_clear_error(tmp_path: Path) -> None:
    model_dir = make_tiny_llama(tmp_path / "tiny")
    (model_dir / "tokenizer.json").write_text("{")
    with pytest.raises(ModelLoadError, match=f"the model in {model_dir} cannot be loaded"):
        load_weights(ModelEntry(name="tiny", source=str(model_dir)))
