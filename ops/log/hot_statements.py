"""Core expressions compiled once, for the statements that every append and every load executes.

``Connection.execute`` looks up the compiled form, builds an execution context and wraps each row
on every call. For a row that is found by its key, that costs several times what the database
needs. ``HotStatement`` compiles its expression once for each dialect and executes the text on the
driver's cursor; rows are plain tuples in the order of the columns. ADR 0022 has the measurement.
SQLAlchemy keeps the schema, the dialects, the connections and the transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from sqlalchemy import (
    Connection,
    Delete,
    Dialect,
    Insert,
    Select,
    Table,
    Update,
    bindparam,
    insert,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler

#: Compiled forms that are cached: one for each statement and engine in use.
COMPILED_MAX = 256

_Clause = Select[Any] | Insert | Update | Delete
_Converter = Callable[[Any], Any]
_Row = tuple[Any, ...]
_Values = Mapping[str, Any]


class HotStatement:
    """A compiled statement; each of its parameters has a name and takes a single value.

    It runs in the transaction of the connection it is given and raises SQLAlchemy's exceptions.

    Args:
        clause: The expression to compile, kept as an attribute.
        columns: Columns that an ``Insert`` or ``Update`` sets from parameters of the same names;
            all columns of the table, or those of its own ``values``, if empty.
    """

    def __init__(self, clause: _Clause, *, columns: Sequence[str] = ()) -> None:
        self.clause = clause
        self._columns = tuple(columns) or None

    def rows(self, connection: Connection, values: Mapping[str, Any]) -> list[_Row]:
        """Return all rows of a query."""
        compiled = self._compiled(connection)
        with _Cursor(connection, compiled.sql) as cursor:
            cursor.execute(compiled.sql, compiled.parameters(values))
            rows: list[_Row] = cursor.fetchall()
            if not rows:
                return []
            column_types = tuple([column[1] for column in cursor.description])
        converters = _result_converters(self.clause, connection.dialect, column_types)
        return [_converted(row, converters) for row in rows] if converters else rows

    def row(self, connection: Connection, values: Mapping[str, Any]) -> _Row | None:
        """Return the first row of a query; ``None`` if it has none."""
        found = self.rows(connection, values)
        return found[0] if found else None

    def run(self, connection: Connection, values: Mapping[str, Any]) -> int:
        """Execute a statement that writes and return how many rows it changed."""
        compiled = self._compiled(connection)
        with _Cursor(connection, compiled.sql) as cursor:
            cursor.execute(compiled.sql, compiled.parameters(values))
            return int(cursor.rowcount)

    def run_many(self, connection: Connection, values: Sequence[Mapping[str, Any]]) -> None:
        """Execute a statement that writes once for each set of values."""
        compiled = self._compiled(connection)
        with _Cursor(connection, compiled.sql) as cursor:
            cursor.executemany(compiled.sql, [compiled.parameters(each) for each in values])

    def _compiled(self, connection: Connection) -> _Compiled:
        return _compile(self.clause, self._columns, connection.dialect)


class RecordTable:
    """The rows of a table that have a record, read and written by their id.

    Args:
        table: With the columns ``id`` and ``record``.
        fixed: Columns that keep their first value.
    """

    def __init__(self, table: Table, *, fixed: Collection[str]) -> None:
        is_row = table.c.id == bindparam("row_id")
        changing = [one.name for one in table.columns if one.name not in {"id", *fixed}]
        self._read = HotStatement(select(table.c.record).where(is_row))
        self._insert = HotStatement(insert(table).inline())
        self._update = HotStatement(update(table).where(is_row), columns=changing)

    def read(self, connection: Connection, row_id: str) -> str | None:
        """Return the record of a row, if there is one."""
        row = self._read.row(connection, {"row_id": row_id})
        return None if row is None else row[0]

    def write(
        self, connection: Connection, *, fresh: Sequence[_Values], changed: Sequence[_Values]
    ) -> None:
        """Insert and update rows, each as values by column."""
        if fresh:
            self._insert.run_many(connection, fresh)
        if changed:
            self._update.run_many(connection, [{"row_id": row["id"], **row} for row in changed])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compiled:
    """A statement in the form that a dialect's driver takes.

    Attributes:
        binds: Name of each parameter in order, and the conversion for a type that the driver does
            not take as it is.
        is_positional: Whether the driver takes parameters by position instead of by name.
        constants: Values that the expression itself contains, such as a limit.
    """

    sql: str
    binds: tuple[tuple[str, _Converter | None], ...]
    is_positional: bool
    constants: Mapping[str, Any]

    def parameters(self, values: Mapping[str, Any]) -> Sequence[Any] | Mapping[str, Any]:
        if self.constants:
            values = {**self.constants, **values}
        converted = [
            values[name] if convert is None else convert(values[name])
            for name, convert in self.binds
        ]
        if self.is_positional:
            return converted
        return dict(zip((name for name, _ in self.binds), converted, strict=True))


@lru_cache(maxsize=COMPILED_MAX)
def _compile(clause: _Clause, columns: tuple[str, ...] | None, dialect: Dialect) -> _Compiled:
    compiled: SQLCompiler = clause.compile(dialect=dialect, column_keys=columns)
    parameters = {name: bind for bind, name in compiled.bind_names.items()}
    converters = {
        name: bind.type.dialect_impl(dialect).bind_processor(dialect)
        for name, bind in parameters.items()
    }
    return _Compiled(
        sql=str(compiled),
        binds=tuple((name, converters[name]) for name in compiled.positiontup or parameters),
        is_positional=compiled.positional,
        constants={
            name: bind.effective_value for name, bind in parameters.items() if not bind.required
        },
    )


@lru_cache(maxsize=COMPILED_MAX)
def _result_converters(
    clause: Select[Any], dialect: Dialect, column_types: tuple[Any, ...]
) -> tuple[tuple[int, _Converter], ...]:
    """Return index and conversion of each column that the driver returns in another type."""
    converters = [
        column.type.dialect_impl(dialect).result_processor(dialect, column_type)
        for column, column_type in zip(clause.selected_columns, column_types, strict=True)
    ]
    return tuple(
        (index, convert) for index, convert in enumerate(converters) if convert is not None
    )


def _converted(row: _Row, converters: tuple[tuple[int, _Converter], ...]) -> _Row:
    columns = list(row)
    for index, convert in converters:
        columns[index] = convert(columns[index])
    return tuple(columns)


class _Cursor:
    """A cursor of the driver that raises SQLAlchemy's exceptions.

    A class, because each append enters it ten times and a generator costs three times as much.
    """

    __slots__ = ("_connection", "_cursor", "_sql")

    def __init__(self, connection: Connection, sql: str) -> None:
        self._connection = connection
        self._sql = sql
        self._cursor: Any = connection.connection.cursor()

    def __enter__(self) -> Any:  # noqa: ANN401 - each driver has its own cursor type
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
