from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import IntegrityError, OperationalError

from ops.log.database import writer_engine
from ops.log.hot_statements import HotStatement, _compile

THINGS = Table(
    "things",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False),
    Column("is_new", Boolean),
    Column("content", LargeBinary),
)
INSERT = HotStatement(insert(THINGS).inline())
BY_NAME = HotStatement(
    select(THINGS).where(THINGS.c.name == bindparam("name")).order_by(THINGS.c.id).limit(2)
)
RENAME = HotStatement(update(THINGS).where(THINGS.c.id == bindparam("key")), columns=["name"])


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    engine = writer_engine(f"sqlite:///{tmp_path / 'things.sqlite3'}")
    with engine.connect() as opened:
        THINGS.create(opened)
        opened.commit()
        yield opened
    engine.dispose()


def _thing(number: int, name: str | None, *, is_new: bool | None = None) -> dict[str, object]:
    return {"id": number, "name": name, "is_new": is_new, "content": b"\x00\xff"}


def test_rows_hold_what_sqlalchemy_would_have_given(connection: Connection) -> None:
    things = [_thing(1, "a", is_new=True), _thing(2, "a", is_new=False), _thing(3, "a")]
    INSERT.run_many(connection, things)
    rows = BY_NAME.rows(connection, {"name": "a"})
    assert rows == [tuple(thing.values()) for thing in things[:2]]
    assert rows == [tuple(row) for row in connection.execute(select(THINGS).limit(2))]
    assert rows[0][2] is True
    assert BY_NAME.row(connection, {"name": "b"}) is None


def test_a_write_tells_how_many_rows_it_touched(connection: Connection) -> None:
    INSERT.run(connection, _thing(1, "a"))
    assert RENAME.run(connection, {"key": 1, "name": "b"}) == 1
    assert RENAME.run(connection, {"key": 2, "name": "b"}) == 0
    assert BY_NAME.row(connection, {"name": "b"}) is not None


def test_writes_belong_to_the_transaction_that_they_are_in(connection: Connection) -> None:
    with connection.begin() as transaction:
        INSERT.run(connection, _thing(1, "a"))
        transaction.rollback()
    assert BY_NAME.rows(connection, {"name": "a"}) == []


def test_errors_of_the_driver_are_those_of_sqlalchemy_and_hide_the_data(
    connection: Connection,
) -> None:
    with pytest.raises(IntegrityError, match="NOT NULL") as caught:
        INSERT.run_many(connection, [_thing(1, "secret"), _thing(2, None)])
    assert "secret" not in str(caught.value)
    connection.exec_driver_sql("DROP TABLE things")
    with pytest.raises(OperationalError, match="no such table"):
        BY_NAME.rows(connection, {"name": "a"})


def test_a_value_that_is_missing_is_never_replaced_by_null(connection: Connection) -> None:
    with pytest.raises(KeyError, match="content"):
        INSERT.run(connection, {"id": 1, "name": "a", "is_new": None})


def test_a_driver_that_wants_names_is_given_names() -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # not annotated there
    compiled = _compile(BY_NAME.clause, None, dialect)
    assert "%(name)s" in compiled.sql
    assert compiled.parameters({"name": "a"}) == {"name": "a", "param_1": 2}
