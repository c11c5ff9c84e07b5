"""Refuses large files in the repository: ``python -m tests.supply_chain.large_files``.

A clone keeps a large file for ever, also after it is deleted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.supply_chain.locked import ROOT
from tests.supply_chain.secret_scan import files_of

#: Size from which a file needs a reason, in bytes.
BYTES_MAX: Final = 300_000
#: The reviewed large files, with the size up to which each was reviewed.
ALLOWED: Final = MappingProxyType(
    {
        "worker/demo_model/model.safetensors": 6_100_000,
        "docs/site/assets/vendor/mermaid.js": 2_600_000,
    }
)


def too_large(root: Path, names: Iterable[str]) -> Iterator[str]:
    """Yield a line for each file beyond its limit."""
    for name in names:
        file = root / name
        limit = ALLOWED.get(name, BYTES_MAX)
        if file.is_file() and not file.is_symlink() and file.stat().st_size > limit:
            yield f"{name}: {file.stat().st_size:,} bytes, the limit is {limit:,}"


def main() -> int:
    """Look at all tracked and new files; return 1 if one is too large."""
    found = [*too_large(ROOT, files_of(ROOT))]
    for line in found:
        print(line)  # noqa: T201 - a command
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
