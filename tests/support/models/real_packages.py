"""Files of packages from the Python and npm registries, pinned by version and digest.

Nothing is installed, and nothing of a package runs but ``gguf``, which reads a file format.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Descriptor of standard error: progress goes there, results to standard output.
_STDERR: Final = 2
_PIP: Final = (
    *("-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--require-hashes"),
    *("--only-binary", ":all:", "--retries", "2", "--timeout", "30"),
)
#: What pip prints where a file is not the pinned one.
_PIP_MISMATCH: Final = "DO NOT MATCH THE HASHES"
_REASON_CHARS: Final = 300


class Unavailable(Exception):
    """A registry does not answer, or has no such package; the message has the reason."""


class Mismatch(Exception):
    """A registry sent another file than the pinned one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A file of a registry.

    Attributes:
        sha256: Of the wheel, or of the archive from npm.
        megabytes: Its size, in units of 10^6 bytes.
    """

    name: str
    version: str
    sha256: str
    megabytes: int

    @property
    def is_npm(self) -> bool:
        """Whether it comes from npm; names there have a scope."""
        return self.name.startswith("@")

    def download(self, directory: Path) -> Path:
        """Download the file into a directory of its own, and return it.

        Raises:
            Unavailable: The registry does not answer.
            Mismatch: The file is not the pinned one.
        """
        directory.mkdir()
        if self.is_npm:
            self._from_npm(directory)
        else:
            self._from_index(directory)
        (found,) = (path for path in directory.iterdir() if path.suffix in {".whl", ".tgz"})
        with found.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != self.sha256:
                raise Mismatch(f"{self.name} {self.version} is not the pinned file")
        return found

    def _from_index(self, directory: Path) -> None:
        pinned = directory / "requirements.txt"
        pinned.write_text(f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n")
        done = subprocess.run(
            [sys.executable, *_PIP, "--requirement", str(pinned), "--dest", str(directory)],
            stdout=_STDERR,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if _PIP_MISMATCH in done.stderr:
            raise Mismatch(f"{self.name} {self.version} is not the pinned file")
        if done.returncode != 0:
            raise self._unavailable(done.stderr)

    def _from_npm(self, directory: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise Unavailable(f"{self.name} comes from npm, which is not installed")
        done = subprocess.run(
            [npm, "pack", "--silent", "--pack-destination", ".", f"{self.name}@{self.version}"],
            cwd=directory,
            stdout=_STDERR,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise self._unavailable(done.stderr)

    def _unavailable(self, printed: str) -> Unavailable:
        lines = [line for line in printed.splitlines() if "error" in line.lower()]
        reason = (lines or printed.splitlines() or ["no reason given"])[-1]
        return Unavailable(
            f"{self.name} {self.version} could not be downloaded: {reason[:_REASON_CHARS]}"
        )
