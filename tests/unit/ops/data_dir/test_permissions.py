"""The service's files are for their owner only; other files of the directory stay as they are."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ops.cli.service.doctor import check_permissions
from ops.data_dir.permissions import (
    DIRECTORIES,
    create_private_files,
    drop_links,
    open_to_others,
    tighten,
    use_own_temporary_directory,
)
from tests.support.permissions import umask

OURS = ("events.sqlite3", "events.sqlite3-wal", "heads.key", "serve.json", "worker.json.new")
THEIRS = ("package.json", "notes.txt", "events.csv")


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory that every user may read, with files of the service and of the user."""
    for name in (*OURS, *THEIRS):
        (tmp_path / name).write_text("x")
        (tmp_path / name).chmod(0o644)
    for name in (*DIRECTORIES, "src"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o755)
    tmp_path.chmod(0o755)
    return tmp_path


def test_files_and_directories_of_the_service_are_closed(directory: Path) -> None:
    assert {path.name for path in open_to_others(directory)} == {*OURS, *DIRECTORIES}
    assert tighten(directory) == ()
    assert {_mode(directory / name) for name in OURS} == {0o600}
    assert {_mode(directory / name) for name in DIRECTORIES} == {0o700}
    assert {_mode(directory / name) for name in THEIRS} == {0o644}
    assert {_mode(directory / "src"), _mode(directory)} == {0o755}


def test_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("x")
    elsewhere.chmod(0o644)
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    (data_dir / "serve.json").symlink_to(elsewhere)
    assert tighten(data_dir) == ()
    assert _mode(elsewhere) == 0o644


def test_links_in_the_places_of_written_files_are_deleted(tmp_path: Path) -> None:
    elsewhere, data_dir = tmp_path / "elsewhere", tmp_path / "data"
    (elsewhere / "cache").mkdir(parents=True)
    kept = ("events.sqlite3", "heads.key", "cache", "notes.txt")
    gone = ("serve.lock", "serve.json.new", "worker.step", "heads.last", "events.sqlite3.lock")
    inner = ("logs/00000001.log", "broker/redis.log", "broker/appendonlydir")
    for name in ("logs", "broker"):
        (data_dir / name).mkdir(parents=True)
    for name in (*kept, *gone, *inner):
        (data_dir / name).symlink_to(elsewhere / Path(name).name)
    drop_links(data_dir)
    assert [name for name in (*gone, *inner) if (data_dir / name).is_symlink()] == []
    assert all((data_dir / name).is_symlink() for name in kept)
    drop_links(tmp_path / "missing")


def test_directory_that_does_not_exist_has_no_open_files(tmp_path: Path) -> None:
    assert tighten(tmp_path / "missing") == ()
    assert check_permissions(tmp_path / "missing").verdict == "ok"


def test_doctor_warns_and_names_the_remedy(directory: Path) -> None:
    found = check_permissions(directory)
    assert found.verdict == "warn"
    assert "archive, broker, cache and 8 more" in found.detail
    assert "semantic doctor --mend" in found.detail
    tighten(directory)
    assert check_permissions(directory).verdict == "ok"
    directory.chmod(0o777)
    assert "may replace files" in check_permissions(directory).detail


def test_a_process_creates_files_for_their_owner(tmp_path: Path) -> None:
    with umask(0o022):
        assert create_private_files() == 0o022
        (tmp_path / "new").write_text("x")
        (tmp_path / "folder").mkdir()
    assert (_mode(tmp_path / "new"), _mode(tmp_path / "folder")) == (0o600, 0o700)


def test_temporary_files_are_in_the_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    for named in (None, str(shared), str(tmp_path / "missing")):
        monkeypatch.delenv("TMPDIR", raising=False)
        if named is not None:
            monkeypatch.setenv("TMPDIR", named)
        use_own_temporary_directory(tmp_path / "data")
        assert os.environ["TMPDIR"] == str(tmp_path / "data" / "tmp")
        assert _mode(tmp_path / "data" / "tmp") == 0o700


def test_a_temporary_directory_of_this_user_alone_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    monkeypatch.setenv("TMPDIR", str(own))
    use_own_temporary_directory(tmp_path / "data")
    assert os.environ["TMPDIR"] == str(own)
    assert not (tmp_path / "data").exists()


def test_a_data_directory_that_cannot_be_written_leads_to_a_new_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").write_text("no directory")
    monkeypatch.delenv("TMPDIR", raising=False)
    use_own_temporary_directory(tmp_path / "data")
    made = Path(os.environ["TMPDIR"])
    assert _mode(made) == 0o700
    assert made.name.startswith("semantic-")
    made.rmdir()
