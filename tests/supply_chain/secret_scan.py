"""Looks for secrets in all tracked and new files: ``python -m tests.supply_chain.secret_scan``.

It finds the key formats of common services, private keys, and literals that are assigned to a name
such as ``token`` and look random. ``known_secrets.toml`` lists values that open nothing.
"""

from __future__ import annotations

import hashlib
import math
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.supply_chain.locked import ROOT

#: Formats that leave no doubt.
FORMATS: Final = {
    "private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
    "AWS key id": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "GitHub token": r"\b(?:gh[opsur]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{60,})",
    "Slack token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    "Anthropic key": r"\bsk-ant-[A-Za-z0-9_-]{24,}",
    "OpenAI key": r"\bsk-(?!ant-)(?:proj-)?[A-Za-z0-9_-]{32,}",
    "Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}",
    "Google key": r"\bAIza[0-9A-Za-z_-]{35}\b",
    "webhook secret": r"\bwhsec_[A-Za-z0-9+/]{24,}={0,2}",
    "JSON Web Token": r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    "URL with a password": r"\b[a-z][a-z0-9+]*://[^\s/:@'\"{}<>]+:[^\s/:@'\"{}<>]{8,}@[\w.-]+",
}
#: One of these stands in every value of a format: a search for a word is faster than for a pattern.
_MARKS: Final = {
    "private key": ("-----BEGIN ",),
    "AWS key id": ("AKIA", "ASIA"),
    "GitHub token": (*(f"gh{kind}_" for kind in "opsur"), "github_pat_"),
    "Slack token": tuple(f"xox{kind}-" for kind in "abeoprs"),
    "Anthropic key": ("sk-ant-",),
    "OpenAI key": ("sk-",),
    "Hugging Face token": ("hf_",),
    "Google key": ("AIza",),
    "webhook secret": ("whsec_",),
    "JSON Web Token": ("eyJ",),
    "URL with a password": ("://",),
}
_ASSIGNED: Final = re.compile(
    r"(?i)(?:api_?key|secret|token|passw(?:or)?d|credential)s?\w*[\"']?\s*[:=]\s*[\"']"
    r"([A-Za-z0-9+/=_-]{20,})[\"']"
)
#: Bits per character from which a literal looks random; English words in snake case have less.
RANDOM_BITS: Final = 4.0
#: Larger files are weights and vocabularies.
_BYTES_MAX: Final = 4 << 20
_KNOWN: Final = Path(__file__).with_name("known_secrets.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A possible secret.

    Attributes:
        path: The file.
        line: Line number from 1.
        what: The format.
        digest: First 16 hexadecimal digits of the SHA-256 of the value; the value is not printed.
    """

    path: str
    line: int
    what: str
    digest: str


def scan_text(path: str, text: str) -> Iterator[Finding]:
    """Yield the possible secrets in a text."""
    for what, pattern in FORMATS.items():
        if not any(mark in text for mark in _MARKS[what]):
            continue
        for match in re.finditer(pattern, text):
            yield _finding(path, text, what, match)
    for match in _ASSIGNED.finditer(text):
        if _bits(match[1]) >= RANDOM_BITS and any(map(str.isdigit, match[1])):
            yield _finding(path, text, "random literal", match, group=1)


def scan(root: Path, names: Iterable[str]) -> Iterator[Finding]:
    """Yield the possible secrets in files that are text."""
    for name in names:
        file = root / name
        if not file.is_file() or file.is_symlink() or file.stat().st_size > _BYTES_MAX:
            continue
        content = file.read_bytes()
        if b"\0" not in content[:8192]:
            yield from scan_text(name, content.decode("utf-8", "replace"))


def files_of(root: Path) -> list[str]:
    """Return the tracked files, and the new ones that are not ignored."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others"]
    done = subprocess.run([*command, "--exclude-standard"], capture_output=True, check=True)
    return sorted(name for name in done.stdout.decode().split("\0") if name)


def known() -> dict[str, str]:
    """Return the digests of values that open nothing, with the reason."""
    return dict(tomllib.loads(_KNOWN.read_text(encoding="utf-8"))["known"])


def _finding(path: str, text: str, what: str, match: re.Match[str], *, group: int = 0) -> Finding:
    digest = hashlib.sha256(match[group].encode()).hexdigest()[:16]
    line = 1 + text.count("\n", 0, match.start())
    return Finding(path=path, line=line, what=what, digest=digest)


def _bits(text: str) -> float:
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)


def main() -> int:
    """Scan the repository; return 1 if there is a finding."""
    excused = known()
    found = [one for one in scan(ROOT, files_of(ROOT)) if one.digest not in excused]
    for one in found:
        print(f"{one.path}:{one.line}: {one.what} (digest {one.digest})")  # noqa: T201 - a command
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
