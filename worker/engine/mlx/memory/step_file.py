"""Remembers measured steps in a file, so that a restarted worker does not measure again."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from domain.kv.plan import StepMemory

#: Measures that the file holds; the oldest are dropped.
_ENTRIES_MAX = 32


class StepFile:
    """Measured steps by key. A file that is missing or garbled is empty.

    Args:
        path: The file; its directory exists.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str) -> StepMemory | None:
        """Return the measure of a key, ``None`` where there is none."""
        entry = self._entries().get(key)
        try:
            return None if entry is None else StepMemory(**entry)
        except TypeError:
            return None

    def put(self, key: str, step: StepMemory) -> None:
        """Remember a measure. A file that cannot be written is left as it is."""
        entries = self._entries()
        entries.pop(key, None)
        entries[key] = asdict(step)
        kept = dict(list(entries.items())[-_ENTRIES_MAX:])
        draft = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            draft.write_text(json.dumps(kept), encoding="utf-8")
            draft.replace(self._path)
        except OSError:
            draft.unlink(missing_ok=True)

    def _entries(self) -> dict[str, dict[str, int]]:
        try:
            entries = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        is_valid = isinstance(entries, dict) and all(
            isinstance(entry, dict) for entry in entries.values()
        )
        return entries if is_valid else {}
