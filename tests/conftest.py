"""Markers by directory, the ``--fast`` option, and the rules for generated examples."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings
from structlog.dev import ConsoleRenderer, plain_traceback

from tests.support.clients.tls import share_context
from tests.support.polling import SLOWNESS, measured_slowness, scaled
from tests.support.processes.prepared_services import BY_DAY
from tests.support.sharers import sharers_together

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler.protocol import Scheduling

pytest_plugins = (
    "tests.support.processes.brokers",
    "tests.support.processes.descendants",
    "tests.support.processes.postgres",
    "tests.support.processes.prepared_commands",
)

_ROOT = Path(__file__).parent

#: Markers of all tests below a directory; a test gets those of every directory above it.
_BY_DIRECTORY = {
    "architecture": ("architecture",),
    "contracts": ("contract",),
    "e2e": ("e2e", "mlx"),
    "e2e/agent_clis": ("claude",),
    "flakes": ("architecture",),
    "integration": ("integration",),
    "integration/mlx": ("mlx",),
    "mutation": ("architecture",),
    "real": ("mlx", "real"),
    "simulation": ("simulation",),
    "supply_chain": ("architecture",),
    "unit": ("unit",),
    "unit/worker/engine/mlx/sampling": ("mlx",),
}
#: Markers of all tests that use a fixture, directly or through another one.
_BY_FIXTURE = {"redis_url": "redis", "postgres": "postgres"}
#: Markers of tests with a parameter of this value.
_BY_PARAMETER = {"redis": "redis", "postgres": "postgres"}

#: Directories that ``--fast`` leaves out; their tests start processes or run the model.
_SLOW = (
    "architecture",
    "e2e",
    "flakes",
    "integration",
    "mutation",
    "real",
    "supply_chain",
    "unit/worker/engine/mlx/sampling",
)
#: Markers that ``--fast`` leaves out in the other directories.
_SLOW_MARKERS = ("mlx", "postgres", "redis")

# A busy machine must not fail a test: no test asserts how long an example takes.
settings.register_profile(
    "full", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", settings.get_profile("full"), max_examples=200)
settings.register_profile("fast", settings.get_profile("full"), max_examples=20)
# A mutant needs one example that fails, and the next run the same examples.
settings.register_profile(
    "mutation",
    settings.get_profile("fast"),
    max_examples=10,
    phases=(Phase.explicit, Phase.generate),
    derandomize=True,
    database=None,
)
settings.load_profile("full")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast",
        action="store_true",
        help="run only pure Python: no redis, PostgreSQL, MLX or processes; fewer examples",
    )
    parser.addoption("--nightly", action="store_true", help="run the long enumerations as well")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the Hypothesis profile, measure the machine, and restore Ctrl-C for child processes.

    The processes of xdist and those that tests start inherit the measure.
    A shell that starts a job with ``&`` makes it ignore SIGINT, and its children inherit that.
    """
    if config.getoption("--fast"):
        settings.load_profile("mutation" if "MUTANT_UNDER_TEST" in os.environ else "fast")
    elif config.getoption("--nightly"):
        settings.load_profile("nightly")
    else:
        os.environ[BY_DAY] = "yes"
    if not config.getoption("--fast"):
        share_context()
    os.environ.setdefault(SLOWNESS, f"{measured_slowness():.2f}")
    if config.option.timeout is None:
        config.option.timeout = scaled(float(config.getini("timeout")))
    # Tests have a home directory of their own, and so a configuration directory in it.
    os.environ.pop("XDG_CONFIG_HOME", None)
    # A second of work for each logged exception, where rich renders the local variables too.
    ConsoleRenderer.get_active().exception_formatter = plain_traceback
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Give the files that share services to one process."""
    return sharers_together(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_report_header() -> str:
    """Return the factor of all deadlines of this run."""
    return f"deadlines: {os.environ[SLOWNESS]} times those of an idle machine"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave slow directories out before they are imported."""
    if config.getoption("--fast") and any(collection_path == _ROOT / path for path in _SLOW):
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector: all that collection makes lasts to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test, and deselect what ``--fast`` leaves out."""
    for item in items:
        for marker in sorted(_markers_of(item)):
            item.add_marker(marker)
    if not config.getoption("--nightly"):
        late = {item for item in items if item.get_closest_marker("nightly")}
        config.hook.pytest_deselected(items=list(late))
        items[:] = [item for item in items if item not in late]
    if not config.getoption("--fast"):
        return
    slow = {item for item in items if any(map(item.get_closest_marker, _SLOW_MARKERS))}
    config.hook.pytest_deselected(items=list(slow))
    items[:] = [item for item in items if item not in slow]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape captured text that is not valid Unicode: reports travel between processes as UTF-8."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report


def _markers_of(item: pytest.Item) -> set[str]:
    """Return what the directory, the fixtures and the parameters of a test imply."""
    markers = set(_markers_below(item.path))
    fixtures = getattr(item, "fixturenames", ())
    markers |= {marker for name, marker in _BY_FIXTURE.items() if name in fixtures}
    callspec = getattr(item, "callspec", None)
    values = [] if callspec is None else list(callspec.params.values())
    markers |= {marker for value, marker in _BY_PARAMETER.items() if value in values}
    return markers


@cache
def _markers_below(path: Path) -> frozenset[str]:
    """Return what the directories above a file imply."""
    inside = path.relative_to(_ROOT).as_posix()
    below = (names for place, names in _BY_DIRECTORY.items() if inside.startswith(f"{place}/"))
    return frozenset(name for names in below for name in names)
