"""``ServiceAccess`` agrees with the settings, whatever the sources."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ops.cli.client import ServiceAccess, read_access
from ops.settings.places import user_config_file
from ops.settings.settings import ConfigFileError, Settings, load_settings
from ops.settings.trusted_files import trust

HOSTS = st.sampled_from(["127.0.0.1", "::1", "localhost", ""])
PORTS = st.sampled_from(
    [0, 8000, 65_535, 65_536, -1, "8123", "x", " 8123", "\uff18", "+1", 1.0, True]
)
KEYS = st.sampled_from(
    [
        [],
        ["k" * 16],
        ["me=" + "k" * 20, "other-key-of-16-chars"],
        ["me=sha256:" + "0" * 64, "another-key-of-16-c"],
        "no-list",
        [1],
    ]
)
SERVERS = st.fixed_dictionaries({}, optional={"host": HOSTS, "port": PORTS, "api_keys": KEYS})
FILES = st.fixed_dictionaries(
    {},
    optional={
        "data_dir": st.sampled_from(["/data/a", "b", "~/c", ""]),
        "api_key": st.sampled_from(["", "own-key"]),
        "server": SERVERS,
        "config": st.just("other.toml"),
        "unknown": st.just(1),
    },
)
VARIABLES = st.fixed_dictionaries(
    {},
    optional={
        "SEMANTIC_DATA_DIR": st.sampled_from(["/data/env", "env", ""]),
        "semantic_api_key": st.sampled_from(["", "key-of-env"]),
        "SEMANTIC_SERVER__HOST": HOSTS,
        "SEMANTIC_SERVER__PORT": PORTS.map(str),
        "SEMANTIC_Server__api_keys": KEYS.map(json.dumps),
        "SEMANTIC_SERVER": st.just('{"port": 77}'),
        "SEMANTIC_CONFIG": st.sampled_from(["", "named.toml", "missing.toml"]),
    },
)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


def _toml(values: dict[str, Any]) -> str:
    tables = {name: table for name, table in values.items() if isinstance(table, dict)}
    lines = [
        f"{name} = {json.dumps(value)}" for name, value in values.items() if name not in tables
    ]
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines)


def _settings(overrides: dict[str, Any]) -> Settings | None:
    try:
        return load_settings(**overrides)
    except (ValidationError, ValueError, ConfigFileError):
        return None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    variables=VARIABLES,
    here=FILES,
    user=FILES,
    named=FILES,
    data_dir=st.sampled_from([None, Path("/data/option")]),
    config=st.sampled_from([None, None, Path("named.toml")]),
)
def test_access_is_that_of_the_settings_or_left_to_them(
    variables: dict[str, str],
    here: dict[str, Any],
    user: dict[str, Any],
    named: dict[str, Any],
    data_dir: Path | None,
    config: Path | None,
) -> None:
    user_config_file().parent.mkdir(parents=True, exist_ok=True)
    user_config_file().write_text(_toml(user))
    Path("semantic.toml").write_text(_toml(here))
    Path("named.toml").write_text(_toml(named))
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.upper().startswith("SEMANTIC"):
                patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        found = read_access(data_dir, config)
        given_values = {"data_dir": data_dir, "config": config}
        wanted = _settings({name: value for name, value in given_values.items() if value})
    if found is not None and wanted is not None:
        assert found == ServiceAccess(
            data_dir=wanted.data_dir,
            host=wanted.server.host,
            port=wanted.server.port,
            own_key=wanted.own_key,
        )


def _user_file(text: str) -> None:
    user_config_file().parent.mkdir(parents=True)
    user_config_file().write_text(text)


def test_plain_sources_are_read_without_the_settings() -> None:
    _user_file('[server]\nport = 8123\napi_keys = ["me=0123456789abcdef"]\n')
    found = read_access(Path("/data"), None)
    assert found == ServiceAccess(
        data_dir=Path("/data"), host="127.0.0.1", port=8123, own_key="0123456789abcdef"
    )


@pytest.mark.parametrize(
    "text", ["server = 1", "[server]\nport = 'x'", "no toml", "config = 'other.toml'"]
)
def test_what_is_not_plain_is_left_to_the_settings(text: str) -> None:
    _user_file(text)
    assert read_access(None, None) is None


def test_files_of_the_working_directory_are_not_read() -> None:
    Path("semantic.toml").write_text("[server]\nport = 9\n")
    Path(".env").write_text("SEMANTIC_SERVER__PORT=9\n")
    trust(Path())
    found = read_access(None, None)
    assert found is not None
    assert found.port == 8000
