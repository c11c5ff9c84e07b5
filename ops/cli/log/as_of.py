"""``--as-of``: ``status``, ``jobs`` and ``agents`` at an earlier position of the log."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ops.cli.exit_codes import ExitCode
from ops.cli.options import fail, operator_settings, overrides
from ops.cli.output import echo, print_pairs, print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from domain.job.replay import JobsAsOf
    from domain.log.record import RecordedEvent
    from ops.adapters.log_admin.archive import AsOfLog

AsOfOption = Annotated[
    str | None,
    typer.Option("--as-of", help="As it was at this position of the log, or at an age or instant."),
]
_Folded = TypeVar("_Folded")
_HASH_CHARS = 12
_PROGRESS_EVENTS = 1000


def print_past_status(as_of: str, *, as_json: bool, data_dir: Path | None) -> None:
    """Print the number of jobs in each status as of a position."""
    past = _past(as_of, data_dir)
    counts = {status.value: count for status, count in past.counts().items()}
    if as_json:
        report = {"as_of": {"at": past.at, **asdict(past.head)}, "jobs": counts}
        echo(jsonlib.dumps(report, indent=2))
        return
    print_pairs(
        [
            ("as of", f"position {past.head.position} · {past.head.hash[:_HASH_CHARS]}"),
            ("recorded", f"{past.at[:19]} UTC" if past.at else "never"),
            ("jobs", " · ".join(f"{name} {count}" for name, count in counts.items())),
        ]
    )


def print_past_jobs(
    as_of: str, *, status: str | None, limit: int, as_json: bool, data_dir: Path | None
) -> None:
    """Print the newest jobs as of a position."""
    past = _past(as_of, data_dir)
    jobs = [job for job in past.jobs if status in {None, job.status.value}]
    if as_json:
        rows: list[dict[str, Any]] = [asdict(job) for job in jobs[:limit]]
        listed = {"as_of": {"at": past.at, **asdict(past.head)}, "data": rows}
        echo(jsonlib.dumps(listed | {"has_more": len(jobs) > limit}, indent=2))
        return
    print_table(
        ("job", "status", "model", "protocol", "tokens", "created"),
        [
            (
                job.id,
                job.status.value,
                job.submitted.model,
                job.submitted.protocol,
                str(job.usage.completion_tokens),
                job.created_at[:19],
            )
            for job in jobs[:limit]
        ],
    )
    if len(jobs) > limit:
        echo("there are older ones: raise --limit", err=True)


def print_past_job(job_id: str, as_of: str, *, as_json: bool, data_dir: Path | None) -> None:
    """Print one job as of that position, without its answer."""
    past = _past(as_of, data_dir)
    job = next((job for job in past.jobs if job.id == job_id), None)
    if job is None:
        fail(f"there was no job {job_id} at position {past.head.position}", ExitCode.FAILED)
    if as_json:
        echo(jsonlib.dumps({"as_of": {"at": past.at, **asdict(past.head)}, **asdict(job)}))
        return
    usage = job.usage
    pairs = [
        ("as of", f"position {past.head.position} · {past.head.hash[:_HASH_CHARS]}"),
        ("job", job.id),
        ("status", job.status.value),
        ("model", job.submitted.model),
        ("agent", job.submitted.agent or ""),
        ("attempt", str(job.attempt)),
        ("created", job.created_at),
        ("finished", job.finished_at or ""),
        ("tokens", f"{usage.prompt_tokens} in, {usage.completion_tokens} out"),
        ("stopped by", job.stop_reason or ""),
        ("error", job.error_message or ""),
    ]
    print_pairs([(name, value) for name, value in pairs if value])


def _past(as_of: str, data_dir: Path | None) -> JobsAsOf:
    from domain.job.replay import fold_jobs_as_of  # noqa: PLC0415 - keeps --help fast

    return folded(fold_jobs_as_of, as_of, data_dir)


def folded(
    fold: Callable[[Iterator[RecordedEvent]], _Folded], as_of: str | None, data_dir: Path | None
) -> _Folded:
    """Return the fold of the log up to a position or to its end.

    Args:
        fold: Takes every event from the first on.
        as_of: A position, an age or an instant; ``None`` for now.
        data_dir: Directory of the log, if not that of the settings.
    """
    from domain.errors import SemanticError  # noqa: PLC0415 - keeps --help fast
    from ops.adapters.log_admin.archive import open_as_of  # noqa: PLC0415 - the same
    from ops.cli.log.log_options import progress_bar  # noqa: PLC0415 - the same

    settings = operator_settings(overrides(data_dir=data_dir))
    try:
        with open_as_of(settings.log_url) as log, progress_bar("folding") as progress:
            return fold(_watched(log.each(), _position(as_of, log), progress))
    except SemanticError as error:
        fail(error.message, ExitCode.FAILED)


def _position(as_of: str | None, log: AsOfLog) -> int:
    """Return the last position of an instant."""
    from datetime import UTC, datetime  # noqa: PLC0415 - keeps --help fast

    from domain.log.record import EventFilter  # noqa: PLC0415 - the same
    from ops.cli.log.instants import parse_instant  # noqa: PLC0415 - the same

    head = log.head().position
    if as_of is None:
        return head
    if as_of.isdecimal():
        if int(as_of) > head:
            fail(f"the log ends at position {head}", ExitCode.FAILED)
        return int(as_of)
    until = EventFilter(until=parse_instant(as_of, datetime.now(UTC)))
    before = log.select_before(until, before=head + 1, limit=1)
    return before[-1].position if before else 0


def _watched(
    events: Iterator[RecordedEvent], last: int, progress: Callable[[int, int], None] | None
) -> Iterator[RecordedEvent]:
    for event in events:
        if event.position > last:
            return
        if progress is not None and event.position % _PROGRESS_EVENTS == 0:
            progress(event.position, last)
        yield event
