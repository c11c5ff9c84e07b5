"""The example files have every setting, and each of their lines is one that the settings take."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from docs.site.settings_examples import DEPLOY, EXAMPLES, FILES
from ops.cli.service.config import origins
from ops.settings.settings import Settings, load_settings

#: A setting as a comment, in either file.
_LINE = re.compile(r"^# (?=[\w.]+ ?=)", re.MULTILINE)
_TABLE = re.compile(r"^# (?=\[models\.)", re.MULTILINE)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where no file and no variable of the real user is seen."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in os.environ:
        if name.startswith("SEMANTIC_"):
            monkeypatch.delenv(name)
    return tmp_path


def _live(file: str) -> str:
    """Return a file with every comment sign before a setting removed."""
    return _TABLE.sub("", _LINE.sub("", (DEPLOY / file).read_text()))


def _variables(text: str) -> dict[str, str]:
    """Return the variables that a shell has after it read a file."""
    script = 'set -a; . "$1"; env -0'
    file = Path("variables")
    file.write_text(text)
    done = subprocess.run(
        ["sh", "-c", script, "sh", str(file.absolute())],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        check=True,
    )
    pairs = (one.partition("=") for one in done.stdout.decode().split("\0"))
    return {name: value for name, _, value in pairs if name.startswith("SEMANTIC_")}


def _values(settings: Settings) -> dict[str, str]:
    return {one.name: str(one.value) for one in origins(settings, {})}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_example_file_is_that_of_the_settings(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == FILES[path](), "run: make packages"


def test_untouched_copies_change_nothing() -> None:
    defaults = _values(load_settings())
    Path("copy.toml").write_text((DEPLOY / "semantic.example.toml").read_text())
    assert _values(load_settings(config=Path("copy.toml"))) | {"config": ""} == defaults | {
        "config": ""
    }
    assert _variables((DEPLOY / ".env.example").read_text()) == {}


def test_every_line_of_the_toml_file_is_a_setting_with_its_default() -> None:
    defaults = _values(load_settings())
    Path("all.toml").write_text(_live("semantic.example.toml"))
    given = _values(load_settings(config=Path("all.toml")))
    changed = {name for name in defaults if given[name] != defaults[name]}
    assert changed <= EXAMPLES.keys()
    named = set(_names(tomllib.loads(Path("all.toml").read_text())))
    assert named >= defaults.keys() - {"config"}


def test_every_line_of_the_env_file_is_a_setting_with_its_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defaults = _values(load_settings())
    variables = _variables(_live(".env.example"))
    assert {_setting_of(name) for name in variables} >= defaults.keys()
    del variables["SEMANTIC_CONFIG"]  # names a file that is not there
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    given = _values(load_settings())
    assert {name for name in defaults if given[name] != defaults[name]} <= EXAMPLES.keys()
    assert given["engine.kv_budget_mb"] == str(EXAMPLES["engine.kv_budget_mb"])


def _setting_of(variable: str) -> str:
    return variable.removeprefix("SEMANTIC_").lower().replace("__", ".")


def _names(table: dict[str, object], prefix: str = "") -> list[str]:
    names = []
    for key, value in table.items():
        if isinstance(value, dict) and value:
            names += _names(value, f"{prefix}{key}.")
        else:
            names.append(f"{prefix}{key}")
    return names
