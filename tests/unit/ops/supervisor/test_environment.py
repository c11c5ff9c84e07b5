"""Settings survive the way through a child's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.setting_groups.places import user_config_file
from ops.settings import Settings, load_settings
from ops.supervisor.environment import (
    LARGE_ARRAYS,
    MANY_THREADS,
    allocator_environment,
    child_environment,
    settings_environment,
    with_json_logs,
)


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_a_child_reads_the_very_same_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_settings(
        data_dir=tmp_path,
        server={"port": 8123, "drain_s": 2.5},
        redis={"url": "unix:///a b/r.sock"},
        model={"id": "org/some-model", "aliases": ("sonnet", "opus, the big one")},
    )
    (tmp_path / "semantic.toml").write_text("[server]\nport = 1\n")
    for name, value in settings_environment(before).items():
        monkeypatch.setenv(name, value)
    assert load_settings() == before


def test_child_reads_no_configuration_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = tmp_path / "named.toml"
    named.write_text("[server]\nport = 3\n")
    (tmp_path / "semantic.toml").write_text("[model]\ncontext_length = 64\n")
    inherited = {"semantic_config": "relative.toml"}
    environment = child_environment(inherited, load_settings(config=named), {})
    named.unlink()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert (settings.server.port, settings.model.context_length) == (3, None)
    assert "semantic_config" not in environment


def test_a_child_gets_the_models_that_the_users_file_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMANTIC_MODELS__FOURTH__SOURCE", "org/Fourth")
    named = tmp_path / "named.toml"
    named.write_text("[models.first]\nsource = 'org/First'\n")
    user_config_file().parent.mkdir(parents=True)
    user_config_file().write_text(
        "[models]\npark_max_s = 9\n[models.second]\nsource = 'org/Second'\n"
    )
    before = load_settings(config=named)
    for name, value in child_environment({}, before, {}).items():
        monkeypatch.setenv(name, value)
    assert load_settings().models == before.models
    user_config_file().write_text("[models.third]\nsource = 'org/Third'\n")
    assert set(load_settings().models.tables) == {"first", "third", "fourth"}


def test_a_relative_data_directory_becomes_absolute(tmp_path: Path) -> None:
    variables = settings_environment(Settings(data_dir=Path("here")))
    assert variables["SEMANTIC_DATA_DIR"] == str(tmp_path / "here")


def test_spellings_in_another_case_do_not_win() -> None:
    inherited = {"semantic_server__port": "1", "PATH": "/bin"}
    environment = child_environment(inherited, Settings(), {})
    assert "semantic_server__port" not in environment
    assert environment["SEMANTIC_SERVER__PORT"] == "8000"
    assert environment["PATH"] == "/bin"


def test_extra_variables_beat_the_settings() -> None:
    settings = load_settings(redis={"url": "redis://a"})
    extra = {"SEMANTIC_REDIS__URL": "redis://b"}
    assert child_environment({}, settings, extra)["SEMANTIC_REDIS__URL"] == "redis://b"


@pytest.mark.parametrize("asked", ["auto", "console", "json"])
def test_parts_write_json_which_their_supervisor_renders(asked: str) -> None:
    settings = with_json_logs(load_settings(log={"format": asked, "level": "DEBUG"}))
    assert (settings.log.format, settings.log.level) == ("json", "DEBUG")


def test_glibc_keeps_the_memory_of_large_arrays_and_few_heaps() -> None:
    variables = allocator_environment(LARGE_ARRAYS, {}, "linux")
    assert variables == dict(LARGE_ARRAYS)
    assert all(int(value) > 0 for value in variables.values())
    assert allocator_environment(MANY_THREADS, {}, "linux") == {"MALLOC_ARENA_MAX": "2"}


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_told_nothing(platform: str) -> None:
    assert allocator_environment(LARGE_ARRAYS, {}, platform) == {}


def test_what_the_user_has_set_of_the_allocator_stays() -> None:
    inherited = {"MALLOC_TOP_PAD_": "0", "MALLOC_ARENA_MAX": "8"}
    kept = allocator_environment(LARGE_ARRAYS, inherited, "linux")
    assert kept.keys() == LARGE_ARRAYS.keys() - {"MALLOC_TOP_PAD_"}
    assert allocator_environment(MANY_THREADS, inherited, "linux") == {}
    tuned = {"GLIBC_TUNABLES": "glibc.rtld.nns=4:glibc.malloc.mmap_threshold=4096"}
    assert allocator_environment(LARGE_ARRAYS, tuned, "linux") == {}
