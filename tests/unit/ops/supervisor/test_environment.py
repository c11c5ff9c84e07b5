"""Settings survive the way through a child's environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ops.settings.places import user_config_file
from ops.settings.settings import ConfigFileError, Settings, load_part_settings, load_settings
from ops.supervisor.parts import (
    LARGE_ARRAYS,
    MANY_THREADS,
    allocator_environment,
    child_environment,
    read_user_models,
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
        model={"id": "org/some-model"},
        models={"follow": ("sonnet", "opus, the big one")},
    )
    (tmp_path / "semantic.toml").write_text("[server]\nport = 1\n")
    for name, value in settings_environment(before, {}).items():
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


def _write_user_file(text: str) -> None:
    user_config_file().parent.mkdir(parents=True, exist_ok=True)
    user_config_file().write_text(text)


def test_a_child_reads_only_the_models_of_the_users_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_settings(data_dir=tmp_path)
    for name, value in child_environment({}, before, {}).items():
        monkeypatch.setenv(name, value)
    _write_user_file(
        "config = 'other.toml'\n[log]\nurl = 'postgresql://other/log'\n[retention]\ntext_days = 1\n"
        "[server]\nport = 'none'\n[models.coder]\nsource = 'org/Coder'\n"
    )
    settings = load_part_settings()
    assert (settings.log, settings.retention) == (before.log, before.retention)
    assert settings.config == Path(os.devnull)
    assert set(settings.models.tables) == {"coder"}


def test_a_restarted_child_gets_the_models_that_the_users_file_has_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_user_file(
        "[models.changed]\nsource = 'org/Old'\ncontext = 64\n[models.dropped]\nsource = 'org/It'\n"
    )
    before, own = load_settings(data_dir=tmp_path), read_user_models()
    _write_user_file("[models.changed]\nsource = 'org/New'\n")
    for name, value in child_environment({}, before, {}, own).items():
        monkeypatch.setenv(name, value)
    tables = load_part_settings().models.tables
    assert {name: (table.source, table.context) for name, table in tables.items()} == {
        "changed": ("org/New", None)
    }


@pytest.mark.parametrize("half", ["[models.fir", "[models.first]\n", "[models]\nfirst = 1\n"])
def test_a_half_edited_users_file_leaves_a_child_the_models_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], half: str
) -> None:
    monkeypatch.setenv("SEMANTIC_MODELS__SECOND__SOURCE", "org/Second")
    _write_user_file("[models]\nswap = 'on_demand'\n[models.first]\nsource = 'org/First'\n")
    before, own = load_settings(data_dir=tmp_path), read_user_models()
    _write_user_file(half)
    for name, value in child_environment({}, before, {}, own).items():
        monkeypatch.setenv(name, value)
    assert load_part_settings().models == before.models
    assert "[models] is used as it was at the start: " in capsys.readouterr().err


def test_a_half_edited_users_file_stops_a_process_that_no_service_started() -> None:
    _write_user_file("[models.fir")
    with pytest.raises(ConfigFileError, match="not valid TOML"):
        load_part_settings()


def test_a_child_gets_the_models_that_the_users_file_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMANTIC_MODELS__FOURTH__SOURCE", "org/Fourth")
    named = tmp_path / "named.toml"
    named.write_text("[models.first]\nsource = 'org/First'\n")
    user_config_file().parent.mkdir(parents=True)
    user_config_file().write_text(
        "[models]\nswap = 'on_demand'\n[models.second]\nsource = 'org/Second'\n"
    )
    before = load_settings(config=named)
    for name, value in child_environment({}, before, {}).items():
        monkeypatch.setenv(name, value)
    assert load_settings().models == before.models
    user_config_file().write_text("[models.third]\nsource = 'org/Third'\n")
    assert set(load_settings().models.tables) == {"first", "third", "fourth"}


def test_a_relative_data_directory_becomes_absolute(tmp_path: Path) -> None:
    variables = settings_environment(Settings(data_dir=Path("here")), {})
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
