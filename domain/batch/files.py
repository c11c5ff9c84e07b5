"""The state of a file, uploaded or derived from a batch, folded from its events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NewType

from domain.events.batch import FileCreated, FileDeleted, FileEvent

#: ``file-`` and 32 hex digits.
FileId = NewType("FileId", str)

FILE_PREFIX: Final = "file-"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """The state of one file.

    Attributes:
        version: Number of events folded.
        created: The facts; ``None`` only before the first event.
        created_at: RFC 3339 instant of its first event.
        deleted: Whether its owner deleted it.
    """

    id: FileId
    version: int = 0
    created: FileCreated | None = None
    created_at: str = ""
    deleted: bool = False

    @property
    def facts(self) -> FileCreated:
        """The facts of a file that exists."""
        assert self.created is not None
        return self.created

    def is_shown(self, now: str) -> bool:
        """Whether its owner can see it at the instant ``now``."""
        if self.created is None or self.deleted:
            return False
        return self.created.expires_at is None or now < self.created.expires_at


def fold(file_id: FileId, events: Iterable[tuple[FileEvent, str]]) -> StoredFile:
    """Return the state after events, each with the instant of its record."""
    file = StoredFile(id=file_id)
    for event, at in events:
        match event:
            case FileCreated():
                file = replace(file, created=event, created_at=at)
            case FileDeleted():
                file = replace(file, deleted=True)
        file = replace(file, version=file.version + 1)
    return file
