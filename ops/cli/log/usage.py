"""``semantic usage``: jobs, tokens and times by hour, day, agent or model."""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING, Annotated

import typer

from domain.usage.ports import UsageGroup
from ops.cli.exit_codes import EPILOG, ExitCode
from ops.cli.options import DataDir, Json, fail
from ops.cli.output import echo
from ops.cli.table import print_table

if TYPE_CHECKING:
    from pathlib import Path

    from domain.usage.report import UsageReport, UsageRow

_NONE = "-"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("usage", epilog=EPILOG, rich_help_panel="Look")(show_usage)


def show_usage(
    by: Annotated[UsageGroup, typer.Option("--by", help="What the rows are.")] = UsageGroup.DAY,
    since: Annotated[
        str | None,
        typer.Option("--since", help="From the hour of an age (30d) or an instant on; else all."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Most rows.")] = 100,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Sum the ended jobs: tokens, cache and times, in UTC; needs no service."""
    report = _report(by, since, limit, data_dir)
    if json:
        echo(jsonlib.dumps(report.as_json(), indent=2, ensure_ascii=False))
        return
    print_table(
        (by.value, "jobs", "prompt", "cached", "tokens", "tok/s", "queue", "first token", "misses"),
        [_cells(row) for row in (*report.rows, *_total(report))],
    )
    if report.has_more:
        echo("there are more: raise --limit", err=True)


def _report(by: UsageGroup, since: str | None, limit: int, data_dir: Path | None) -> UsageReport:
    from datetime import UTC, datetime  # noqa: PLC0415 - keeps --help fast

    from domain.errors import SemanticError  # noqa: PLC0415 - the same
    from domain.usage.report import report_usage  # noqa: PLC0415 - the same
    from ops.adapters.event_log.projections.usage_views import SqlUsageViews  # noqa: PLC0415 - the same
    from ops.cli.log.log_options import parse_instant  # noqa: PLC0415 - the same
    from ops.cli.log.projections import current_projections  # noqa: PLC0415 - the same

    first = None if since is None else parse_instant(since, datetime.now(UTC))
    with current_projections(data_dir) as engine:
        if engine is None:
            fail(
                "there is no log, or its sums do not hold every event: run `semantic db upgrade`",
                ExitCode.FAILED,
            )
        try:
            return report_usage(SqlUsageViews(engine), by, since=first, limit=limit)
        except SemanticError as error:
            fail(error.message, ExitCode.FAILED)


def _total(report: UsageReport) -> tuple[UsageRow, ...]:
    from domain.usage.report import UsageRow  # noqa: PLC0415 - keeps --help fast

    return (UsageRow(name="total", figures=report.total),) if report.rows else ()


def _cells(row: UsageRow) -> tuple[str, ...]:
    figures, shown = row.figures, row.as_json()
    not_completed = figures.jobs - figures.completed
    means, rate = shown["mean_ms"], shown["decode_tokens_per_s"]
    return (
        row.name or _NONE,
        f"{figures.jobs:,}" + (f" ({not_completed:,} without answer)" if not_completed else ""),
        f"{figures.prompt_tokens:,}",
        f"{figures.cached_tokens:,} ({figures.cached_ratio:.0%})",
        f"{figures.completion_tokens:,}",
        _NONE if rate is None else f"{rate:,.1f}",
        _duration(means["queue"]),
        _duration(means["first_token"]),
        f"{figures.misses:,}",
    )


def _duration(duration_ms: float | None) -> str:
    if duration_ms is None:
        return _NONE
    return f"{duration_ms:,.0f} ms" if duration_ms < 10_000 else f"{duration_ms / 1000:,.1f} s"  # noqa: PLR2004 - five digits fit
