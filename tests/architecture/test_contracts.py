"""The dependency rules of layers.toml hold, and sse bytes are written in one place."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_import_contracts_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(lint), "--no-cache", "--config", "tests/architecture/layers.toml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_only_one_module_writes_sse_frames() -> None:
    writes_sse = re.compile(r'"(data|event): |b"(data|event): ')
    writers = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "api").rglob("*.py")
        if writes_sse.search(path.read_text())
    }
    assert writers <= {"api/http/sse.py"}
