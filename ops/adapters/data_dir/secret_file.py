"""Writes files that hold a secret."""

from __future__ import annotations

import os
from pathlib import Path

from ops.adapters.data_dir.sync import make_directory, sync_directory


def write_once(file: Path, text: str) -> None:
    """Write a file that only its owner may read; an existing file stays as it is.

    Raises:
        OSError: The file cannot be written.
    """
    make_directory(file.parent)
    # Written under another name first, so that no process reads an incomplete secret.
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    try:
        os.link(draft, file)
    except FileExistsError:
        pass  # another process has written it first
    finally:
        draft.unlink()
    # Data signed with the secret survives a power cut, so the secret must too.
    sync_directory(file.parent)
