"""Reports the settings of a PostgreSQL server that a log on it depends on."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Integer, cast, func, select

from ops.adapters.event_log.database import reader_engine, reading
from ops.adapters.event_log.migrate import current, expected
from ops.adapters.event_log.postgres_driver import SERVER_MIN

_STATE = select(
    func.current_setting("server_version"),
    cast(func.current_setting("server_version_num"), Integer),
    func.current_setting("server_encoding"),
    func.current_setting("fsync"),
    func.current_setting("full_page_writes"),
    func.pg_is_in_recovery(),
    func.has_schema_privilege(func.current_schema(), "CREATE"),
)
_VERSION_UNIT = 10_000


@dataclass(frozen=True, slots=True)
class ServerReport:
    """The state of a server.

    Attributes:
        version: In the server's own spelling.
        faults: Reasons why the log cannot be kept there.
        risks: Settings that may lose commits, and releases that are not tested.
    """

    version: str
    faults: tuple[str, ...]
    risks: tuple[str, ...]


def report_server(url: str) -> ServerReport:
    """Query the server of a log.

    Raises:
        LogUnavailable: The server does not answer, or its driver is not installed.
    """
    schema = current(url)
    engine = reader_engine(url)
    try:
        with reading(engine) as connection:
            version, number, encoding, fsync, full_pages, is_standby, may_create = (
                connection.execute(_STATE).one()
            )
    finally:
        engine.dispose()
    faults = {
        f"the database is in {encoding}, it must be in UTF8": encoding != "UTF8",
        "it is a standby, which cannot be written": is_standby,
        "this user may not create the tables": schema != expected() and not may_create,
    }
    risks = {
        f"older than {SERVER_MIN}, which is the oldest that is tested": number
        < SERVER_MIN * _VERSION_UNIT,
        "fsync is off: a crash of its machine loses the log": fsync == "off",
        "full_page_writes is off: a crash of its machine may break the log": full_pages == "off",
    }
    return ServerReport(
        version=str(version),
        faults=tuple(what for what, is_so in faults.items() if is_so),
        risks=tuple(what for what, is_so in risks.items() if is_so),
    )
