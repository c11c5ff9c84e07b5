"""The wheel with all its dependencies answers after each way to install it: ``make dist-check``."""

from __future__ import annotations

import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support.processes.installation import ROOT, Packages, build, installed_service, run

pytestmark = pytest.mark.nightly

#: Linux needs a backend of MLX by name; on a Mac the extra adds nothing.
EXTRA = "[cpu]"


def by_pip(wheel: Path, directory: Path) -> Path:
    run([sys.executable, "-m", "venv", str(directory / "venv")], directory)
    python = directory / "venv" / "bin" / "python"
    run([str(python), "-m", "pip", "install", "--quiet", f"{wheel}{EXTRA}"], directory)
    return python


def by_pipx(wheel: Path, directory: Path) -> Path:
    homes = {"PIPX_HOME": str(directory / "pipx"), "PIPX_BIN_DIR": str(directory / "bin")}
    run(["pipx", "install", f"{wheel}{EXTRA}"], directory, **homes)
    return (directory / "bin" / "semantic").resolve().with_name("python")


def by_uv(wheel: Path, directory: Path) -> Path:
    homes = {"UV_TOOL_DIR": str(directory / "tools"), "UV_TOOL_BIN_DIR": str(directory / "bin")}
    run(
        ["uv", "tool", "install", "--quiet", f"semantic{EXTRA} @ {wheel.as_uri()}"],
        directory,
        **homes,
    )
    return (directory / "bin" / "semantic").resolve().with_name("python")


@pytest.mark.parametrize("install", [by_pip, by_pipx, by_uv])
def test_installed_service_answers(
    install: Callable[[Path, Path], Path], packages: Packages, tmp_path: Path
) -> None:
    tool = install.__name__.removeprefix("by_")
    if tool != "pip" and shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    service = installed_service(install(packages.wheel, tmp_path), tmp_path).start()
    try:
        body = {"model": "semantic-demo", "max_tokens": 32, "temperature": 0} | {
            "messages": [{"role": "user", "content": "What is the capital of France?"}]
        }
        reply = httpx.post(f"{service.base_url}/v1/chat/completions", json=body, timeout=60).json()
        assert "Paris" in reply["choices"][0]["message"]["content"]
    finally:
        assert service.stop() == 0, service.log()


def test_source_package_builds_the_same_wheel(packages: Packages, tmp_path: Path) -> None:
    both = build(ROOT, tmp_path / "both", with_sdist=True)
    assert both.wheel.read_bytes() == packages.wheel.read_bytes()
    assert both.sdist is not None
    with tarfile.open(both.sdist) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path, filter="data")
    assert any(name.endswith("/tests/conftest.py") for name in names)
    (source,) = tmp_path.glob("semantic-*")
    assert build(source, tmp_path / "again").wheel.read_bytes() == packages.wheel.read_bytes()
