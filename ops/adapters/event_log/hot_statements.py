"""Statements that every append and every load runs, without SQLAlchemy's share of their cost.

SQLAlchemy keeps the schema, the dialects, the connections and the transactions. But to execute a
statement it looks the compiled form up anew, prepares a context and wraps each row, which costs
several times what the database needs for a row found by its key. Here a statement is compiled once
for each dialect and then handed to the driver; rows are plain tuples in the order of the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from sqlalchemy import Connection, Delete, Dialect, Insert, Select, Update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler

#: Compiled forms that are kept: each statement for each engine that is in use.
PLANS_MAX = 256

_Clause = Select[Any] | Insert | Update | Delete
_Converter = Callable[[Any], Any]
_Row = tuple[Any, ...]


class HotStatement:
    """A statement whose parameters are all named, each a single value, no lists.

    It raises what SQLAlchemy raises, and runs in the transaction of the connection it is given.

    Args:
        clause: What to run.
    """

    def __init__(self, clause: _Clause) -> None:
        self._clause = clause

    def rows(self, connection: Connection, values: Mapping[str, Any]) -> list[_Row]:
        """Return all rows of a query."""
        plan = _plan(self._clause, connection.dialect)
        with _Cursor(connection, plan.sql) as cursor:
            cursor.execute(plan.sql, plan.parameters(values))
            rows: list[_Row] = cursor.fetchall()
            if not rows:
                return []
            column_types = tuple([column[1] for column in cursor.description])
        converters = _from_driver(self._clause, connection.dialect, column_types)
        return [_converted(row, converters) for row in rows] if converters else rows

    def row(self, connection: Connection, values: Mapping[str, Any]) -> _Row | None:
        """Return the first row of a query that finds one at most."""
        found = self.rows(connection, values)
        return found[0] if found else None

    def run(self, connection: Connection, values: Mapping[str, Any]) -> int:
        """Run a statement that writes and return how many rows it touched."""
        plan = _plan(self._clause, connection.dialect)
        with _Cursor(connection, plan.sql) as cursor:
            cursor.execute(plan.sql, plan.parameters(values))
            return int(cursor.rowcount)

    def run_many(self, connection: Connection, values: Sequence[Mapping[str, Any]]) -> None:
        """Run a statement that writes once for each set of values."""
        plan = _plan(self._clause, connection.dialect)
        with _Cursor(connection, plan.sql) as cursor:
            cursor.executemany(plan.sql, [plan.parameters(one) for one in values])


def run_text(connection: Connection, sql: str) -> None:
    """Run a statement that has no parameters and gives nothing back."""
    with _Cursor(connection, sql) as cursor:
        cursor.execute(sql)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A statement as the driver of a dialect wants it.

    Attributes:
        sql: The text.
        places: Parameters in their order, and what converts a value that the driver does not take
            as it is.
        is_positional: Whether the driver knows them by their places.
        constants: Those that the statement brings along, a limit for one.
    """

    sql: str
    places: tuple[tuple[str, _Converter | None], ...]
    is_positional: bool
    constants: Mapping[str, Any]

    def parameters(self, values: Mapping[str, Any]) -> Sequence[Any] | Mapping[str, Any]:
        if self.constants:
            values = {**self.constants, **values}
        given = [
            values[name] if convert is None else convert(values[name])
            for name, convert in self.places
        ]
        if self.is_positional:
            return given
        return dict(zip((name for name, _ in self.places), given, strict=True))


@lru_cache(maxsize=PLANS_MAX)
def _plan(clause: _Clause, dialect: Dialect) -> _Plan:
    compiled: SQLCompiler = clause.compile(dialect=dialect)
    parameters = {name: bind for bind, name in compiled.bind_names.items()}
    converters = {
        name: bind.type.dialect_impl(dialect).bind_processor(dialect)
        for name, bind in parameters.items()
    }
    return _Plan(
        sql=str(compiled),
        places=tuple((name, converters[name]) for name in compiled.positiontup or parameters),
        is_positional=compiled.positional,
        constants={
            name: bind.effective_value for name, bind in parameters.items() if not bind.required
        },
    )


@lru_cache(maxsize=PLANS_MAX)
def _from_driver(
    clause: Select[Any], dialect: Dialect, column_types: tuple[Any, ...]
) -> tuple[tuple[int, _Converter], ...]:
    """Return which columns the driver gives as something else than they are, by their places."""
    converters = [
        column.type.dialect_impl(dialect).result_processor(dialect, column_type)
        for column, column_type in zip(clause.selected_columns, column_types, strict=True)
    ]
    return tuple(
        (place, convert) for place, convert in enumerate(converters) if convert is not None
    )


def _converted(row: _Row, converters: tuple[tuple[int, _Converter], ...]) -> _Row:
    columns = list(row)
    for place, convert in converters:
        columns[place] = convert(columns[place])
    return tuple(columns)


class _Cursor:
    """A cursor of the driver, whose errors come out as SQLAlchemy's.

    A class, since it is entered ten times in each append and a generator costs three times as much.
    """

    __slots__ = ("_connection", "_cursor", "_sql")

    def __init__(self, connection: Connection, sql: str) -> None:
        self._connection = connection
        self._sql = sql
        self._cursor: Any = connection.connection.cursor()

    def __enter__(self) -> Any:  # noqa: ANN401 - whatever the driver's cursor is
        return self._cursor

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if error is not None:
            self._translate(error)
        self._cursor.close()

    def _translate(self, error: BaseException) -> None:
        dialect = self._connection.dialect
        driver = cast("Any", dialect).loaded_dbapi
        if not isinstance(error, driver.Error):
            return
        is_lost = dialect.is_disconnect(error, self._connection.connection, self._cursor)
        if is_lost:
            self._connection.invalidate(error)
        else:
            self._cursor.close()
        raise DBAPIError.instance(
            self._sql,
            None,
            error,
            driver.Error,
            hide_parameters=True,
            connection_invalidated=is_lost,
            dialect=dialect,
        ) from error
