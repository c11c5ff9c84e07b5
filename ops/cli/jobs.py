"""``semantic jobs`` and ``semantic run``: submit, list, follow, cancel and retry jobs."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlencode

import typer

from domain.values import JobStatus
from ops.cli.client import ask, ask_if_running, follow, service
from ops.cli.log.as_of import AsOfOption, log_if_any, past_jobs, past_pairs, place_of
from ops.cli.options import DataDir, Json, fail, overrides, settings_or_exit
from ops.cli.output import (
    Columns,
    ProgressLine,
    echo,
    echo_data,
    print_json,
    print_page,
    print_pairs,
)
from ops.cli.webhooks import webhook_line
from ops.clients.http_client import HttpClient
from ops.exit_codes import ExitCode

if TYPE_CHECKING:
    from domain.audit.timeline import RelatedJob, Timeline
    from domain.job.state import Job


Prompt = Annotated[str, typer.Argument(help="What to ask; - reads it from stdin.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", min=1, help="Most tokens.")]
Temperature = Annotated[
    float | None, typer.Option("--temperature", min=0.0, max=2.0, help="0 is greedy.")
]
Seed = Annotated[int | None, typer.Option("--seed", help="The same seed gives the same answer.")]
System = Annotated[str | None, typer.Option("--system", help="Instructions for the model.")]


def run(
    prompt: Prompt,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    system: System = None,
    start_after: Annotated[
        str | None,
        typer.Option("--start-after", help="Seconds from now, or an instant (RFC 3339)."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Print the answer, or only the job's id.")
    ] = True,
    *,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Send a prompt to the service and print the streamed answer; Ctrl-C cancels the job.

    With --json, prints the finished job instead, its answer under "output"; with --no-wait too, the
    job as it was accepted.
    """
    given = {
        "prompt": sys.stdin.read() if prompt == "-" else prompt,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "system": system,
        "start_after": _start_after(start_after),
    }
    body = {name: value for name, value in given.items() if value is not None}
    with service(data_dir) as client:
        if not wait:
            accepted = client.ask("POST", "/v1/jobs", json=body)
            echo(jsonlib.dumps(accepted, indent=2, ensure_ascii=False) if json else accepted["id"])
            return
        job = _run_job(client, body, show=not json)
    if json:
        print_json(job, ascii_only=False)
    if job["status"] != "completed":
        message = (job.get("error") or {}).get("message") or f"the job was {job['status']}"
        fail(message, ExitCode.FAILED)


def _start_after(text: str | None) -> float | str | None:
    """Return a start in the form of the api: seconds as a number, else the text."""
    try:
        return text and float(text)
    except ValueError:
        return text


def _run_job(client: HttpClient, body: dict[str, Any], *, show: bool) -> dict[str, Any]:
    """Submit a job, print its text and return its end; an interrupt cancels the job."""
    job_id = client.ask("POST", "/v1/jobs", json=body)["id"]
    ended = False
    progress = ProgressLine()
    try:
        for item in follow(client, job_id):
            progress.show_item(item)
            if show and item["kind"] == "text":
                echo_data(item["text"])
        ended = True
    except KeyboardInterrupt:
        raise typer.Exit(int(ExitCode.INTERRUPTED)) from None
    finally:
        progress.show("")
        if not ended:
            client.ask("POST", f"/v1/jobs/{job_id}/cancel")
        if show:
            echo_data("\n")
    job: dict[str, Any] = client.ask("GET", f"/v1/jobs/{job_id}")
    return job


JobIdArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]


Tags = Annotated[
    list[str] | None, typer.Option("--tag", help="Only jobs with this tag; may be repeated.")
]


def list_jobs(
    status: Annotated[JobStatus | None, typer.Option("--status", help="Only these.")] = None,
    tag: Tags = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="Most rows.")] = 20,
    as_of: AsOfOption = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List jobs, newest first; where no service answers, as the log has them."""
    query = [("limit", str(limit)), *(("tag", one) for one in tag or ())]
    query += [("status", status.value)] if status else []
    page = None if as_of else ask_if_running(f"/v1/jobs?{urlencode(query)}", data_dir)
    if page is None:
        from domain.job.listing import JobFilter

        past, wanted = past_jobs(as_of, data_dir), JobFilter(status=status, labels=tuple(tag or ()))
        found = [job for job in past.jobs if wanted.fits(job)]
        rows = [asdict(job) if json else _as_shown(job) for job in found[:limit]]
        page = {**place_of(past), "data": rows, "has_more": len(found) > limit}
    columns: Columns = {
        "job": "id",
        "status": "status",
        "model": "model",
        "protocol": "protocol",
        "tokens": lambda job: str(job["usage"]["completion_tokens"]),
        "created": lambda job: job["created_at"][:19],
        "expected": _expected,
    }
    print_page(page, columns, as_json=json)


def _as_shown(job: Job) -> dict[str, Any]:
    """Return a job of the log with the members that the service has; its answer is a payload."""
    asked = asdict(job.submitted)
    return {
        **asked,
        **asdict(job),
        "agent_id": asked["agent"],
        "error": {"message": job.error_message or ""} if job.error else None,
        "output": None,
    }


def show(
    job: JobIdArgument,
    follows: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Print the answer from its beginning, and go on with it."
        ),
    ] = False,
    story: Annotated[
        bool, typer.Option("--story", help="Print the timeline from the log; needs no service.")
    ] = False,
    as_of: AsOfOption = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show one job with its answer, its timeline (--story), or an earlier state (--as-of).

    Where no service answers, shows the job as the log has it, without its answer.
    With --follow, Ctrl-C does not cancel the job, and --json prints each item of the stream.
    """
    if follows:
        _follow(job, as_json=json, data_dir=data_dir)
        return
    if story:
        _print_story(job, as_json=json, data_dir=data_dir)
        return
    shown = None if as_of else ask_if_running(f"/v1/jobs/{job}", data_dir)
    if shown is None:
        past = past_jobs(as_of, data_dir)
        found = next((one for one in past.jobs if one.id == job), None)
        if found is None:
            fail(f"there was no job {job} at position {past.head.position}", ExitCode.FAILED)
        if json:
            echo(jsonlib.dumps({**place_of(past), **asdict(found)}))
            return
        _print_job(_as_shown(found), as_json=False, place=past_pairs(past)[:1])
        return
    _print_job(shown, as_json=json)


SomeJob = Annotated[str | None, typer.Argument(metavar="[JOB]", help="The job's id.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the jobs and change none.")]


def cancel(
    job: SomeJob = None,
    tag: Tags = None,
    dry_run: DryRun = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Cancel a job, or the open jobs that have all these tags; ended jobs do not change."""
    _act("cancel", job, tag, dry_run=dry_run, as_json=json, data_dir=data_dir)


def retry(
    job: SomeJob = None,
    tag: Tags = None,
    dry_run: DryRun = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Retry a failed, cancelled or expired job from its beginning, or all with these tags."""
    _act("retry", job, tag, dry_run=dry_run, as_json=json, data_dir=data_dir)


def _act(
    action: str,
    job: str | None,
    tags: list[str] | None,
    *,
    dry_run: bool,
    as_json: bool,
    data_dir: Path | None,
) -> None:
    if (job is None) is (not tags) or (dry_run and job is not None):
        fail("name one job, or give --tag, with or without --dry-run", ExitCode.USAGE)
    if job is not None:
        _print_job(ask("POST", f"/v1/jobs/{job}/{action}", data_dir), as_json=as_json)
        return
    body = {"filter": {"tags": tags}, "dry_run": dry_run}
    report = ask("POST", f"/v1/jobs:{action}", data_dir, json=body)
    columns: Columns = {
        "job": "id",
        "status": "status",
        "result": "result",
        "error": lambda row: (row["error"] or {}).get("message", ""),
    }
    print_page(report, columns, as_json=as_json, more="there are more: repeat the command")


def _follow(job: str, *, as_json: bool, data_dir: Path | None) -> None:
    with service(data_dir) as client:
        last: dict[str, Any] = {}
        progress = ProgressLine()
        for last in follow(client, job):
            progress.show_item(last)
            if as_json:
                echo_data(jsonlib.dumps(last, ensure_ascii=False) + "\n")
            elif last["kind"] == "text":
                echo_data(last["text"])
    if not as_json:
        echo_data("\n")
    if last.get("kind") == "failed":
        fail(last["message"], ExitCode.FAILED)


def _print_job(
    job: dict[str, Any], *, as_json: bool, place: Sequence[tuple[str, str]] = ()
) -> None:
    if as_json:
        print_json(job, ascii_only=False)
        return
    usage, timings = job["usage"], job["timings"]
    pairs = [
        *place,
        ("job", job["id"]),
        ("status", job["status"]),
        ("model", job["model"]),
        ("agent", job.get("agent_id") or ""),
        ("answered by", job.get("answered_by") or ""),
        ("attempt", str(job["attempt"])),
        ("created", job["created_at"]),
        ("finished", job["finished_at"] or ""),
        ("expected", _expected(job)),
        ("tokens", f"{usage['prompt_tokens']} in, {usage['completion_tokens']} out"),
        ("cache", _cache_line(job.get("cache"))),
        ("first token", f"{timings['first_token_ms']:.0f} ms" if timings["first_token_ms"] else ""),
        ("stopped by", job["stop_reason"] or ""),
        ("error", (job["error"] or {}).get("message", "")),
        ("warning", job.get("warning") or ""),
    ]
    pairs += [("webhook", webhook_line(webhook)) for webhook in job.get("webhooks", ())]
    print_pairs([(name, value) for name, value in pairs if value])
    if output := job.get("output"):
        echo("\n" + output["text"])


def _cache_line(cache: dict[str, Any] | None) -> str:
    """Return the cached and missed tokens of a job object as one line."""
    if cache is None:
        return ""
    line = f"{cache['cached_tokens']:,} of {cache['prompt_tokens']:,} tokens known"
    if cache["source"] != "none":
        line += f", from {cache['source']}"
    parted = cache["divergence"]
    if parted is None:
        return line
    line += f"; {cache['missed_tokens']:,} missed: {parted['cause']} at {parted['place']}"
    if parted["now"]:
        line += f', "{parted["now"]}" where {cache["compared_with"]} had "{parted["before"]}"'
    return line


def _expected(job: dict[str, Any]) -> str:
    """Return the position and the ETA of an open job as one line."""
    estimate = job.get("estimate") or {}
    position = job.get("queue_position")
    parts = [] if position is None else [f"{position} before it"]
    if job["status"] == "held":
        after = [one["job"] for one in job["after"]]
        return "held until " + ", ".join([job["start_after"] or "", *after]).removeprefix(", ")
    if (needed := job.get("waiting_for")) not in {None, "place"}:
        name = f" {job['bound_model']}" if needed == "model" else ""
        parts.append(f"waits for {needed}{name}")
    for name, words in (("starts_in_s", "starts"), ("finishes_in_s", "done")):
        if (seconds := estimate.get(name)) is not None:
            parts.append(f"{words} in about {seconds:,.0f} s" if seconds >= 1 else f"{words} now")
    return " · ".join(parts)


_AFTER_WIDTH = 12


def _print_story(job: str, *, as_json: bool, data_dir: Path | None) -> None:
    """Print the timeline of a job; the log is enough, no service is needed."""
    from domain.errors import SemanticError

    try:
        story = _story(job, data_dir)
    except SemanticError as error:
        fail(error.message, ExitCode.FAILED)
    if story is None:
        fail(f"job {job} is not in the log", ExitCode.FAILED)
    timeline, after, successors = story
    if as_json:
        edges = {"after": [*map(asdict, after)], "successors": [*map(asdict, successors)]}
        print_json(asdict(timeline) | edges, ascii_only=False)
        return
    first, *others = _lines(timeline)
    named = [("after", one) for one in after] + [("followed by", one) for one in successors]
    edges_of = [f"{words} {one.job} ({one.status or 'not known'})" for words, one in named]
    for line in (first, *edges_of, *others):
        echo(line)


_Story = tuple["Timeline", tuple["RelatedJob", ...], tuple["RelatedJob", ...]]


def _story(job: str, data_dir: Path | None) -> _Story | None:
    from domain.audit import timeline
    from domain.values import JobId
    from ops.log.archives import archived_stream
    from ops.log.projections.jobs import SqlJobViews
    from ops.log.reader import LogReader

    url = settings_or_exit(overrides(data_dir=data_dir)).log_url
    with log_if_any(url) as engine:
        if engine is None:
            return None
        log = LogReader(engine)
        story = timeline.read_timeline(log, JobId(job), payloads=log)
        if story is None:
            archived = archived_stream(engine, url, job)
            story = timeline.read_timeline(log, JobId(job), payloads=log, archived=archived)
        if story is None:
            return None
        return story, *timeline.related_jobs(JobId(job), SqlJobViews(engine))


def _lines(story: Timeline) -> list[str]:
    from domain.audit.timeline import show_duration

    lines = [f"{story.job}, accepted {story.steps[0].at[:19].replace('T', ' ')} UTC"]
    for step in story.steps:
        took: Any = "" if step.took_ms is None else f" ({show_duration(step.took_ms)})"
        if step.what == "attempt":
            took = ""  # the text of the step has the waiting time
        after = f"+{show_duration(step.after_ms)}"
        lines.append(f"{after:>{_AFTER_WIDTH}}  {step.text or step.what}{took}")
    state = "in all" if story.ended else "so far"
    lines.append(
        f"{state} {show_duration(story.total_ms)}, {show_duration(story.queued_ms)} of it queued, "
        f"attempts {story.attempts}"
    )
    return lines


#: The commands of the group, by name.
COMMANDS: Final = {"ls": list_jobs, "show": show, "cancel": cancel, "retry": retry}
