"""The section of each benchmark: headline, table and plots from its figures. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bench.comparison.measurements import MEASUREMENTS
from bench.comparison.strangers import LEAGUE
from bench.experiments.report import table_lines
from bench.report.plots import bars, lines
from bench.together import cells

_US: Final = "semantic"
_MINUTE_S: Final = 60.0
_MB: Final = 1e6
_REASON_CHARS_MAX: Final = 80
#: A larger budget is none.
_BUDGET_BYTES_MAX: Final = 1e12
#: Rows of the comparison by key, each with the unit that its format ends with.
_TITLES: Final = {
    row.key: ", ".join(filter(None, (row.title, row.form.rpartition("}")[2].strip())))
    for measurement in (*MEASUREMENTS, *LEAGUE)
    for row in measurement.rows
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What the page shows of one benchmark.

    Attributes:
        headline: What is measured, and the figure; ``None`` for none.
        table: Lines of Markdown.
        plots: SVG by file name without its ending.
    """

    headline: tuple[str, str] | None
    table: tuple[str, ...]
    plots: dict[str, str] = field(default_factory=dict)


def together(found: dict[str, Any]) -> Section:
    """Whole requests and decode rates beside mlx_lm.server and the bare generator."""
    found_cells = cells.from_json(found["cells"])
    judged = [cell for cell in found_cells if cell.faster()]
    most = max(cell.key.streams for cell in judged)
    ratios = [statistics.median(cell.faster()) for cell in judged if cell.key.streams == most]
    bar_rows = [
        (f"{cell.key.title}, {cell.key.streams}", statistics.median(cell.faster()))
        for cell in judged
    ]
    return Section(
        headline=(
            f"the same requests beside mlx_lm.server at {most} streams",
            f"{min(ratios):.2f} to {max(ratios):.2f} × as fast",  # noqa: RUF001 - the sign for times
        ),
        table=(
            *cells.table(found_cells),
            "",
            *cells.verdicts(found_cells),
            "",
            cells.line_of(found["conditions"]),
        ),
        plots={"together": bars("Total time of mlx_lm.server over ours", bar_rows, unit="×")},  # noqa: RUF001 - the sign for times
    )


def comparison(found: dict[str, Any]) -> Section:
    """Warm and cold requests beside other servers."""
    servers = list(found["results"])
    keys = list(dict.fromkeys(row for rows in found["results"].values() for row in rows))
    table_rows = []
    for key in keys:
        cells = [found["results"][server].get(key, {"figures": []}) for server in servers]
        table_rows.append([_TITLES.get(key, key), *map(_cell, cells)])
    ours = found["results"].get(_US, {})
    warm, cold = (_middle(ours.get(key, {}).get("figures", [])) for key in ("sigkill", "cold"))
    bar_rows = [
        (f"{server}, {key.replace('_', ' ')}", middle)
        for key in ("cold", "next_turn", "sigkill")
        for server in servers
        if (middle := _middle(found["results"][server].get(key, {}).get("figures", []))) is not None
    ]
    table = _table(["", *(f">{server}" for server in servers)], table_rows)
    headline = None
    if warm is not None and cold is not None:
        name = "first text of the next turn after SIGKILL and restart"
        headline = (name, f"{warm:,.0f} ms (cold: {cold:,.0f} ms)")
    return Section(
        headline=headline,
        table=(*table, found["conditions"]),
        plots={"comparison": bars("First text", bar_rows, unit="ms")},
    )


def league(found: dict[str, Any]) -> Section:
    """The same table for each model, by load generators of others."""
    tables: list[str] = []
    for name, report in found["models"].items():
        tables += [f"#### {name}", "", *comparison(report).table, ""]
    tables += [f"- Not measured: {name}, since {why}" for name, why in found["missing"].items()]
    return Section(headline=None, table=tuple(tables))


def memory(found: dict[str, Any]) -> Section:
    """Peaks beside their limits, for agents that take turns."""
    rows, peaks = [], []
    for run in found["rotation"]:
        figures = run["figures"]
        limit = (figures.get("budget_bytes") or 0) + (figures.get("step_bytes") or 0)
        peak = figures["peak_bytes"]
        name = f"{run['shape']}, {run['budget']}, {'at once' if run['at_once'] else 'in turn'}"
        is_bound = 0 < (figures.get("budget_bytes") or 0) < _BUDGET_BYTES_MAX
        reused = figures.get("reused_median"), figures.get("reused_worst")
        shares = ["-" if one is None else f"{one:.1%}" for one in reused]
        bound = f"{limit / _MB:.1f}" if is_bound else "-"
        rows.append([name, run["agents"], *shares, f"{peak / _MB:.1f}", bound])
        if is_bound:
            peaks.append((name, 100 * peak / limit))
    head = ["run", ">agents", ">of known tokens reused", ">worst", ">peak, MB", ">limit, MB"]
    plots = {"memory": bars("Peak of the limit", peaks, unit="%")} if peaks else {}
    return Section(
        headline=None,
        table=_table(head, rows),
        plots=plots,
    )


def promises(found: dict[str, Any]) -> Section:
    """Times of acceptance and cancellation."""
    rows = found["rows"]
    first = rows[0]
    table_rows = [
        [one["what"], one["of"], f"{one['p50']:.1f}", f"{one['p99']:.1f}", f"{one['most']:.1f}"]
        for one in rows
    ]
    return Section(
        headline=(
            "durable acceptance of a job",
            f"{first['p50']:.1f} ms p50, {first['p99']:.1f} p99",
        ),
        table=_table(["what, ms", ">of", ">p50", ">p99", ">most"], table_rows),
        plots={"promises": bars("Medians", [(one["what"], one["p50"]) for one in rows], unit="ms")},
    )


def swap(found: dict[str, Any]) -> Section:
    """Phases of a swap under load."""
    phases = list(found["median_ms"].items())
    figure = (
        f"{found['median_ms']['total'] / 1000:.1f} s; {found['failed_streams']} of"
        f" {found['streams']} streams failed"
    )
    table = _table(["phase", ">median, ms"], [[name, f"{ms:,.0f}"] for name, ms in phases])
    before, after = found["rss_cold_mb"], found["rss_after_mb"]
    rest = f"{found['changed_texts']} texts changed; the worker had {before} MB before"
    return Section(
        headline=("swap of the model under streams", figure),
        table=(*table, f"{rest} and {after} MB after {found['swaps']} swaps."),
        plots={"swap": bars("Phases of a swap", phases, unit="ms")},
    )


def soak(found: dict[str, Any]) -> Section:
    """Growth under mixed load."""
    head = ["series", ">level", ">last", ">% an hour", ">noise, %", "grows"]
    rows = [
        [
            name,
            f"{one['level']:,.1f}",
            f"{one['last']:,.1f}",
            f"{one['percent_per_hour']:+.1f}",
            f"{one['noise_percent']:.1f}",
            "**yes**" if one["grows"] else "",
        ]
        for name, one in found["trends"].items()
    ]
    samples = found["samples"]
    memories = {
        name.removesuffix(" rss, MB"): _points(samples, name)
        for name in found["trends"]
        if name.endswith("rss, MB")
    }
    counts = {name: _points(samples, name) for name in found["trends"] if "descriptors" in name}
    first = {"first text": [(at_s / _MINUTE_S, ms) for at_s, ms in found["latencies"]]}
    grown = ", ".join(found["grown"]) or "nothing"
    figure = (
        f"{grown} grew; {len(found['violations'])} promises were broken;"
        f" {len(found['errors'])} errors in the log;"
        f" last over first third of the latencies: {found['latency_drift']}"
    )
    done = ", ".join(f"{number:,} {name}" for name, number in found["operations"].items())
    return Section(
        headline=(f"{found['minutes']:g} minutes of mixed load", figure),
        table=(*_table(head, rows), f"Done: {done}, {len(found['swap_ms'])} swaps."),
        plots={
            "soak-memory": lines("Resident memory", memories, unit="MB", x_unit="minutes"),
            "soak-descriptors": lines("Descriptors", counts, unit="open", x_unit="minutes"),
            "soak-latency": lines("First text of a turn", first, unit="ms", x_unit="minutes"),
        },
    )


def idle(found: dict[str, Any]) -> Section:
    """What the service costs while nothing runs."""
    rows = [
        [name, f"{one['cpu_percent']:.2f}", f"{one['wakeups_per_s']:.1f}"]
        for name, one in found["processes"].items()
    ]
    cpu = [(name, one["cpu_percent"]) for name, one in found["processes"].items()]
    return Section(
        headline=None,
        table=_table(["process", ">% of a core", ">wake-ups a second"], rows),
        plots={"idle": bars("An idle service", cpu, unit="% of a core")},
    )


def _points(samples: Sequence[dict[str, float]], name: str) -> list[tuple[float, float]]:
    return [(one["t_s"] / _MINUTE_S, one[name]) for one in samples if name in one]


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> tuple[str, ...]:
    return (*table_lines(head, rows), "")


def _spread(values: Sequence[float], digits: int = 0) -> str:
    """Return the median, with the least and the most where there are several rounds."""
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def _middle(figures: Sequence[object]) -> float | None:
    numbers = [float(one) for one in figures if isinstance(one, int | float)]
    return statistics.median(numbers) if numbers else None


def _cell(cell: Mapping[str, Sequence[object]]) -> str:
    """Return the median of a row, or its verdict, or the reason why there is none."""
    figures, failures = cell["figures"], cell.get("failures", ())
    numbers = [float(one) for one in figures if isinstance(one, int | float)]
    text = str(figures[0]) if figures else "-"
    if numbers:
        text = _spread(numbers, 0 if max(numbers) >= 10 else 2)
    elif failures:
        text = "failed: " + " ".join(str(failures[-1]).split())[:_REASON_CHARS_MAX]
    return text if not (figures and failures) else f"{text} (failed {len(failures)} times)"
