"""``semantic logs``: the log lines of all parts, from the files in the data directory."""

from __future__ import annotations

import json as jsonlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
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
    last.extend(filter(wanted, reader.read()))
    _print(last, as_json=json)
    while follow:
        time.sleep(LOOK_S)
        _print(filter(wanted, reader.read()), as_json=json)


def _wanted(
    *, part: str | None, since: str | None, job: str | None, level: str
) -> Callable[[str], bool]:
    """Return whether a line is printed; a choice that is not made fits all."""
    if part is not None and part not in _PARTS:
        fail(f"no such part: {part}; one of {', '.join(_PARTS)}", ExitCode.USAGE)
    if level.lower() not in _LEVELS:
        fail(f"no such level: {level}; one of {', '.join(_LEVELS)}", ExitCode.USAGE)
    try:
        first = "" if since is None else parse_instant(since)
    except typer.BadParameter:
        why = f"--since takes an RFC 3339 instant or an age such as 10m, not {since}"
        fail(why, ExitCode.USAGE)
    levels = _LEVELS[: _LEVELS.index(level.lower())]

    def fits(line: str) -> bool:
        event = _event(line)
        return (
            (part is None or event.get("part") == _PARTS[part])
            and str(event.get("timestamp", "")) >= first
            and (job is None or any(event.get(key) == job for key in _JOB_KEYS))
            and event.get("level", "info") not in levels
        )

    return fits


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
