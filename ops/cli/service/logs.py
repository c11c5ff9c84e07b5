"""``semantic logs``: the log lines of all parts, from the files in the data directory."""

from __future__ import annotations

import json as jsonlib
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer

from ops.cli.client import access_or_exit
from ops.cli.options import DataDir, fail, parse_instant
from ops.cli.output import echo
from ops.data_dir.log_files import LogFileReader
from ops.exit_codes import ExitCode
from ops.terminal_text import visible, visible_line

#: Seconds between two looks at the files while they are followed.
LOOK_S: Final = 0.3
_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_PARTS: Final[Mapping[str, str]] = MappingProxyType(
    {"api": "api", "worker": "worker", "broker": "broker", "redis": "broker", "serve": "serve"}
)
#: Names under which log events have the id of a job.
_JOB_KEYS: Final = ("job_id", "job")
_SHOWN_APART: Final = frozenset({"timestamp", "level", "part", "message", "pid", "exception"})
_OUR_LOGGER: Final = "semantic"


def logs(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, help="How many of the last lines.")
    ] = 100,
    part: Annotated[
        str | None, typer.Option("--part", help="api, worker, redis (or broker) or serve.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="An instant (RFC 3339) or an age: 90s, 10m, 2h, 1d."),
    ] = None,
    job: Annotated[str | None, typer.Option("--job", help="Lines about this job.")] = None,
    level: Annotated[
        str, typer.Option("--level", help="Least level: debug to critical.")
    ] = "debug",
    json: Annotated[bool, typer.Option("--json", help="Print the lines as JSON.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Print the log lines of all parts of the service, also when it does not run.

    The service writes them to files in the directory "logs" of the data directory, which take
    200 MB at most and keep a line for 14 days at most.
    """
    wanted = _wanted(part=part, since=since, job=job, level=level)
    reader = LogFileReader(access_or_exit(data_dir).data_dir / "logs")
    last: deque[str] = deque(maxlen=lines)
    last.extend(_chosen(reader.read(), wanted))
    _print(last, as_json=json)
    while follow:
        time.sleep(LOOK_S)
        _print(_chosen(reader.read(), wanted), as_json=json)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """Which lines are printed; a field that is not set fits all."""

    part: str | None
    since: str | None
    job: str | None
    level: int

    def fits(self, event: Mapping[str, Any]) -> bool:
        level = str(event.get("level", "info"))
        return (
            (self.part is None or event.get("part") == self.part)
            and (self.since is None or str(event.get("timestamp", "")) >= self.since)
            and (self.job is None or self._is_about_job(event))
            and (level not in _LEVELS or _LEVELS.index(level) >= self.level)
        )

    def _is_about_job(self, event: Mapping[str, Any]) -> bool:
        return any(event.get(key) == self.job for key in _JOB_KEYS)


def _wanted(*, part: str | None, since: str | None, job: str | None, level: str) -> _Wanted:
    if part is not None and part not in _PARTS:
        fail(f"no such part: {part}; one of {', '.join(_PARTS)}", ExitCode.USAGE)
    if level.lower() not in _LEVELS:
        fail(f"no such level: {level}; one of {', '.join(_LEVELS)}", ExitCode.USAGE)
    return _Wanted(
        part=None if part is None else _PARTS[part],
        since=None if since is None else _instant(since),
        job=job,
        level=_LEVELS.index(level.lower()),
    )


def _instant(text: str) -> str:
    """Return an instant as the lines have it."""
    try:
        return parse_instant(text)
    except typer.BadParameter:
        fail(f"--since takes an RFC 3339 instant or an age such as 10m, not {text}", ExitCode.USAGE)


def _chosen(lines: Iterable[str], wanted: _Wanted) -> Iterator[str]:
    return (line for line in lines if wanted.fits(_event(line)))


def _event(line: str) -> Mapping[str, Any]:
    try:
        event = jsonlib.loads(line)
    except ValueError:
        event = None
    return event if isinstance(event, dict) else {"message": line, "level": "warning"}


def _print(lines: Iterable[str], *, as_json: bool) -> None:
    for line in lines:
        echo(jsonlib.dumps(_event(line), ensure_ascii=False) if as_json else _plain(line))


def _plain(line: str) -> str:
    event = _event(line)
    shown = {key: value for key, value in event.items() if key not in _SHOWN_APART}
    if shown.get("logger") == _OUR_LOGGER:
        del shown["logger"]
    more = " ".join(f"{key}={value}" for key, value in shown.items())
    text = (
        f"{str(event.get('timestamp', ''))[:23]:<23} {event.get('part', ''):<6}"
        f" {event.get('level', ''):<8} {event.get('message', '')} {more}"
    ).rstrip()
    text = visible_line(text)
    if event.get("exception"):
        text += f"\n{event['exception']}"
    return visible(text)
