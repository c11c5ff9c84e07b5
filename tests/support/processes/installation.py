"""The packages of the project, and environments outside of the checkout that have them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.polling import scaled
from tests.support.processes.service import Service

ROOT: Final = Path(__file__).parents[3]
#: An installation with all packages took eight minutes on a busy machine.
_WITHIN_S: Final = 1800.0
_DEPENDENCIES: Final = "dependencies.pth"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """The files of a build.

    Attributes:
        wheel: The wheel.
        sdist: The source package, if it was built.
    """

    wheel: Path
    sdist: Path | None = None


def build(source: Path, directory: Path, *, with_sdist: bool = False) -> Packages:
    """Build the packages of a source tree.

    Args:
        source: A checkout, or an unpacked source package.
        directory: Where to write the files.
        with_sdist: Whether to build the source package too.
    """
    targets = ["-t", "wheel", *(["-t", "sdist"] if with_sdist else [])]
    run([sys.executable, "-m", "hatchling", "build", "-d", str(directory), *targets], source)
    (wheel,) = directory.glob("semantic-*.whl")
    sdists = [*directory.glob("semantic-*.tar.gz")]
    return Packages(wheel=wheel, sdist=sdists[0] if sdists else None)


def install_alone(wheel: Path, directory: Path) -> Path:
    """Install a wheel without its dependencies, and return the interpreter.

    The environment imports the dependencies from that of the tests, and nothing of the checkout:
    the ``.pth`` files there, such as that of an editable installation, have no effect here.
    """
    run([sys.executable, "-m", "venv", "--without-pip", str(directory)], directory.parent)
    python = directory / "bin" / "python"
    (site,) = directory.glob("lib/python*/site-packages")
    shared = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / _DEPENDENCIES).write_text("\n".join(shared))
    options = ["--no-deps", "--no-index", "--no-compile", "--quiet"]
    run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", *options, str(wheel)],
        directory.parent,
    )
    return python


def installed_service(python: Path, directory: Path) -> Service:
    """Return the service of an environment, to be started in a directory of its own."""
    return Service(
        directory / "data",
        env={"PYTHONPATH": ""},
        python=str(python),
        command=(str(python.with_name("semantic")), "serve"),
        directory=directory,
    )


def run(command: list[str], directory: Path, **variables: str) -> str:
    """Run a command outside of the tests' import path, and return its output."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=directory,
        env=env | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(_WITHIN_S),
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout
