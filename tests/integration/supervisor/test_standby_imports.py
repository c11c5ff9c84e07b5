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
from worker.main import preload
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


#: Prints how often a scan of its own reads the files anew, and whether it finds the same names.
_TOKENIZERS = """
import sys
from pathlib import Path
from worker.main import import_tokenizers, names_of_models
import_tokenizers()
import transformers
from transformers.utils.import_utils import define_import_structure as scan
names, before = names_of_models(transformers, scan), scan.cache_info().misses
found = scan(str(Path(transformers.__file__).parent / "models" / "__init__.py"))
print(scan.cache_info().misses - before, names == found)
"""


def test_models_of_transformers_are_read_once_and_have_the_same_names() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", _TOKENIZERS], cwd=_ROOT, check=True, capture_output=True, text=True
    )
    assert printed.stdout.split() == ["1", "True"]
