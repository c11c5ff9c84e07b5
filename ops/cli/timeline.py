"""``semantic jobs show JOB --story``: the timeline of one job, from the log."""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.exit_codes import ExitCode
from ops.cli.options import fail, overrides, settings_or_exit
from ops.cli.output import echo

if TYPE_CHECKING:
    from pathlib import Path

    from domain.job.timeline import Timeline

StoryOption = Annotated[
    bool, typer.Option("--story", help="Print the timeline from the log; needs no service.")
]
_AFTER_WIDTH = 12


def print_story(job: str, *, as_json: bool, data_dir: Path | None) -> None:
    """Print the timeline of a job; the log is enough, no service is needed."""
    from domain.errors import SemanticError  # noqa: PLC0415 - keeps --help fast

    try:
        story = _story(job, data_dir)
    except SemanticError as error:
        fail(error.message, ExitCode.FAILED)
    if story is None:
        fail(f"job {job} is not in the log", ExitCode.FAILED)
    if as_json:
        from dataclasses import asdict  # noqa: PLC0415 - the same

        echo(jsonlib.dumps(asdict(story), indent=2, ensure_ascii=False))
        return
    for line in _lines(story):
        echo(line)


def _story(job: str, data_dir: Path | None) -> Timeline | None:
    from domain.usecases.jobs.timeline import read_timeline  # noqa: PLC0415 - keeps --help fast
    from domain.values import JobId  # noqa: PLC0415 - the same
    from ops.adapters.event_log.archives import archived_stream  # noqa: PLC0415 - the same
    from ops.adapters.event_log.database import database_file, reader_engine  # noqa: PLC0415 - the same
    from ops.adapters.event_log.reader import LogReader  # noqa: PLC0415 - the same

    settings = settings_or_exit(overrides(data_dir=data_dir))
    file = database_file(settings.log_url)
    if file is not None and not file.exists():
        return None
    engine = reader_engine(settings.log_url)
    try:
        log = LogReader(engine)
        story = read_timeline(log, JobId(job), payloads=log)
        if story is None:
            archived = archived_stream(engine, settings.log_url, job)
            story = read_timeline(log, JobId(job), payloads=log, archived=archived)
        return story
    finally:
        engine.dispose()


def _lines(story: Timeline) -> list[str]:
    from domain.job.timeline import show_duration  # noqa: PLC0415 - keeps --help fast

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
