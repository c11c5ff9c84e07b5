"""The log at an earlier position, for ``--as-of``, and its projections now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ops.cli.options import fail, operator_settings, overrides, parse_instant
from ops.cli.output import print_json, print_pairs
from ops.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sqlalchemy import Engine

    from domain.audit.replay import JobsAsOf
    from domain.log.record import RecordedEvent
    from ops.log.admin.archive import AsOfLog


AsOfOption = Annotated[
    str | None,
    typer.Option("--as-of", help="As it was at this position of the log, or at an age or instant."),
]
_Folded = TypeVar("_Folded")
_HASH_CHARS = 12
_PROGRESS_EVENTS = 1000


def print_past_status(as_of: str, *, as_json: bool, data_dir: Path | None) -> None:
    """Print the number of jobs in each status as of a position."""
    past = past_jobs(as_of, data_dir)
    counts = {status.value: count for status, count in past.counts().items()}
    if as_json:
        print_json({**place_of(past), "jobs": counts})
        return
    line = " · ".join(f"{name} {count}" for name, count in counts.items())
    print_pairs([*past_pairs(past), ("jobs", line)])


def place_of(past: JobsAsOf) -> dict[str, Any]:
    """Return the place of a past state in the log, as a member of JSON objects."""
    return {"as_of": {"at": past.at, **asdict(past.head)}}


def past_pairs(past: JobsAsOf) -> list[tuple[str, str]]:
    """Return the place of a past state in the log, and the time of its last event."""
    return [
        ("as of", f"position {past.head.position} · {past.head.hash[:_HASH_CHARS]}"),
        ("recorded", f"{past.at[:19]} UTC" if past.at else "never"),
    ]


def past_jobs(as_of: str | None, data_dir: Path | None) -> JobsAsOf:
    """Return the jobs as of a position, an age or an instant, or of now; see ``folded``."""
    from domain.audit.replay import fold_jobs_as_of

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
    from domain.errors import SemanticError
    from ops.cli.log.log_options import progress_bar
    from ops.log.admin.archive import open_as_of

    settings = operator_settings(overrides(data_dir=data_dir))
    try:
        with open_as_of(settings.log_url) as log, progress_bar("folding") as progress:
            return fold(_watched(log.each(), _position(as_of, log), progress))
    except SemanticError as error:
        fail(error.message, ExitCode.FAILED)


def _position(as_of: str | None, log: AsOfLog) -> int:
    """Return the last position of an instant."""
    from domain.log.record import EventFilter

    head = log.head().position
    if as_of is None:
        return head
    if as_of.isdecimal():
        if int(as_of) > head:
            fail(f"the log ends at position {head}", ExitCode.FAILED)
        return int(as_of)
    until = EventFilter(until=parse_instant(as_of))
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


@contextmanager
def current_projections(data_dir: Path | None) -> Iterator[Engine | None]:
    """Yield an engine that reads the log; ``None`` if its projections do not hold every event.

    Args:
        data_dir: Directory of the log, if not that of the settings.
    """
    from ops.log.projections.fold import are_current

    with log_if_any(operator_settings(overrides(data_dir=data_dir)).log_url) as engine:
        yield engine if engine is not None and are_current(engine) else None


@contextmanager
def log_if_any(url: str) -> Iterator[Engine | None]:
    """Yield an engine that reads a log; ``None`` if its file does not exist."""
    from ops.log.database import database_file, disposed, reader_engine

    file = database_file(url)
    if file is not None and not file.exists():
        yield None
        return
    with disposed(reader_engine(url)) as engine:
        yield engine
