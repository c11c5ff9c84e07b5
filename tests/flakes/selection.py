"""Which test files depend on time, and pytest's plugin that runs tests in random order.

The plugin is our own: it has seven lines, and a library would be one more package to keep.
"""

from __future__ import annotations

import random
import re
import signal
import threading
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from ops.liveness.child import watch_lifeline

ROOT: Final = Path(__file__).parents[2]
TESTS: Final = ROOT / "tests"
#: Modules whose users start processes or threads, or read clocks.
_TIMED: Final = frozenset(
    {"asyncio", "concurrent", "multiprocessing", "psutil", "signal", "subprocess"}
    | {"threading", "time"}
)
#: Packages of helpers for tests; ``bench`` has clients and faults.
_HELPERS: Final = ("tests.", "bench.")
_IMPORT: Final = re.compile(r"^ *(?:from ([\w.]+) )?import (\([^)]*\)|.+)", re.MULTILINE)
_FIXTURE: Final = re.compile(r"^@pytest\.fixture.*\ndef (\w+)", re.MULTILINE)
_ARGUMENTS: Final = re.compile(r"def \w+\(([^)]*)\)")
_WORD: Final = re.compile(r"[\w.]+")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order-seed", type=int, required=True, help="of the random order")


def pytest_configure() -> None:
    """End with the command that started the round; the processes of xdist have no lifeline."""
    main = threading.main_thread()
    watch_lifeline(lambda: signal.pthread_kill(main.ident or 0, signal.SIGINT))


# Before pytest groups tests by parameters of wide fixtures, so that it starts each service once.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle files, and tests within files; equal in all processes of xdist."""
    chance = random.Random(config.getoption("--order-seed"))
    places = {path: chance.random() for path in sorted({item.path for item in items})}
    chance.shuffle(items)
    items.sort(key=lambda item: places[item.path])


def timed_files() -> list[str]:
    """Return the test files with processes, threads or clocks, as paths below the root.

    Such a file imports one of the modules, imports a helper or a module of the product that does,
    or uses a fixture of such a helper.
    """
    timed = _timed_helpers()
    helpers = [*TESTS.glob("*/**/conftest.py"), *TESTS.glob("support/**/*.py")]
    fixtures = {
        name for path in helpers if _is_timed(path, timed) for name in _FIXTURE.findall(_text(path))
    }
    return [
        path.relative_to(ROOT).as_posix()
        for path in sorted(TESTS.rglob("test_*.py"))
        if _is_timed(path, timed)
        or fixtures & {*_WORD.findall(" ".join(_ARGUMENTS.findall(_text(path))))}
    ]


def _arguments(path: Path) -> frozenset[str]:
    return frozenset(_WORD.findall(" ".join(_ARGUMENTS.findall(_text(path)))))


def _timed_helpers() -> frozenset[Path]:
    """Return the helpers that import one of the modules, themselves or by other helpers."""
    helpers = [path for name in _HELPERS for path in (ROOT / name.strip(".")).rglob("*.py")]
    found = frozenset[Path]()
    while (more := found | {path for path in helpers if _is_timed(path, found)}) != found:
        found = more
    return found


def _is_timed(path: Path, timed: frozenset[Path]) -> bool:
    """Return whether a module imports one of the modules, a timed helper, or a product's module."""
    names = _imports(path)
    if names & _TIMED:
        return True
    for name in names:
        module = ROOT.joinpath(*name.split(".")).with_suffix(".py")
        if name.startswith(_HELPERS):
            if module in timed:
                return True
        elif module.is_file() and _imports(module) & _TIMED:
            return True
    return False


@cache
def _imports(path: Path) -> frozenset[str]:
    """Return the modules that a module imports, and the packages of these."""
    found = set()
    for package, names in _IMPORT.findall(_text(path)):
        for name in _WORD.findall(names):
            found |= {(package or name).partition(".")[0], package, f"{package}.{name}".strip(".")}
    return frozenset(found)


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
