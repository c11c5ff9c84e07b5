"""Random changes of the bytes of a file, and of the rows of its database."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from ops.log.sqlite_driver import driver_module

#: Longest run of bytes that one change covers.
_RUN_BYTES_MAX: Final = 4096

#: Changes of bytes; half of all are flipped bits.
BYTE_CHANGES: Final = ("bit", "byte", "overwrite", "zero", "swap", "cut", "drop", "repeat")


def _change(kind: str, content: bytearray, at: random.Random) -> None:
    """Change a byte, or a run of bytes, at a random place."""
    first = at.randrange(len(content))
    last = min(len(content), first + at.choice((2, 16, 512, _RUN_BYTES_MAX)))
    match kind:
        case "bit":
            content[first] ^= 1 << at.randrange(8)
        case "byte":
            content[first] = at.randrange(256)
        case "overwrite":
            content[first:last] = at.randbytes(last - first)
        case "zero":
            content[first:last] = bytes(last - first)
        case "swap":
            other = at.randrange(len(content) - (last - first) + 1)
            kept = content[first:last]
            content[first:last] = content[other : other + len(kept)]
            content[other : other + len(kept)] = kept
        case "cut":
            del content[first:]
        case "drop":
            del content[first:last]
        case _:
            content[last:last] = content[first:last]


def change_bytes(file: Path, at: random.Random) -> str:
    """Change a file at random places and return the kind of change."""
    kind = at.choice(("bit",) * len(BYTE_CHANGES) + BYTE_CHANGES)
    content = bytearray(file.read_bytes())
    if content:
        _change(kind, content, at)
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
        _change("bit", content, at)
        return bytes(content)
    if isinstance(value, int | float):
        return value + at.choice((-1, 1))
    return at.choice(("", "another", 0, 1))
