"""``semantic status``: the running parts, and the log even without a service."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ops.cli.client import access_or_exit, client_of, health_of
from ops.cli.log.as_of import AsOfOption, log_if_any, print_past_status
from ops.cli.options import DataDir, Json, fail, overrides, settings_or_exit
from ops.cli.output import echo, pair_lines, print_json, print_pairs
from ops.clients.http_client import HttpClient, Refused, Unreachable
from ops.exit_codes import ExitCode
from ops.supervisor.serve_record import read_record

if TYPE_CHECKING:
    from pathlib import Path

#: Time limit of an answer of the api, in seconds.
ANSWER_S = 5.0
#: Seconds between two reports of ``--follow``.
FOLLOW_S: Final = 1.0
_HASH_CHARS = 12
#: Figures of the engine and of the log, where they cannot be read.
_FIGURES: Final[Mapping[str, Any]] = MappingProxyType({"cache": None, "drafts": None})
_LOG: Final[Mapping[str, Any]] = MappingProxyType({"jobs": None, "queue_depth": None, "log": None})
_LOAD: Final[Mapping[str, Any]] = MappingProxyType({"rates": None, "memory": None})


def status(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on, once a second, until Ctrl-C.")
    ] = False,
    as_of: AsOfOption = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show the running parts, the load, the jobs by status and the head of the log.

    Exits with 0 if the service is ready, 1 if it runs but is not, 3 if it does not run.
    With --follow, a terminal shows the present state in place; a pipe gets a block (with --json a
    line) after each change. Restarts of the service do not end it; Ctrl-C does, with 0.
    With --as-of, shows the jobs by status at that position.
    """
    if as_of is not None:
        if follow:
            fail("--follow shows the present: leave out --as-of", ExitCode.USAGE)
        print_past_status(as_of, as_json=json, data_dir=data_dir)
        return
    if follow:
        with suppress(KeyboardInterrupt):
            _follow(data_dir, as_json=json)
        return
    report = _report(data_dir)
    if json:
        print_json(report)
    else:
        print_pairs(_lines(report))
    if not report["running"]:
        raise typer.Exit(int(ExitCode.NOT_RUNNING))
    if not report["ready"]:
        raise typer.Exit(int(ExitCode.FAILED))


def _follow(data_dir: Path | None, *, as_json: bool) -> None:
    """Show a report each second, where it differs from the one before; never returns."""
    before = ""
    with _shown(as_json=as_json) as show:
        while True:
            report = _report(data_dir)
            text = jsonlib.dumps(report) if as_json else "\n".join(pair_lines(_lines(report)))
            if text != before:
                show(text)
                before = text
            time.sleep(FOLLOW_S)


@contextmanager
def _shown(*, as_json: bool) -> Iterator[Callable[[str], None]]:
    """Yield what shows a text: in place of the one before, or after it where that cannot be."""
    if not as_json and sys.stdout.isatty():
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        console = Console()
        if not console.is_dumb_terminal:
            with Live(console=console, auto_refresh=False) as live:
                yield lambda text: live.update(Text(text, no_wrap=True), refresh=True)
            return
    yield lambda text: echo(text if as_json else f"{text}\n")


def _report(data_dir: Path | None) -> dict[str, Any]:
    access = access_or_exit(data_dir)
    record = read_record(access.data_dir)
    client = client_of(access, answer_s=ANSWER_S)
    health = None if record is None else health_of(client)
    # An api that does not answer is not asked again.
    seen = None if health is None else _asked(client, "/admin/status", {"model", *_FIGURES, *_LOG})
    load = None if seen is None else _asked(client, "/admin/overview", _LOAD.keys())
    figures = _FIGURES if seen is None else {name: seen[name] for name in _FIGURES}
    log = _log(data_dir) if seen is None else {name: seen[name] for name in _LOG}
    return {
        "running": record is not None,
        "ready": health is not None and health["status"] != "unavailable",
        "health": health,
        "data_dir": str(access.data_dir),
        # The record has the model of the start, before any swap.
        "model": (seen and seen["model"]) or (record.model if record else None),
        "base_url": record.base_url if record else None,
        "broker_url": record.broker_url if record else None,
        "pid": record.pid if record else None,
        "started_at": record.started_at if record else None,
        "parts": {
            name: {"pid": part.pid, "restarts": part.restarts, "alive": part.is_alive()}
            for name, part in (record.parts if record else {}).items()
        },
        **({name: load[name] for name in _LOAD} if load else _LOAD),
        **figures,
        **log,
    }


def _asked(client: HttpClient, path: str, names: Collection[str]) -> dict[str, Any] | None:
    """Return a reply of the api, ``None`` where it has not these names: a refusal, or no answer."""
    try:
        found: dict[str, Any] = client.ask("GET", path)
    except Refused as refused:
        found = refused.body
    except (Unreachable, ValueError):
        return None
    return found if found.keys() >= set(names) else None


def _log(data_dir: Path | None) -> dict[str, Any]:
    """Read the log directly; needs no service."""
    from domain.errors import LogUnavailable
    from ops.log.projections.jobs import SqlJobViews
    from ops.log.reader import LogReader

    with log_if_any(settings_or_exit(overrides(data_dir=data_dir)).log_url) as engine:
        if engine is None:
            return dict(_LOG)
        try:
            counts = {found.value: count for found, count in SqlJobViews(engine).counts().items()}
            head = LogReader(engine).head()
        except LogUnavailable as error:
            return dict(_LOG) | {"log": {"error": error.message}}
    return {
        "jobs": counts,
        "queue_depth": counts["queued"],
        "log": {"position": head.position, "hash": head.hash},
    }


def _lines(report: dict[str, Any]) -> list[tuple[str, str]]:
    if report["running"]:
        state = "ready" if report["ready"] else "not ready"
        first = [
            ("service", f"{state} · pid {report['pid']} · since {report['started_at'][:19]} UTC"),
            ("api", report["base_url"]),
            ("model", report["model"] or "loading"),
            *(("health", reason) for reason in _reasons(report["health"])),
        ]
    else:
        first = [("service", "not running; start it: semantic serve")]
    return [
        *first,
        *((f"{name} process", _part_line(part)) for name, part in report["parts"].items()),
        *_load_lines(report),
        *_cache_lines(report),
        *_draft_lines(report),
        ("data", report["data_dir"]),
        *_log_lines(report),
    ]


def _reasons(health: dict[str, Any] | None) -> list[str]:
    """Return the problems, and the state of a model that is not in memory."""
    if health is None:
        return ["the api does not answer"]
    model = health["checks"].get("model", "ok")
    waiting = [f"model: {model}"] if model in {"unloaded", "loading"} else []
    return [*waiting, *health.get("reasons", ())]


def _part_line(part: dict[str, Any]) -> str:
    state = "alive" if part["alive"] else "gone"
    return f"{state} · pid {part['pid']} · restarts {part['restarts']}"


def _load_lines(report: dict[str, Any]) -> list[tuple[str, str]]:
    rates, memory = report["rates"], report["memory"]
    lines = []
    if rates is not None:
        first_ms = rates["first_token_ms"]
        first = "" if first_ms is None else f" · first token {first_ms:,.0f} ms"
        line = (
            f"{rates['running']:,} running · {rates['queue_depth']:,} waiting"
            f" · {rates['tokens_per_s']:,.1f} tokens/s"
            f" · {rates['prompt_tokens_per_s']:,.0f} prompt tokens/s{first}"
        )
        lines.append(("load", line))
    if memory is not None:
        weights, contexts = memory["weights"], memory["live"] + memory["kept"]
        line = (
            f"{_of(weights + contexts, memory['ceiling'])}"
            f" · weights {weights / 1e6:,.0f} MB · contexts {contexts / 1e6:,.0f} MB"
        )
        lines.append(("memory", line))
    return lines


def _cache_lines(report: dict[str, Any]) -> list[tuple[str, str]]:
    cache = report["cache"]
    if cache is None:
        return []
    ram_mb = _of(cache["ram_used_bytes"], cache["ram_budget_bytes"])
    ram = f"{cache['ram_blocks']:,} blocks · {ram_mb}"
    disk = (
        f"{cache['disk']} · {cache['disk_blocks']:,} blocks"
        f" · {_of(cache['disk_used_bytes'], cache['disk_budget_bytes'])}"
    )
    return [
        ("contexts in memory", ram),
        ("contexts on disk", "off" if cache["disk"] == "off" else disk),
    ]


def _draft_lines(report: dict[str, Any]) -> list[tuple[str, str]]:
    drafts = report["drafts"]
    if drafts is None or not drafts["drafts"]:
        return []
    accepted, drafted = drafts["accepted_tokens"], drafts["drafted_tokens"]
    line = f"{accepted:,} of {drafted:,} accepted · {drafts['drafts']:,} drafts"
    return [("drafted tokens", line)]


def _of(used_bytes: int, budget_bytes: int) -> str:
    return f"{used_bytes / 1e6:,.0f} of {budget_bytes / 1e6:,.0f} MB"


def _log_lines(report: dict[str, Any]) -> list[tuple[str, str]]:
    log = report["log"]
    if log is None:
        return [("log", "none yet")]
    if "error" in log:
        return [("log", log["error"])]
    counts = " · ".join(f"{name} {count}" for name, count in report["jobs"].items())
    return [
        ("jobs", counts),
        ("log head", f"position {log['position']} · {log['hash'][:_HASH_CHARS]}"),
    ]
