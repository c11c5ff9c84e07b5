"""``semantic status``: the running parts, and the log even without a service."""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING, Any

import typer

from ops.cli.exit_codes import ExitCode
from ops.cli.log.as_of import AsOfOption, print_past_status
from ops.cli.options import DataDir, Json, overrides, settings_or_exit
from ops.cli.table import print_pairs

if TYPE_CHECKING:
    from ops.settings import Settings
    from ops.supervisor.serve_record import PartRecord, ServeRecord

_HASH_CHARS = 12


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Look")(status)


def status(as_of: AsOfOption = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Show the running parts, the jobs by status and the head of the log.

    Exits with 0 if the service is ready, 1 if it runs but is not, 3 if it does not run.
    With --as-of, shows the jobs by status at that position.
    """
    if as_of is not None:
        print_past_status(as_of, as_json=json, data_dir=data_dir)
        return
    settings = settings_or_exit(overrides(data_dir=data_dir))
    report = _report(settings)
    if json:
        typer.echo(jsonlib.dumps(report, indent=2))
    else:
        print_pairs(_lines(report))
    if not report["running"]:
        raise typer.Exit(int(ExitCode.NOT_RUNNING))
    if not report["ready"]:
        raise typer.Exit(int(ExitCode.FAILED))


def _report(settings: Settings) -> dict[str, Any]:
    from ops.supervisor.serve_record import read_record  # noqa: PLC0415 - keeps --help fast

    record = read_record(settings.data_dir)
    health = None if record is None else _health(settings, record)
    log = _log(settings)
    report: dict[str, Any] = {
        "running": record is not None,
        "ready": health is not None and health["status"] != "unavailable",
        "health": health,
        "data_dir": str(settings.data_dir),
        "model": record.model if record else None,
        "base_url": record.base_url if record else None,
        "broker_url": record.broker_url if record else None,
        "pid": record.pid if record else None,
        "started_at": record.started_at if record else None,
        "parts": {name: _part(part) for name, part in record.parts.items()} if record else {},
    }
    return report | _figures(settings, record) | log


def _part(part: PartRecord) -> dict[str, Any]:
    return {"pid": part.pid, "restarts": part.restarts, "alive": part.is_alive()}


def _figures(settings: Settings, record: ServeRecord | None) -> dict[str, Any]:
    """Return what the worker's last pulse reports: its model, and figures of cache and drafts."""
    nothing: dict[str, Any] = {"cache": None, "drafts": None}
    if record is None or not record.broker_url:
        return nothing
    from dataclasses import asdict  # noqa: PLC0415 - keeps --help fast

    from domain.errors import QueueUnavailable  # noqa: PLC0415 - the same
    from ops.adapters.redis.client import Keys, connect  # noqa: PLC0415 - the same
    from ops.adapters.redis.control import RedisWorkerPulses  # noqa: PLC0415 - the same

    client = connect(record.broker_url)
    try:
        pulses = RedisWorkerPulses(client, Keys(settings.redis.prefix)).alive()
    except QueueUnavailable:
        return nothing
    finally:
        client.close()
    cache = next((asdict(pulse.cache) for pulse in pulses if pulse.cache is not None), None)
    drafts = next((asdict(pulse.drafts) for pulse in pulses if pulse.drafts is not None), None)
    # The record has the model of the start, before any swap.
    model = next((pulse.model.id for pulse in pulses if pulse.model is not None), None)
    return {"cache": cache, "drafts": drafts} | ({"model": model} if model else {})


def _health(settings: Settings, record: ServeRecord) -> dict[str, Any] | None:
    """Return the reply of ``/health/ready``, ``None`` where the api does not answer."""
    import httpx  # noqa: PLC0415 - keeps --help fast

    from ops.cli.client import key_header  # noqa: PLC0415 - the same
    from ops.supervisor.probes import PROBE_S  # noqa: PLC0415 - the same

    try:
        with httpx.Client(
            base_url=record.base_url,
            timeout=PROBE_S,
            trust_env=False,
            headers=key_header(settings),
        ) as client:
            found: dict[str, Any] = client.get("/health/ready").json()
            return found if "status" in found else None
    except (httpx.TransportError, ValueError):
        return None


def _log(settings: Settings) -> dict[str, Any]:
    """Read the log directly; needs no service."""
    from domain.errors import LogUnavailable  # noqa: PLC0415 - keeps --help fast
    from ops.adapters.event_log.database import database_file, reader_engine  # noqa: PLC0415 - the same
    from ops.adapters.event_log.projections.job_counts import count_jobs  # noqa: PLC0415 - the same
    from ops.adapters.event_log.reader import LogReader  # noqa: PLC0415 - the same

    file = database_file(settings.log_url)
    nothing: dict[str, Any] = {"jobs": None, "queue_depth": None, "log": None}
    if file is not None and not file.exists():
        return nothing
    engine = reader_engine(settings.log_url)
    try:
        counts = {job_status.value: count for job_status, count in count_jobs(engine).items()}
        head = LogReader(engine).head()
    except LogUnavailable as error:
        return nothing | {"log": {"error": error.message}}
    finally:
        engine.dispose()
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
    parts = [(name, _part_line(part)) for name, part in report["parts"].items()]
    data = ("data", report["data_dir"])
    return [
        *first,
        *_process_names(parts),
        *_cache_lines(report),
        *_draft_lines(report),
        data,
        *_log_lines(report),
    ]


def _reasons(health: dict[str, Any] | None) -> list[str]:
    """Return the problems, and the state of a model that is not in memory."""
    if health is None:
        return ["the api does not answer"]
    model = health["checks"].get("model", "ok")
    waiting = [f"model: {model}"] if model in {"unloaded", "loading"} else []
    return [*waiting, *health.get("reasons", ())]


def _process_names(parts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(f"{name} process", line) for name, line in parts]


def _part_line(part: dict[str, Any]) -> str:
    state = "alive" if part["alive"] else "gone"
    return f"{state} · pid {part['pid']} · restarts {part['restarts']}"


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
