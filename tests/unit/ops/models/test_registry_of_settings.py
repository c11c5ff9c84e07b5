"""The registry that the settings, the demo model and the hub's cache make."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from domain.model.registry import ModelEntry
from ops.models.hub_cache import cached_ids, cached_model
from ops.models.registry import (
    LOOK_S,
    RegistryReader,
    configured_models,
    first_model,
    model_registry,
)
from ops.settings.models import DEMO_MODEL
from ops.settings.places import user_config_file
from ops.settings.settings import Settings, load_settings
from tests.support.models.hub_cache import cache_model

CODER = {"source": "org/Coder", "aliases": ("sonnet",), "context": 4096}


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and no configuration of the real user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    return cache


def _settings(**groups: Any) -> Settings:
    return load_settings(**groups)


def _names(settings: Settings, cached: tuple[str, ...] = ()) -> list[str]:
    return [entry.name for entry in model_registry(settings, cached).entries()]


def test_without_configuration_the_demo_model_is_there() -> None:
    assert _names(_settings()) == [DEMO_MODEL]


def test_the_model_of_the_settings_comes_first_and_needs_no_table(tmp_path: Path) -> None:
    (tmp_path / "Gemma").mkdir()
    settings = _settings(
        model={"id": str(tmp_path / "Gemma"), "context_length": 64},
        models={"coder": {"source": "org/Coder"}},
    )
    assert _names(settings) == ["Gemma", "coder", DEMO_MODEL]
    assert first_model(settings) == ModelEntry(
        name="Gemma", source=str(tmp_path / "Gemma"), context_length=64
    )


@pytest.mark.parametrize(
    ("model_id", "name", "aliases"),
    [
        ("coder", "opus", ("sonnet", "opus")),
        ("sonnet", "sonnet", ("sonnet",)),
        ("org/Coder", None, ("sonnet",)),
    ],
)
def test_the_first_model_is_a_registered_one_by_name_alias_or_source(
    model_id: str, name: str | None, aliases: tuple[str, ...]
) -> None:
    settings = _settings(
        model={"id": model_id, "name": name},
        models={"other": {"source": "org/Other"}, "coder": CODER},
    )
    first = first_model(settings)
    assert (first.name, first.source, first.context_length) == ("coder", "org/Coder", 4096)
    assert first.aliases == aliases
    assert [entry.name for entry in configured_models(settings)] == ["coder", "other"]


def test_another_name_for_the_same_source_is_another_model() -> None:
    settings = _settings(model={"id": "org/Coder", "name": "mine"}, models={"coder": CODER})
    assert [entry.name for entry in configured_models(settings)] == ["mine", "coder"]


def test_a_cached_model_is_registered_by_its_id_or_becomes_an_alias() -> None:
    registry = model_registry(_settings(models={"coder": CODER}), ("org/Coder", "org/Free"))
    assert [entry.name for entry in registry.entries()] == [DEMO_MODEL, "coder", "org/Free"]
    assert registry.bind("org/Coder") == "coder"
    assert model_registry(_settings(models={"coder": CODER})).bind("org/Coder") == "coder"
    assert registry.bind("org/Free") == "org/Free"


def test_the_patterns_of_the_settings_follow() -> None:
    registry = model_registry(_settings(models={"follow": ("my-*",)}))
    assert registry.following == ("my-*",)


def test_the_cache_lists_whole_models_only(hub: Path) -> None:
    cache_model(hub, "org/Whole")
    cache_model(hub, "org/Sharded", shards=2)
    cache_model(hub, "org/Torn", shards=2, missing=1)
    cache_model(hub, "org/NoConfig", config=False)
    cache_model(hub, "gpt2")
    (hub / "datasets--org--data").mkdir()
    assert list(cached_ids()) == ["org/Sharded", "org/Whole"]


def test_a_pinned_revision_is_found_by_tag_and_by_commit(hub: Path) -> None:
    new = cache_model(hub, "org/Model", commit="b" * 40)
    old = cache_model(hub, "org/Model", commit="a" * 40, ref="v1")
    assert cached_model("org/Model") == new
    assert cached_model("org/Model", "v1") == cached_model("org/Model", "a" * 40) == old
    assert cached_model("org/Model", "v2") is None
    assert cached_model("no id") is cached_model("../org/Model") is None


def test_the_reader_adds_models_of_other_machines_while_they_serve() -> None:
    now_s, serving = [0.0], [DEMO_MODEL, "elsewhere"]
    reader = RegistryReader(load_settings(), announced=lambda: serving, now_s=lambda: now_s[0])
    assert reader.current().bind("elsewhere") == "elsewhere"
    assert [entry.name for entry in reader.current().entries()] == [DEMO_MODEL, "elsewhere"]
    serving.clear()
    now_s[0] += LOOK_S
    assert reader.current().get("elsewhere") is None


def test_a_broker_that_does_not_answer_delays_one_caller_only() -> None:
    asked, answers = threading.Event(), threading.Event()

    def announced() -> list[str]:
        asked.set()
        answers.wait()
        return ["elsewhere"]

    reader = RegistryReader(load_settings(), announced=announced)
    waiting = threading.Thread(target=reader.current)
    waiting.start()
    asked.wait()
    assert [entry.name for entry in reader.current().entries()] == [DEMO_MODEL]
    answers.set()
    waiting.join()
    assert reader.current().get("elsewhere") is not None


def test_the_reader_sees_changes_of_the_file_and_of_the_cache(hub: Path) -> None:
    now_s = [0.0]
    reader = RegistryReader(load_settings(), now_s=lambda: now_s[0])

    def names() -> list[str]:
        return [entry.name for entry in reader.current().entries()]

    assert names() == [DEMO_MODEL]
    user_config_file().parent.mkdir(parents=True)
    user_config_file().write_text("[models.coder]\nsource = 'org/Coder'\n")
    assert names() == [DEMO_MODEL]  # it looks once in a while
    now_s[0] += LOOK_S
    assert names() == [DEMO_MODEL, "coder"]
    cache_model(hub, "org/New")
    now_s[0] += LOOK_S
    assert names() == [DEMO_MODEL, "coder", "org/New"]
    user_config_file().write_text("[models.coder]\n")
    os.utime(user_config_file(), ns=(1, 1))
    now_s[0] += LOOK_S
    assert names() == [DEMO_MODEL, "coder", "org/New"]  # an invalid file changes nothing
    user_config_file().write_text("")
    os.utime(user_config_file(), ns=(2, 2))
    now_s[0] += LOOK_S
    assert names() == [DEMO_MODEL, "org/New"]


def test_a_source_means_the_model_without_an_adapter() -> None:
    tables = {
        "pirate": {"source": "org/Coder", "adapter": "/adapters/pirate"},
        "plain": {"source": "org/Coder"},
        "formal": {"source": "org/Coder", "adapter": "/adapters/formal"},
    }
    settings = _settings(models=tables, model={"id": "org/Coder"})
    assert first_model(settings).name == "plain"
    registry = model_registry(settings, ("org/Coder",))
    by_source = registry.get("org/Coder")
    assert by_source is not None
    assert (by_source.name, by_source.adapter) == ("plain", None)
    pirate, formal = registry.get("pirate"), registry.get("formal")
    assert pirate is not None
    assert formal is not None
    assert pirate.shares_base(formal)
    assert pirate.shares_base(by_source)
    assert not pirate.shares_base(pirate)
    assert not pirate.shares_base(ModelEntry(name="other", source="org/Other"))


def test_a_source_with_adapters_only_stays_a_model_of_its_own() -> None:
    settings = _settings(models={"pirate": {"source": "org/Coder", "adapter": "/adapters/pirate"}})
    found = model_registry(settings, ("org/Coder",)).get("org/Coder")
    assert found is not None
    assert found.adapter is None
