"""What a standby of the worker imports before its activation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[3]

#: Prints the modules that a standby has imported, and those that its activation and a load add.
_PROGRAM = """
import json, sys
from worker.standby import preload
preload()
before = set(sys.modules)
import worker.process, worker.composition
print(json.dumps([sorted(before), sorted(set(sys.modules) - before)]))
"""


def test_standby_has_every_library_except_mlx() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", _PROGRAM], cwd=_ROOT, check=True, capture_output=True, text=True
    )
    before, added = json.loads(printed.stdout)
    assert "transformers" in packages(before)
    assert not packages(before) & {"mlx", "mlx_lm"}
    own = {"domain", "ops", "worker"}
    standard_library = set(sys.stdlib_module_names)
    assert packages(added) - standard_library == {"mlx", "mlx_lm"} | own
    assert not printed.stderr, "the lines of a standby look like those of a worker"


def packages(modules: list[Any]) -> set[str]:
    return {name.partition(".")[0] for name in modules}
