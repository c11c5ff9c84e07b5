"""A configuration file of a directory counts only with the content that the user trusted."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from ops.settings.places import user_config_dir
from ops.settings.trusted_files import (
    FILE_BYTES_MAX,
    NotTrustable,
    distrust,
    read_directory,
    trust,
)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    directory = tmp_path / "cloned"
    directory.mkdir()
    (directory / "semantic.toml").write_text("data_dir = 'x'\n[webhooks]\nurls = []\n")
    return directory


def _ignored(directory: Path) -> str:
    found, lines = read_directory(directory)
    assert found is None
    return "\n".join(lines)


def test_unknown_file_is_named_and_not_read(repository: Path) -> None:
    assert _ignored(repository) == (
        f"{repository / 'semantic.toml'} is not trusted and not read; to use it: semantic config"
        " trust"
    )


def test_trusted_file_is_read_until_it_changes(repository: Path) -> None:
    file = repository / "semantic.toml"
    assert trust(repository) == (file, ("data_dir", "webhooks.urls"))
    found, lines = read_directory(repository)
    assert found is not None
    assert (found.path, found.content, lines) == (file, file.read_bytes(), ())
    file.write_text("data_dir = 'y'\n")
    assert "has changed since you trusted it" in _ignored(repository)
    trust(repository)
    assert read_directory(repository)[0] is not None
    assert distrust(repository)
    assert not distrust(repository)
    assert "is not trusted" in _ignored(repository)


def test_trust_belongs_to_one_place(repository: Path, tmp_path: Path) -> None:
    trust(repository)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "semantic.toml").write_bytes((repository / "semantic.toml").read_bytes())
    assert "is not trusted" in _ignored(copy)
    link = tmp_path / "link"
    link.symlink_to(repository)
    assert read_directory(link)[0] is not None


def test_content_is_part_of_no_trust_without_its_file(repository: Path) -> None:
    trust(repository)
    (repository / "semantic.toml").unlink()
    assert read_directory(repository) == (None, ())
    (repository / "semantic.toml").mkdir()
    assert "has changed" in _ignored(repository)


def test_pipe_and_large_file_are_not_waited_for(repository: Path) -> None:
    file = repository / "semantic.toml"
    file.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(NotTrustable, match="larger than"):
        trust(repository)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(NotTrustable, match="no regular file"):
        trust(repository)
    assert "is not trusted" in _ignored(repository)


@pytest.mark.parametrize("content", ["a = = 1", "a = " + "[" * 5000])
def test_file_that_is_no_toml_cannot_be_trusted(repository: Path, content: str) -> None:
    (repository / "semantic.toml").write_text(content)
    with pytest.raises(NotTrustable, match="not valid TOML"):
        trust(repository)


def test_variables_in_a_dotenv_file_are_named(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OTHER=1\n")
    assert read_directory(tmp_path) == (None, ())
    (tmp_path / ".env").write_text("semantic_server__port=9\n")
    assert f"{tmp_path / '.env'} is not read" in _ignored(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", '{"files": []}', "\x00"])
def test_damaged_store_trusts_nothing_and_is_written_anew(repository: Path, content: str) -> None:
    trust(repository)
    store = user_config_dir() / "trusted.json"
    assert stat.S_IMODE(store.stat().st_mode) == 0o600
    store.write_text(content)
    assert "is not trusted" in _ignored(repository)
    trust(repository)
    assert list(json.loads(store.read_text())["files"]) == [str(repository / "semantic.toml")]
    assert read_directory(repository)[0] is not None
