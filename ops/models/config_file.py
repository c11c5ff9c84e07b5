"""Adds and removes ``[models.NAME]`` in a configuration file, and keeps all other lines."""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class NotEditable(ValueError):
    """The file cannot be edited by a command; the message has the reason."""


def add_table(file: Path, name: str, values: Mapping[str, Any]) -> None:
    """Append ``[models.NAME]`` to a file, which need not exist.

    Args:
        name: A name without a table in this file.
        values: Strings, numbers, lists of strings, and mappings of those.

    Raises:
        NotEditable: The file is not valid TOML, or has the model in a form that cannot be extended.
        OSError: The file cannot be read or written.
    """

    def added(text: str) -> str:
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        lines = [f"[models.{_key(name)}]"]
        lines += [f"{_key(key)} = {_value(value)}" for key, value in values.items()]
        return text + gap + "\n".join(lines) + "\n"

    def expected(before: dict[str, Any]) -> dict[str, Any]:
        return {**before, "models": {**before.get("models", {}), name: dict(values)}}

    _edit(file, added, expected, f"[models.{name}]")


def remove_table(file: Path, name: str) -> None:
    """Remove ``[models.NAME]`` and its subtables from a file; comments around them stay.

    Raises:
        NotEditable: The file is not valid TOML, or has the model in another form than a table.
        OSError: The file cannot be read or written.
    """

    def removed(text: str) -> str:
        return "".join(_lines_without(_LINE.findall(text), name))

    def expected(before: dict[str, Any]) -> dict[str, Any]:
        left = {key: value for key, value in before["models"].items() if key != name}
        return {**before, "models": left}

    _edit(file, removed, expected, f"[models.{name}]")


def tables_of(file: Path) -> Mapping[str, Any]:
    """Return ``[models]`` of a file; empty if there is none.

    Raises:
        NotEditable: The file is not valid TOML.
        OSError: The file cannot be read.
    """
    models = _parsed(file, _text_of(file)).get("models", {})
    return models if isinstance(models, Mapping) else {}


def _edit(
    file: Path,
    change: Callable[[str], str],
    expected: Callable[[dict[str, Any]], dict[str, Any]],
    what: str,
) -> None:
    """Replace the file by its changed text if that means what is expected."""
    target = file.resolve()  # a link stays a link
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent):
        before = _text_of(target)
        values = _parsed(file, before)
        after = change(before)
        try:
            found = tomllib.loads(after)
        except tomllib.TOMLDecodeError:
            found = None
        if found is None or _without_empty(found) != _without_empty(expected(values)):
            raise NotEditable(f"{file} has a form in which {what} must be edited by hand")
        _replace(target, after)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Let one process at a time edit files of a directory."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(target: Path, text: str) -> None:
    mode = target.stat().st_mode if target.exists() else None
    with tempfile.NamedTemporaryFile(
        dir=target.parent, prefix=f".{target.name}.", delete=False
    ) as file:
        try:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
            if mode is not None:
                os.fchmod(file.fileno(), mode & 0o7777)
            Path(file.name).replace(target)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _lines_without(lines: list[str], name: str) -> Iterator[str]:
    """Yield the lines that are not in the tables of a model."""
    inside = False
    pending: list[str] = []  # comments and blank lines that may belong to the next table
    for line in lines:
        path = _header(line)
        if path is not None:
            inside = path[:2] == ("models", name)
        if not inside:
            yield from pending
            pending.clear()
            yield line
        elif path is None and not line.partition("#")[0].strip():
            pending.append(line)
        else:
            pending.clear()
    yield from pending


def _header(line: str) -> tuple[str, ...] | None:
    """Return the keys of the header of a table, if the line is one."""
    if not line.lstrip().startswith("["):
        return None
    try:
        value: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    keys: list[str] = []
    while isinstance(value, dict) and value:
        key = next(iter(value))
        keys.append(key)
        value = value[key]
    return tuple(keys)


def _text_of(file: Path) -> str:
    # Bytes, so that the ends of lines stay what they are.
    return file.read_bytes().decode() if file.exists() else ""


def _parsed(file: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise NotEditable(f"{file} is not valid TOML: {error}") from error


def _without_empty(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without an empty ``[models]``, whose header may be implicit."""
    return {key: value for key, value in values.items() if key != "models" or value}


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _value(key)


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {_value(part)}" for key, part in value.items())
        return f"{{ {inner} }}"
    return json.dumps(value, ensure_ascii=False)
