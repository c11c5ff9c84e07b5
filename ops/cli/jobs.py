"""``semantic jobs``: list, follow, cancel and retry jobs."""

from __future__ import annotations

import json as jsonlib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ops.cli.cache_reasons import cache_line
from ops.cli.client import ask, follow, service
from ops.cli.exit_codes import EPILOG, ExitCode
from ops.cli.log.as_of import AsOfOption, print_past_job, print_past_jobs
from ops.cli.options import DataDir, Json, fail
from ops.cli.output import echo, echo_data, print_pairs, print_table
from ops.cli.timeline import StoryOption, print_story
from ops.cli.webhooks import webhook_line

JobIdArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]


class Status(StrEnum):
    """Status of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(no_args_is_help=True, help="List, show, follow, cancel and retry jobs.")
    group.command("ls", epilog=EPILOG)(list_jobs)
    group.command("show", epilog=EPILOG)(show)
    group.command("cancel", epilog=EPILOG)(cancel)
    group.command("retry", epilog=EPILOG)(retry)
    app.add_typer(group, name="jobs", rich_help_panel="Use")


def list_jobs(
    status: Annotated[Status | None, typer.Option("--status", help="Only these.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="Most rows.")] = 20,
    as_of: AsOfOption = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List jobs, newest first."""
    if as_of is not None:
        print_past_jobs(as_of, status=status, limit=limit, as_json=json, data_dir=data_dir)
        return
    query = {"limit": str(limit)} | ({"status": status.value} if status else {})
    page = ask("GET", "/v1/jobs", data_dir, params=query)
    if json:
        _print_json(page)
        return
    rows = [
        (
            job["id"],
            job["status"],
            job["model"],
            job["protocol"],
            str(job["usage"]["completion_tokens"]),
            job["created_at"][:19],
            _expected(job),
        )
        for job in page["data"]
    ]
    print_table(("job", "status", "model", "protocol", "tokens", "created", "expected"), rows)
    if page["has_more"]:
        echo("there are older ones: raise --limit", err=True)


def show(
    job: JobIdArgument,
    follows: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Print the answer from its beginning, and go on with it."
        ),
    ] = False,
    story: StoryOption = False,
    as_of: AsOfOption = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show one job with its answer, its timeline (--story), or an earlier state (--as-of).

    With --follow, Ctrl-C does not cancel the job, and --json prints each item of the stream.
    """
    if follows:
        _follow(job, as_json=json, data_dir=data_dir)
        return
    if story:
        print_story(job, as_json=json, data_dir=data_dir)
        return
    if as_of is not None:
        print_past_job(job, as_of, as_json=json, data_dir=data_dir)
        return
    _print_job(ask("GET", f"/v1/jobs/{job}", data_dir), as_json=json)


def cancel(job: JobIdArgument, json: Json = False, data_dir: DataDir = None) -> None:
    """Cancel a job; a job that has ended does not change."""
    _print_job(ask("POST", f"/v1/jobs/{job}/cancel", data_dir), as_json=json)


def retry(job: JobIdArgument, json: Json = False, data_dir: DataDir = None) -> None:
    """Retry a failed, cancelled or expired job from its beginning."""
    _print_job(ask("POST", f"/v1/jobs/{job}/retry", data_dir), as_json=json)


def _follow(job: str, *, as_json: bool, data_dir: Path | None) -> None:
    with service(data_dir) as client:
        last: dict[str, Any] = {}
        for last in follow(client, job):
            if as_json:
                echo_data(jsonlib.dumps(last, ensure_ascii=False) + "\n")
            elif last["kind"] == "text":
                echo_data(last["text"])
    if not as_json:
        echo_data("\n")
    if last.get("kind") == "failed":
        fail(last["message"], ExitCode.FAILED)


def _print_job(job: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        _print_json(job)
        return
    usage, timings = job["usage"], job["timings"]
    pairs = [
        ("job", job["id"]),
        ("status", job["status"]),
        ("model", job["model"]),
        ("answered by", job.get("answered_by") or ""),
        ("attempt", str(job["attempt"])),
        ("created", job["created_at"]),
        ("finished", job["finished_at"] or ""),
        ("expected", _expected(job)),
        ("tokens", f"{usage['prompt_tokens']} in, {usage['completion_tokens']} out"),
        ("cache", cache_line(job.get("cache"))),
        ("first token", f"{timings['first_token_ms']:.0f} ms"),
        ("stopped by", job["stop_reason"] or ""),
        ("error", (job["error"] or {}).get("message", "")),
    ]
    pairs += [("webhook", webhook_line(webhook)) for webhook in job.get("webhooks", ())]
    print_pairs([(name, value) for name, value in pairs if value])
    if output := job.get("output"):
        echo("\n" + output["text"])


def _expected(job: dict[str, Any]) -> str:
    """Return the position and the ETA of an open job as one line."""
    estimate = job.get("estimate") or {}
    position = job.get("queue_position")
    parts = [] if position is None else [f"{position} before it"]
    if (needed := job.get("waiting_for")) not in {None, "place"}:
        name = f" {job['bound_model']}" if needed == "model" else ""
        parts.append(f"waits for {needed}{name}")
    for name, words in (("starts_in_s", "starts"), ("finishes_in_s", "done")):
        if (seconds := estimate.get(name)) is not None:
            parts.append(f"{words} in about {seconds:,.0f} s" if seconds >= 1 else f"{words} now")
    return " · ".join(parts)


def _print_json(value: object) -> None:
    echo(jsonlib.dumps(value, indent=2, ensure_ascii=False))
