"""What is imported: pure modules by ``domain``, public names of libraries, and no heavy ones."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Libraries that take a tenth of a second and more to import. Upgrades of the log need Alembic,
#: downloads the hub's HTTP client, and the worker the rest.
HEAVY = {
    *("alembic", "huggingface_hub.file_download", "huggingface_hub.hf_api", "jsonschema"),
    *("llguidance", "mako", "mlx", "mlx_lm", "numpy", "psycopg", "robyn"),
    *("sqlalchemy.dialects.postgresql", "tokenizers", "transformers"),
}
#: The standby waits with the libraries of a model.
OF_A_MODEL = {
    *("huggingface_hub.file_download", "huggingface_hub.hf_api", "llguidance", "numpy"),
    *("tokenizers", "transformers"),
}
#: All that ``domain`` imports: computation only; no clock, file, socket, process or thread.
PURE = {
    *("__future__", "array", "base64", "binascii", "bisect", "collections", "contextlib"),
    *("dataclasses", "datetime", "decimal", "domain", "enum", "fnmatch", "functools", "hashlib"),
    *(
        "heapq",
        "hmac",
        "ipaddress",
        "itertools",
        "json",
        "math",
        "operator",
        "random",
        "re",
        "struct",
        "sys",
    ),
    *("types", "typing", "urllib.parse"),
}
STARTS = {
    "import api.framework.composition": HEAVY,
    "import ops.supervisor.serve": HEAVY | {"dramatiq", "redis", "sqlalchemy"},
    "import ops.broker.__main__": HEAVY | {"dramatiq", "httpx", "redis", "sqlalchemy"},
    "from worker.main import preload; preload()": HEAVY - OF_A_MODEL,
}


@pytest.mark.parametrize("start", STARTS)
def test_a_process_starts_without_heavy_libraries(start: str) -> None:
    program = f"{start}\nimport sys\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert STARTS[start] & set(done.stdout.split()) == set()


def test_domain_imports_only_what_is_pure() -> None:
    imported = {
        name
        for path in (ROOT / "domain").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in _imported(node)
    }

    assert {name for name in imported if not {name, name.partition(".")[0]} & PURE} == set()


def test_no_private_name_of_dramatiq_is_imported() -> None:
    private = {
        f"{path.relative_to(ROOT)}: {node.module}.{alias.name}"
        for room in ("api", "bench", "domain", "ops", "tests", "worker")
        for path in (ROOT / room).rglob("*.py")
        if "dramatiq" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "dramatiq"
        for alias in node.names
        if alias.name.startswith("_")
    }

    assert private == set()


def _imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module)):
            return [module]
        case _:
            return []
