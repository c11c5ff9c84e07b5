"""Configuration files of working directories, which the user trusts one by one.

A directory may come from somewhere else, as a cloned repository does. Its ``semantic.toml`` could
name webhooks, another log or another model, so it is read only after ``semantic config trust``. The
user's configuration directory keeps the path and the digest of each trusted file: a changed file
needs trust again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ops.settings.places import CONFIG_NAME, user_config_dir

#: Name under which the settings take a trusted file of the working directory.
DIRECTORY_FILE: Final = "directory_file"
#: A larger file is not read.
FILE_BYTES_MAX: Final = 1_048_576
_STORE_NAME: Final = "trusted.json"
_PREFIX: Final = b"SEMANTIC_"


class NotTrustable(ValueError):
    """A file that cannot be trusted; the message names it."""


@dataclass(frozen=True, slots=True)
class DirectoryFile:
    """A trusted configuration file.

    Attributes:
        path: The file, without links.
        content: What was read and compared with the trusted digest.
    """

    path: Path
    content: bytes


def read_directory(directory: Path) -> tuple[DirectoryFile | None, tuple[str, ...]]:
    """Return the trusted configuration file of a directory, and what is not read there.

    Returns:
        The file, if there is a trusted one, and a line for each file that is not read.
    """
    ignored = []
    if _sets_variables(directory / ".env"):
        path = directory.absolute() / ".env"
        ignored.append(f"{path} is not read: export its variables, or use --config FILE")
    if not os.path.lexists(directory / CONFIG_NAME):
        return None, tuple(ignored)
    path = _place(directory)
    digest = _trusted().get(str(path))
    if digest is None:
        ignored.append(f"{path} is not trusted and not read; to use it: semantic config trust")
        return None, tuple(ignored)
    try:
        content = _content(path)
    except NotTrustable:
        content = b""
    if _digest(content) != digest:
        ignored.append(
            f"{path} has changed since you trusted it and is not read; to use it: semantic config"
            " trust"
        )
        return None, tuple(ignored)
    return DirectoryFile(path, content), tuple(ignored)


def trust(directory: Path) -> tuple[Path, tuple[str, ...]]:
    """Trust the present content of a directory's configuration file.

    Returns:
        The file, and the names of the settings in it.

    Raises:
        NotTrustable: It is missing, no regular file, too large, or no TOML.
        OSError: The user's configuration directory cannot be written.
    """
    path = _place(directory)
    content = _content(path)
    try:
        values = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise NotTrustable(f"{path} is not valid TOML: {error}") from error
    with _locked_store() as store:
        _write(store, {**_trusted(), str(path): _digest(content)})
    return path, tuple(_names(values))


def distrust(directory: Path) -> bool:
    """Forget the file of a directory; return whether it was trusted.

    Raises:
        OSError: The user's configuration directory cannot be written.
    """
    path = str(_place(directory))
    with _locked_store() as store:
        known = dict(_trusted())
        if known.pop(path, None) is None:
            return False
        _write(store, known)
    return True


def _place(directory: Path) -> Path:
    return Path(os.path.realpath(directory / CONFIG_NAME))


def _sets_variables(file: Path) -> bool:
    try:
        return _PREFIX in _content(file).upper()
    except NotTrustable:
        return False


def _names(values: Mapping[str, Any], group: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict) and not group:
            yield from _names(value, f"{name}.")
        else:
            yield group + name


def _content(path: Path) -> bytes:
    try:
        # A pipe of this name must not make the command wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NotTrustable(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotTrustable(f"{path} is no regular file")
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise NotTrustable(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    return content


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _trusted() -> Mapping[str, str]:
    """Return the trusted digests by path; a file that is not valid trusts nothing."""
    try:
        found = json.loads(_content(user_config_dir() / _STORE_NAME))
    except (NotTrustable, ValueError):
        return {}
    files = found.get("files") if isinstance(found, dict) else None
    return files if isinstance(files, dict) else {}


@contextmanager
def _locked_store() -> Iterator[Path]:
    """Yield the file of the digests; one process at a time changes it."""
    directory = user_config_dir()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield directory / _STORE_NAME
    finally:
        os.close(descriptor)


def _write(store: Path, files: Mapping[str, str]) -> None:
    draft = store.with_name(f"{store.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump({"files": dict(files)}, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(descriptor)
    draft.replace(store)
