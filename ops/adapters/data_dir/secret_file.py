"""Files that hold a secret."""

from __future__ import annotations

import os
from pathlib import Path

from ops.adapters.data_dir.sync import sync_directory


def write_once(file: Path, text: str) -> None:
    """Write a file that only its owner may read, unless somebody was first; theirs then stays.

    Raises:
        OSError: It cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    # Whole under another name first: nobody ever reads half a secret.
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    try:
        os.link(draft, file)
    except FileExistsError:
        pass  # somebody else was first; theirs is the secret
    finally:
        draft.unlink()
    # What was signed with it outlives a power cut, so it must too.
    sync_directory(file.parent)
