"""``semantic doctor``: check the preconditions of a start; each check reports a remedy."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from domain.errors import LogUnavailable
from ops.broker.private_redis import find_server
from ops.cli.client import access_of, client_of, health_of
from ops.cli.options import (
    DataDir,
    Host,
    Json,
    Model,
    Port,
    directory_file,
    overrides,
    settings_or_exit,
)
from ops.cli.output import print_json, print_table
from ops.cli.service.config import files_in_use
from ops.data_dir.free_space import floor_of, nearest_existing
from ops.data_dir.permissions import open_to_others, tighten
from ops.exit_codes import ExitCode
from ops.log.admin.stored import measure_stored, report_server
from ops.log.database import is_sqlite
from ops.log.migrate import current, expected, refuse_newer_program
from ops.log.sqlite_driver import has_wal_reset_fix, sqlite_version
from ops.models.backend import (
    BACKENDS,
    clashing_backends,
    installed_backends,
    missing_backend,
    slow_blas,
)
from ops.models.hub_cache import directory_of, is_hub_id
from ops.models.registry import first_model
from ops.settings.models import DEMO_MODEL
from ops.settings.settings import Settings
from ops.supervisor.probes import claim_port
from ops.supervisor.serve_record import CannotServe, read_record
from ops.supervisor.startup_banner import without_password

#: Time limit of the running service's answer, in seconds.
ANSWER_S = 10.0


def doctor(
    model: Model = None,
    port: Port = None,
    host: Host = None,
    mend: Annotated[
        bool, typer.Option("--mend", help="Close the service's files to other users first.")
    ] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Check Python, the database, the broker, MLX, the data directory, the port and the model.

    Where the service runs, the reasons of its health are added. Exits with 1 if
    a check would prevent a start; warnings do not count.
    """
    given = overrides(data_dir=data_dir, model=model, host=host, port=port)
    added, ignored = directory_file(given)
    settings = settings_or_exit(given | added)
    if mend:
        tighten(settings.data_dir)
    checks = [check_files(files_in_use(given | added), ignored), *all_checks(settings)]
    if read_record(settings.data_dir) is not None:
        checks += check_health(health_of(client_of(access_of(settings), answer_s=ANSWER_S)))
    fine = all(check.verdict != "fail" for check in checks)
    if json:
        report = {"ok": fine, "checks": [asdict(check) for check in checks]}
        print_json(report)
    else:
        rows = [(check.verdict, check.name, check.detail) for check in checks]
        print_table(("", "check", "found"), rows)
    if not fine:
        raise typer.Exit(int(ExitCode.FAILED))


_PYTHON_MIN = (3, 11)
_REDIS_VERSION_S = 5.0
_GIB = 1024**3
#: Bits of a directory whose entries other users may replace.
_WRITABLE_BY_OTHERS = 0o022
_NAMES_SHOWN = 3

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    name: str
    verdict: Verdict
    detail: str


def all_checks(settings: Settings) -> Iterator[Check]:
    """Yield every finding, in the order of a start."""
    yield check_python()
    yield Check("platform", "ok", f"{platform.system()} {platform.release()} {platform.machine()}")
    yield check_log(settings.log_url)
    yield check_log_version(settings.log_url)
    yield check_broker(settings)
    yield check_mlx()
    yield check_data_dir(settings)
    yield check_permissions(settings.data_dir)
    yield check_stored(settings)
    yield check_port(settings)
    yield check_model(settings)


def check_files(used: Sequence[Path], ignored: Sequence[str]) -> Check:
    """The configuration files in use, and those of the directory that are not read."""
    found = f"read: {', '.join(map(str, used))}" if used else "no file is read"
    detail = "; ".join((*ignored, found))
    return Check("config", "warn" if ignored else "ok", detail)


def check_python() -> Check:
    """Python is new enough."""
    found = f"{platform.python_version()} at {sys.executable}"
    fine = sys.version_info >= _PYTHON_MIN
    return Check("python", "ok" if fine else "fail", found if fine else f"{found}; needs 3.11")


def check_log(url: str) -> Check:
    """The database of the log does not lose commits."""
    return check_sqlite(sqlite_version()) if is_sqlite(url) else check_postgres(url)


def check_log_version(url: str) -> Check:
    """This program is new enough to read the log."""
    try:
        refuse_newer_program(url)
        found = current(url)
    except LogUnavailable as error:
        return Check("event log", "fail", error.message)
    if found is None:
        return Check("event log", "ok", "none yet; the first start creates it")
    detail = f"schema {found}"
    if found != expected():
        detail += f"; the next start upgrades it to {expected()}"
    return Check("event log", "ok", detail)


def check_postgres(url: str) -> Check:
    """PostgreSQL answers, accepts writes and syncs commits."""
    try:
        found = report_server(url)
    except LogUnavailable as error:
        return Check("postgres", "fail", error.message)
    verdict: Verdict = "fail" if found.faults else "warn" if found.risks else "ok"
    trouble = "; ".join((*found.faults, *found.risks))
    where = without_password(url)
    return Check("postgres", verdict, f"{found.version} at {where}{trouble and ': ' + trouble}")


def check_sqlite(found: str) -> Check:
    """SQLite does not lose commits."""
    if has_wal_reset_fix(found):
        return Check("sqlite", "ok", f"{found}, with the fix of the WAL-reset bug")
    return Check(
        "sqlite", "warn", f"{found} has the WAL-reset bug, which can lose commits; needs 3.51.3"
    )


def check_broker(settings: Settings) -> Check:
    """A broker can be started, or an external one is configured."""
    if settings.redis.url:
        return Check("broker", "ok", f"yours: {without_password(settings.redis.url)}")
    server = find_server()
    if server is None:
        return Check("broker", "fail", "no server for the broker: install redis-server")
    try:
        output = subprocess.run(
            [server.path, "--version"],
            capture_output=True,
            check=True,
            text=True,
            timeout=_REDIS_VERSION_S,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return Check("broker", "fail", f"{server.path} does not run: {error}")
    words = [word.removeprefix("v=") for word in output.split() if word.startswith("v=")]
    return Check("broker", "ok", f"{server.name} {words[0] if words else '?'} at {server.path}")


def check_mlx() -> Check:
    """The model library is installed; importing it would take seconds and memory."""
    try:
        found = f"mlx {version('mlx')}, mlx-lm {version('mlx-lm')}"
    except PackageNotFoundError as error:
        return Check("mlx", "fail", f"{error.name} is not installed")
    backends = installed_backends()
    fault = clashing_backends(backends) or missing_backend()
    if fault is not None:
        return Check("mlx", "fail", f"{found}: {fault}")
    device = BACKENDS[backends[0]] if backends else "a backend that was built with it"
    warning = slow_blas(backends)
    if warning is not None:
        return Check("mlx", "warn", f"{found}, on {device}: {warning}")
    return Check("mlx", "ok", f"{found}, on {device}")


def check_data_dir(settings: Settings) -> Check:
    """The data directory is writable, and the disk of the log has free space."""
    data_dir = settings.data_dir
    nearest = nearest_existing(data_dir)
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return Check("data", "fail", f"{data_dir} cannot be written")
    floor = floor_of(settings.disk, log_file=settings.log_file, data_dir=data_dir)
    free = floor.measure()
    detail = f"{data_dir}, {free / _GIB:.1f} GiB free"
    if free < floor.free_min_bytes:
        least = f"{floor.free_min_bytes / _GIB:.1f} GiB (disk.free_min_mb)"
        return Check("data", "fail", f"{detail}: below {least} new work is refused")
    if free < floor.cache_min_bytes:
        return Check("data", "warn", f"{detail}: contexts are deleted from the disk")
    return Check("data", "ok", detail)


def check_permissions(data_dir: Path) -> Check:
    """No other user can read or replace the service's files."""
    open_paths = open_to_others(data_dir)
    if open_paths:
        names = ", ".join(path.name for path in open_paths[:_NAMES_SHOWN])
        more = len(open_paths) - _NAMES_SHOWN
        what = f"{names}{f' and {more} more' if more > 0 else ''}"
        detail = f"other users may open {what} in {data_dir}; mend: semantic doctor --mend"
        return Check("permissions", "warn", detail)
    if data_dir.is_dir() and data_dir.stat().st_mode & _WRITABLE_BY_OTHERS:
        detail = f"other users may replace files in {data_dir}; mend: chmod go-w"
        return Check("permissions", "warn", detail)
    return Check("permissions", "ok", "only you can open the service's files")


def check_stored(settings: Settings) -> Check:
    """How much is stored, and whether a rule of retention bounds it."""
    try:
        if current(settings.log_url) is None:
            return Check("stored", "ok", "nothing yet")
        found = measure_stored(settings.data_dir, settings.cache_dir, settings.log_url)
    except LogUnavailable as error:
        return Check("stored", "warn", error.message)
    sizes = ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in asdict(found).items())
    rules = settings.retention
    is_bounded = rules.text_days is not None or rules.text_gb is not None
    return Check("stored", "ok", sizes if is_bounded else f"{sizes}; no rule of retention")


def check_port(settings: Settings) -> Check:
    """The port is free or held by this service."""
    server = settings.server
    record = read_record(settings.data_dir)
    if record is not None:
        return Check("port", "ok", f"the service answers at {record.base_url}")
    try:
        claim_port(server.host, server.port)
    except CannotServe as error:
        return Check("port", "fail", str(error))
    return Check("port", "ok", f"{server.host}:{server.port} is free")


def check_health(health: Mapping[str, Any] | None) -> Iterator[Check]:
    """The running service works; each reason why it does not is a finding.

    Args:
        health: The report of ``/health/ready``, ``None`` if the service does not answer.
    """
    if health is None:
        yield Check("health", "warn", "the service runs and does not answer: semantic logs")
        return
    for reason in health.get("reasons", ()):
        yield Check("health", "warn", f"{health['status']}: {reason}")
    if health["status"] == "ok":
        yield Check("health", "ok", "log, broker, model, memory, disk and admission")


def check_model(settings: Settings) -> Check:
    """The model can be found; nothing is loaded or downloaded."""
    entry = first_model(settings)
    source, path = entry.source, Path(entry.source).expanduser()
    if directory_of(entry) is not None:
        ships = f"{DEMO_MODEL}, ships with the package" if source == DEMO_MODEL else source
        return Check("model", "ok", ships)
    if source == DEMO_MODEL:
        return Check("model", "fail", f"{DEMO_MODEL} is not part of this installation")
    if path.is_dir():
        what = "weights" if (path / "config.json").is_file() else "config.json"
        return Check("model", "fail", f"{source}: no {what}")
    if is_hub_id(source):
        return Check("model", "ok", f"{source} from the hub; downloaded at the first start")
    return Check("model", "fail", f"{source} is neither a directory nor a hub id such as org/name")
