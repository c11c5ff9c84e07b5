"""Environments for load generators and servers of others, whose packages exclude each other."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: What ``bench.blas`` needs beside a server.
_FAST: Final = ("mlx[cpu]==0.32.4", "mlx-lm", "scipy-openblas32==0.3.34.481.3", "structlog")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What is installed together.

    Attributes:
        distribution: Its pinned name; the folder has the same without its version.
        others: Installed beside it.
        interpreters: The first one that runs makes the environment.
    """

    distribution: str
    others: tuple[str, ...] = ()
    interpreters: tuple[str, ...] = ("python3.11", "python3.12", "python3.13", "python3")

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.distribution.partition("==")[0]

    def prepare(self, folder: Path) -> None:
        """Make the environment where it is not there yet.

        Raises:
            LookupError: No interpreter runs, or the packages cannot be installed; with the reason.
        """
        place = folder / self.name
        if (place / "made").exists():
            return
        shutil.rmtree(place, ignore_errors=True)
        found = next(filter(_runs, self.interpreters), None)
        if found is None:
            raise LookupError(f"it needs one of {', '.join(self.interpreters)}")
        _run([found, "-m", "venv", str(place)])
        _run([str(place / "bin/pip"), "install", "--quiet", self.distribution, *self.others])
        (place / "made").touch()


def _runs(interpreter: str) -> bool:
    # A shim of pyenv may be there for a version that is not selected.
    return bool(shutil.which(interpreter)) and not _call([interpreter, "-c", ""]).returncode


def _run(command: list[str]) -> None:
    done = _call(command)
    if done.returncode:
        raise LookupError(f"{Path(command[0]).name}: {done.stderr.strip()[-300:]}")


def _call(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


#: agent-sim has a string that Python 3.11 cannot read, though the package allows Python 3.9.
TOOLS: Final = (
    Environment(
        distribution="cache-pressure==0.6.3",
        interpreters=("python3.12", "python3.13", "python3.14"),
    ),
    Environment(distribution="agentic-bench==0.2.0"),
)
#: Each takes up to 6 GB, since it asks for torch.
SERVERS: Final = (
    Environment(distribution="rapid-mlx==0.16.10", others=_FAST),
    Environment(distribution="mlx-vlm==0.7.10", others=_FAST),
    Environment(distribution="vllm-mlx==0.6.0", others=_FAST),
)
