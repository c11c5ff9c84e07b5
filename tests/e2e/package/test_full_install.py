"""The wheel with all its dependencies answers after each way to install it: ``make dist-check``."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support.clients.npm import missing
from tests.support.polling import scaled
from tests.support.processes.installation import ROOT, Packages, build, installed_service, run

# An installation downloads 300 MB where pip has no cache of it.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(scaled(2400))]

#: Linux needs a backend of MLX by name; on a Mac the extra adds nothing.
EXTRA = "[cpu]"
#: Interpreters beside that of the tests.
OTHERS = ("python3.12", "python3.13", "python3.14")


def by_pip(wheel: Path, directory: Path, interpreter: str = sys.executable) -> Path:
    run([interpreter, "-m", "venv", str(directory / "venv")], directory)
    python = directory / "venv" / "bin" / "python"
    run([str(python), "-m", "pip", "install", "--quiet", f"{wheel}{EXTRA}"], directory)
    return python


def by_pipx(wheel: Path, directory: Path) -> Path:
    homes = {"PIPX_HOME": str(directory / "pipx"), "PIPX_BIN_DIR": str(directory / "bin")}
    # As docs/packages.md writes it: pipx reads an absolute path in another way than a relative one.
    run(["pipx", "install", f"./{wheel.name}{EXTRA}"], wheel.parent, **homes)
    return (directory / "bin" / "semantic").resolve().with_name("python")


def by_uv(wheel: Path, directory: Path, interpreter: str = sys.executable) -> Path:
    homes = {"UV_TOOL_DIR": str(directory / "tools"), "UV_TOOL_BIN_DIR": str(directory / "bin")}
    command = ["uv", "tool", "install", "--quiet", "--python", interpreter]
    run([*command, f"semantic{EXTRA} @ {wheel.as_uri()}"], directory, **homes)
    return (directory / "bin" / "semantic").resolve().with_name("python")


@pytest.mark.parametrize("install", [by_pip, by_pipx, by_uv])
def test_installed_service_answers(
    install: Callable[[Path, Path], Path], packages: Packages, tmp_path: Path
) -> None:
    tool = install.__name__.removeprefix("by_")
    if tool != "pip" and shutil.which(tool) is None:
        missing(f"{tool} is not installed")
    ask(install(packages.wheel, tmp_path), tmp_path)


@pytest.mark.parametrize("interpreter", OTHERS)
def test_installed_service_answers_with_another_python(
    interpreter: str, packages: Packages, tmp_path: Path
) -> None:
    # A shim of pyenv may be there for a version that is not selected.
    if not shutil.which(interpreter) or subprocess.call([interpreter, "-c", ""]) != 0:
        pytest.skip(f"no {interpreter} is installed")
    # uv takes a quarter of the time of pip.
    install = by_uv if shutil.which("uv") else by_pip
    python = install(packages.wheel, tmp_path, interpreter)
    version = run([str(python), "--version"], tmp_path).split()[1]
    assert version.startswith(f"{interpreter.removeprefix('python')}.")
    ask(python, tmp_path)


def ask(python: Path, directory: Path) -> None:
    """Start the service of an environment and ask it a question."""
    service = installed_service(python, directory).start()
    try:
        body = {"model": "semantic-demo", "max_tokens": 32, "temperature": 0} | {
            "messages": [{"role": "user", "content": "What is the capital of France?"}]
        }
        reply = httpx.post(
            f"{service.base_url}/v1/chat/completions", json=body, timeout=scaled(300)
        ).json()
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
