"""What a benchmark shows, printed and kept as JSON for the page, and the machine it ran on."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psutil
import structlog

from ops.supervisor.parts import LARGE_ARRAYS, allocator_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The result of one benchmark.

    Attributes:
        table: Lines of Markdown.
        headline: What is measured, and the figure.
        plots: SVG by file name without its ending.
        figures: What the table is made of, for readers of the file.
    """

    table: Sequence[str]
    headline: tuple[str, str] | None = None
    plots: dict[str, str] = field(default_factory=dict)
    figures: Any = None

    def emit(self, file: Path | None) -> None:
        """Print the table, and write everything to a file if one is given."""
        print("\n".join(self.table), flush=True)
        self.write(file)

    def write(self, file: Path | None) -> None:
        """Write everything to a file if one is given."""
        if file is not None:
            file.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")


def use_worker_allocator() -> None:
    """Restart this program with the worker's allocator environment of ``semantic serve``.

    Returns if the environment is set already, or if this system needs none.
    """
    missing = allocator_environment(LARGE_ARRAYS, os.environ)
    if missing:
        sys.stdout.flush()
        os.execve(sys.executable, sys.orig_argv, os.environ | missing)  # noqa: S606 - ourselves


def log_to_stderr() -> None:
    """Send the engine's log to standard error: standard output is Markdown."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))


def table_lines(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield a Markdown table, each row as soon as it is known.

    A column is aligned to the right where its title begins with ``>``.
    """
    yield "| " + " | ".join(title.removeprefix(">") for title in header) + " |"
    yield "|" + "|".join("--:" if title.startswith(">") else "---" for title in header) + "|"
    for row in rows:
        yield "| " + " | ".join(str(cell) for cell in row) + " |"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, the least and the most."""
    return statistics.median(values), min(values), max(values)


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a Markdown table, each row as soon as it is known."""
    for line in table_lines(header, rows):
        print(line, flush=True)
    print()


def print_conditions(started_s: float) -> None:
    """Print the machine, the duration, and the machine's other load.

    Args:
        started_s: ``time.monotonic()`` at the start.
    """
    load = psutil.getloadavg()[0]
    print(
        f"{platform.system()} {platform.machine()}, {psutil.cpu_count()} cores, load {load:.1f};"
        f" Python {platform.python_version()}, mlx {version('mlx')}, mlx-lm {version('mlx-lm')};"
        f" {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, took"
        f" {time.monotonic() - started_s:.0f} s"
    )


def print_verdict(*, reached: bool, why: str) -> None:
    """Print whether the goal was reached, with the figures."""
    print(f"**{'Reached' if reached else 'Fell short'}**: {why}\n", flush=True)


#: Percent of all processors that other programs may use.
BUSY_PERCENT_MAX: Final = 15.0
_LOOK_S: Final = 5.0


def busy_percent() -> float:
    """Return how much of all processors is used now; nothing of ours may run."""
    return psutil.cpu_percent(interval=_LOOK_S)


def conditions(busy: float) -> dict[str, Any]:
    """Return machine, versions, commit, instant and other load.

    Args:
        busy: Percent of all processors that other programs used before.
    """
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("semantic", "mlx", "mlx-lm")},
        "commit": current_commit(),
        "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "busy_percent": round(busy, 1),
        "quiet": busy <= BUSY_PERCENT_MAX,
    }


def line_of(found: Mapping[str, Any]) -> str:
    """Return the conditions as one line of the page."""
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    load = f"other programs used {found['busy_percent']:g} % of the processors"
    mark = "" if found["quiet"] else " **Not quiet: compare ratios only.**"
    return (
        f"{found['at']}, commit `{found['commit']}`: {found['system']}, {found['cores']} cores,"
        f" {found['memory_gb']} GB, Python {found['python']}, {versions}; {load}.{mark}"
    )


def current_commit() -> str:
    """Return the short name of the checked-out commit."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


# --- plots: small SVG of lines over time; the same figures give the same bytes ----------------

WIDTH: Final = 760
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 190, 34, 34
_LINE_HEIGHT: Final = 300
_TICKS: Final = 4
#: Distinct for readers who do not see all colours, on white and on dark pages.
_COLOURS: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999999")
_STYLE: Final = (
    "<style>text{font:12px system-ui,sans-serif;fill:#777}.title{font-weight:600;fill:#888}"
    ".grid{stroke:#8884;stroke-width:1}.line{fill:none;stroke-width:1.6}</style>"
)
Points = Sequence[tuple[float, float]]


def lines(title: str, series: Mapping[str, Points], *, unit: str, x_unit: str) -> str:
    """Return series over a common axis, with a legend at the right; the axis begins with 0."""
    shown = {name: points for name, points in series.items() if points}
    x_max = max((x for points in shown.values() for x, _ in points), default=1.0) or 1.0
    y_max = max((y for points in shown.values() for _, y in points), default=1.0) or 1.0
    inner_w, inner_h = WIDTH - _LEFT - _RIGHT, _LINE_HEIGHT - _TOP - _BOTTOM

    def place(x: float, y: float) -> str:
        return f"{_LEFT + inner_w * x / x_max:.1f},{_TOP + inner_h * (1 - y / y_max):.1f}"

    parts = [_text(_LEFT, 18, f"{title}, {unit}", css="title")]
    for tick in range(_TICKS + 1):
        share = tick / _TICKS
        y = _TOP + inner_h * (1 - share)
        x = _LEFT + inner_w * share
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_LEFT + inner_w}"/>')
        parts.append(_text(_LEFT - 6, y + 4, _number(y_max * share), anchor="end"))
        parts.append(_text(x, _LINE_HEIGHT - 12, _number(x_max * share), anchor="middle"))
    parts.append(_text(_LEFT + inner_w + 10, _LINE_HEIGHT - 12, x_unit))
    for index, (name, points) in enumerate(shown.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        path = " ".join(place(x, y) for x, y in points)
        parts.append(f'<polyline class="line" stroke="{colour}" points="{path}"/>')
        at = _TOP + 8 + index * 18
        parts.append(
            f'<rect x="{WIDTH - _RIGHT + 14}" y="{at}" width="10" height="10" fill="{colour}"/>'
        )
        parts.append(_text(WIDTH - _RIGHT + 30, at + 9, name))
    return _svg(title, parts, _LINE_HEIGHT)


def _svg(title: str, parts: Sequence[str], height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
        f"<title>{escape(title)}</title>{_STYLE}{''.join(parts)}</svg>\n"
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", css: str = "") -> str:
    mark = f' class="{css}"' if css else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{mark}>{escape(text)}</text>'


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
