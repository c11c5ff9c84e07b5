"""``semantic schedules``: jobs that are submitted again and again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ops.cli.client import ask, service
from ops.cli.options import DataDir, Json, fail
from ops.cli.output import Columns, print_answer, print_page
from ops.clients.http_client import HttpClient
from ops.exit_codes import ExitCode

ScheduleArgument = Annotated[str, typer.Argument(metavar="NAME", help="Its name, or its id.")]
#: What follows this in a path is the name of a time zone.
_ZONES: Final = "/zoneinfo/"


def list_schedules(json: Json = False, data_dir: DataDir = None) -> None:
    """List the schedules with their next and their latest instant."""
    columns: Columns = {
        "name": "name",
        "status": "status",
        "cron": "cron",
        "zone": "timezone",
        "next": "next_at",
        "latest job": lambda one: (one["last"] or {}).get("job", ""),
        "missed": _missed,
    }
    print_page(ask("GET", "/v1/schedules", data_dir), columns, as_json=json)


def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that no other has.")],
    cron: Annotated[str, typer.Option("--cron", help="Minute, hour, day, month, day of the week.")],
    prompt: Annotated[str, typer.Option("--prompt", help="What each job asks.")],
    timezone: Annotated[
        str | None, typer.Option("--timezone", help="Of --cron; else that of this machine.")
    ] = None,
    skip_missed: Annotated[
        bool, typer.Option("--skip-missed", help="Do not make up for the latest missed one.")
    ] = False,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Most tokens of each answer.")
    ] = None,
    *,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Submit a job at each instant of a cron expression."""
    job: dict[str, Any] = {"prompt": prompt, "priority": "batch"}
    job |= {} if max_tokens is None else {"max_tokens": max_tokens}
    zone = timezone or _local_zone()
    missed = "skip" if skip_missed else "once"
    body = {"name": name, "cron": cron, "timezone": zone, "missed": missed, "job": job}
    added = ask("POST", "/v1/schedules", data_dir, json=body)
    print_answer(added, f"{added['id']} begins at {added['next_at']}", as_json=json)


def remove(schedule: ScheduleArgument, json: Json = False, data_dir: DataDir = None) -> None:
    """Remove a schedule; its jobs stay."""
    _change("DELETE", "", schedule, as_json=json, data_dir=data_dir)


def pause(
    schedule: ScheduleArgument,
    undo: Annotated[
        bool, typer.Option("--undo", help="Let it go on with its next instant.")
    ] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Stop the jobs of a schedule, or let it go on (--undo)."""
    action = "/resume" if undo else "/pause"
    _change("POST", action, schedule, as_json=json, data_dir=data_dir)


def _change(
    method: str, action: str, schedule: str, *, as_json: bool, data_dir: Path | None
) -> None:
    with service(data_dir) as client:
        changed = client.ask(method, f"/v1/schedules/{_id_of(client, schedule)}{action}")
    state = "removed" if changed.get("deleted") else changed["status"]
    print_answer(changed, f"{changed['id']} is {state}", as_json=as_json)


def _id_of(client: HttpClient, schedule: str) -> str:
    for one in client.ask("GET", "/v1/schedules")["data"]:
        if schedule in {one["id"], one["name"]}:
            return str(one["id"])
    return fail(f"there is no schedule {schedule}", ExitCode.FAILED)


def _missed(schedule: dict[str, Any]) -> str:
    missed = schedule["last_missed"]
    if missed is None:
        return ""
    return f"{schedule['missed_count']}, up to {missed['last']} ({missed['reason']})"


def _local_zone() -> str:
    """Return the name of the time zone of this machine; ``UTC`` where it has no name."""
    place = os.environ.get("TZ") or os.path.realpath("/etc/localtime")
    name = place.removeprefix(":").rpartition(_ZONES)[2]
    return "UTC" if name.startswith("/") else name


#: The commands of the group, by name.
COMMANDS: Final = {
    "ls": list_schedules,
    "add": add,
    "rm": remove,
    "pause": pause,
}
