"""``semantic usage``: jobs, tokens and times by hour, day, agent or model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from domain.usage.figures import UsageGroup
from ops.cli.client import whole_service
from ops.cli.log.as_of import current_projections
from ops.cli.options import DataDir, Json, fail, parse_instant
from ops.cli.output import echo, print_json, print_table
from ops.clients.http_client import Refused, Unreachable
from ops.exit_codes import ExitCode

_NONE = "-"
#: Most rows of a reply of the service; longer reports are read from the log.
_SERVICE_ROWS_MAX: Final = 10_000


def usage(
    by: Annotated[UsageGroup, typer.Option("--by", help="What the rows are.")] = UsageGroup.DAY,
    since: Annotated[
        str | None,
        typer.Option("--since", help="From the hour of an age (30d) or an instant on; else all."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Most rows.")] = 100,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Sum the ended jobs: tokens, cache and times, in UTC; works with and without a service."""
    report = _report(by, since, limit, data_dir)
    if json:
        print_json(report, ascii_only=False)
        return
    rows = [*report["data"], report["total"]] if report["data"] else []
    print_table(
        (by.value, "jobs", "prompt", "cached", "tokens", "tok/s", "queue", "first token", "misses"),
        [_cells(row) for row in rows],
    )
    if report["has_more"]:
        echo("there are more: raise --limit", err=True)


def _report(by: UsageGroup, since: str | None, limit: int, data_dir: Path | None) -> dict[str, Any]:
    """Return the report as the API has it: from the running service, else from the log."""
    first = None if since is None else parse_instant(since)
    client = whole_service(data_dir) if limit <= _SERVICE_ROWS_MAX else None
    if client is None:
        return _read(by, first, limit, data_dir)
    query = {"by": by.value, "limit": limit} | ({} if first is None else {"since": first})
    try:
        found: dict[str, Any] = client.ask("GET", "/admin/usage", params=query)
    except (Refused, Unreachable, ValueError):
        return _read(by, first, limit, data_dir)
    return found


def _read(by: UsageGroup, since: str | None, limit: int, data_dir: Path | None) -> dict[str, Any]:
    """Read the report from the log; needs no service."""
    from domain.errors import SemanticError
    from domain.usage.report import report_usage
    from ops.log.projections.usage import SqlUsageViews

    with current_projections(data_dir) as engine:
        if engine is None:
            fail(
                "there is no log, or its sums do not hold every event: run `semantic log upgrade`",
                ExitCode.FAILED,
            )
        try:
            return report_usage(SqlUsageViews(engine), by, since=since, limit=limit)
        except SemanticError as error:
            fail(error.message, ExitCode.FAILED)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    not_completed = row["jobs"] - row["completed"]
    means, rate = row["mean_ms"], row["decode_tokens_per_s"]
    misses = sum(count for name, count in row.items() if name.startswith("misses_"))
    return (
        row["name"] or _NONE,
        f"{row['jobs']:,}" + (f" ({not_completed:,} without answer)" if not_completed else ""),
        f"{row['prompt_tokens']:,}",
        f"{row['cached_tokens']:,} ({row['cached_ratio']:.0%})",
        f"{row['completion_tokens']:,}",
        _NONE if rate is None else f"{rate:,.1f}",
        _duration(means["queue"]),
        _duration(means["first_token"]),
        f"{misses:,}",
    )


def _duration(duration_ms: float | None) -> str:
    if duration_ms is None:
        return _NONE
    return f"{duration_ms:,.0f} ms" if duration_ms < 10_000 else f"{duration_ms / 1000:,.1f} s"  # noqa: PLR2004 - five digits fit
