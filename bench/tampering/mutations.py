"""Random changes of the bytes of a file, and of the rows of its database."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from ops.adapters.event_log.sqlite_driver import driver_module

#: Longest run of bytes that one change covers.
_RUN_BYTES_MAX: Final = 4096

_Bytes = Callable[[bytearray, random.Random], None]


def _flip(content: bytearray, at: random.Random) -> None:
    content[at.randrange(len(content))] ^= 1 << at.randrange(8)


def _replace(content: bytearray, at: random.Random) -> None:
    content[at.randrange(len(content))] = at.randrange(256)


def _run(content: bytearray, at: random.Random) -> tuple[int, int]:
    first = at.randrange(len(content))
    return first, min(len(content), first + at.choice((2, 16, 512, _RUN_BYTES_MAX)))


def _overwrite(content: bytearray, at: random.Random) -> None:
    first, last = _run(content, at)
    content[first:last] = at.randbytes(last - first)


def _zero(content: bytearray, at: random.Random) -> None:
    first, last = _run(content, at)
    content[first:last] = bytes(last - first)


def _swap(content: bytearray, at: random.Random) -> None:
    length = min(at.choice((1, 16, 512, _RUN_BYTES_MAX)), len(content) // 2)
    one, other = (at.randrange(len(content) - length + 1) for _ in range(2))
    first, second = bytes(content[one : one + length]), bytes(content[other : other + length])
    content[one : one + length], content[other : other + length] = second, first


def _cut(content: bytearray, at: random.Random) -> None:
    del content[at.randrange(len(content)) :]


def _drop(content: bytearray, at: random.Random) -> None:
    first, last = _run(content, at)
    del content[first:last]


def _repeat(content: bytearray, at: random.Random) -> None:
    first, last = _run(content, at)
    content[last:last] = content[first:last]


#: Changes of bytes; half of all are flipped bits.
BYTE_CHANGES: Final[Mapping[str, _Bytes]] = {
    "bit": _flip,
    "byte": _replace,
    "overwrite": _overwrite,
    "zero": _zero,
    "swap": _swap,
    "cut": _cut,
    "drop": _drop,
    "repeat": _repeat,
}


def change_bytes(file: Path, at: random.Random) -> str:
    """Change a file at random places and return the kind of change."""
    kind = at.choice(["bit"] * len(BYTE_CHANGES) + list(BYTE_CHANGES))
    content = bytearray(file.read_bytes())
    if content:
        BYTE_CHANGES[kind](content, at)
    file.write_bytes(content)
    return kind


def change_row(file: Path, at: random.Random) -> str:
    """Change, delete or repeat a random row as another program would, with the triggers off."""
    with closing(driver_module().connect(str(file), isolation_level=None)) as raw:
        triggers = raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        kept = triggers.fetchall()
        for name, _ in kept:
            raw.execute(f'DROP TRIGGER "{name}"')
        kind = _change_one_row(raw, at)
        for _, sql in kept:
            raw.execute(sql)
    return kind


def _change_one_row(raw: Any, at: random.Random) -> str:
    names = raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    filled = [name for (name,) in names if _rows(raw, name)]
    table = at.choice(filled)
    row = at.choice(_rows(raw, table))
    kind = at.choice(("row deleted", "value changed", "value changed", "values swapped"))
    # The log deletes webhooks by itself: their absence is no damage.
    if kind == "row deleted" and table != "webhooks":
        raw.execute(f'DELETE FROM "{table}" WHERE rowid = ?', (row,))  # noqa: S608 - own names
        return f"{kind}: {table}"
    columns = [info[1] for info in raw.execute(f'PRAGMA table_info("{table}")')]
    column = at.choice(columns)
    query = f'SELECT "{column}" FROM "{table}" WHERE rowid = ?'  # noqa: S608 - own names
    ((value,),) = raw.execute(query, (row,)).fetchall()
    fresh = _another(value, at)
    if kind == "values swapped":
        ((fresh,),) = raw.execute(query, (at.choice(_rows(raw, table)),)).fetchall()
    try:
        raw.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', (fresh, row))  # noqa: S608 - own names
    except driver_module().IntegrityError:
        kind = "nothing, refused by a constraint"
    return f"{kind}: {table}.{column}"


def _rows(raw: Any, table: str) -> list[int]:
    return [row for (row,) in raw.execute(f'SELECT rowid FROM "{table}"').fetchall()]  # noqa: S608 - own names


def _another(value: object, at: random.Random) -> object:
    """Return a value of the same type that differs in one character, bit or unit."""
    if isinstance(value, str) and value:
        place = at.randrange(len(value))
        return value[:place] + at.choice("0123456789abcdefXYZ") + value[place + 1 :]
    if isinstance(value, bytes) and value:
        content = bytearray(value)
        _flip(content, at)
        return bytes(content)
    if isinstance(value, int | float):
        return value + at.choice((-1, 1))
    return at.choice(("", "another", 0, 1))
