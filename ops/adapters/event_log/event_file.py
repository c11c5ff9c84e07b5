"""Files of events: one JSON object a line, with every field of the envelope and its hash.

A file can be verified without the database. A file whose name ends in ``.gz`` is compressed.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from domain.errors import CorruptLog, LogUnavailable
from domain.log.record import GENESIS_HASH, LogHead, RecordedEvent, verify_link
from domain.values import StreamName
from ops.adapters.data_dir.sync import sync_directory

#: Longest line that is read; events are small, since their texts are payloads.
LINE_CHARS_MAX = 16 * 1024 * 1024
_GZIP_LEVEL = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedFile:
    """The extent of a file that verifies.

    Attributes:
        events: How many events it holds.
        base: Position and hash before the first event; ``None`` for an empty file.
        head: Position and hash of the last event; ``None`` for an empty file.
        gaps: How often positions are missing between two events. A file with gaps shows that each
            event is unchanged, but not that the file is complete.
    """

    events: int
    base: LogHead | None
    head: LogHead | None
    gaps: int

    def holds_exactly(self, base: LogHead, head: LogHead) -> bool:
        """Whether the file holds every event above ``base`` up to ``head``, and no other."""
        return (self.base, self.head, self.gaps) == (base, head, 0)


def event_line(event: RecordedEvent) -> str:
    """Return an event as a line of ASCII."""
    return (
        json.dumps(event.envelope(), sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"
    )


def write_events(path: Path, events: Iterable[RecordedEvent]) -> int:
    """Write events to a new file, which appears under its name only when complete.

    Returns:
        How many events were written.

    Raises:
        LogUnavailable: The file exists already, or cannot be written.
    """
    if path.exists():
        msg = f"{path} exists already"
        raise LogUnavailable(msg)
    draft = path.with_name(path.name + ".part")
    try:
        with draft.open("wb") as file:
            count = _write(file, events, compressed=path.suffix == ".gz")
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
        sync_directory(path.parent)
    except OSError as error:
        msg = f"{path} cannot be written: {error}"
        raise LogUnavailable(msg) from error
    return count


def read_events(path: Path) -> Iterator[RecordedEvent]:
    """Yield the events of a file.

    Raises:
        LogUnavailable: The file cannot be read.
        CorruptLog: A line is not an event; the position is that of the expected event.
    """
    expected = 1
    try:
        with path.open("rb") as file:
            stream = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
            with io.TextIOWrapper(stream, encoding="utf-8", newline="\n") as lines:
                while line := lines.readline(LINE_CHARS_MAX):
                    event = _event(line, expected)
                    expected = event.position + 1
                    yield event
    except (gzip.BadGzipFile, zlib.error, EOFError, UnicodeDecodeError) as error:
        raise CorruptLog(expected, f"the file is damaged: {error}") from error
    except OSError as error:
        msg = f"{path} cannot be read: {error}"
        raise LogUnavailable(msg) from error


def verify_file(path: Path, *, signed_hashes: Mapping[int, str] | None = None) -> VerifiedFile:
    """Verify every event of a file, and the links between neighbouring positions.

    Args:
        path: As ``write_events`` wrote it.
        signed_hashes: By position, from signed checkpoints; positions outside the file are ignored.

    Raises:
        CorruptLog: Naming the first position that does not verify.
        LogUnavailable: The file cannot be read.
    """
    signed = signed_hashes or {}
    base: LogHead | None = None
    head: LogHead | None = None
    count = gaps = 0
    for event in read_events(path):
        if head is None:
            head = base = _before(event)
        elif event.position > head.position + 1:
            gaps += 1
            head = _before(event)
        head = _linked(event, head)
        if signed.get(head.position, head.hash) != head.hash:
            raise CorruptLog(head.position, "another event stood here when the head was signed")
        count += 1
    return VerifiedFile(events=count, base=base, head=head, gaps=gaps)


def _linked(event: RecordedEvent, before: LogHead) -> LogHead:
    try:
        return verify_link(event, before)
    except (TypeError, ValueError, RecursionError) as error:
        raise CorruptLog(event.position, f"the content cannot be hashed: {error}") from error


def _before(event: RecordedEvent) -> LogHead:
    """Return the position and hash that an event names as its predecessor."""
    hash_ = GENESIS_HASH if event.position == 1 else event.prev_hash
    return LogHead(position=event.position - 1, hash=hash_)


def _write(file: BinaryIO, events: Iterable[RecordedEvent], *, compressed: bool) -> int:
    count = 0
    # Without a name and a time in the header, the same events give the same bytes.
    packed = gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) if compressed else None
    for event in events:
        (packed or file).write(event_line(event).encode("ascii"))
        count += 1
    if packed is not None:
        packed.close()
    return count


def _event(line: str, expected: int) -> RecordedEvent:
    try:
        fields = json.loads(line)
        event = RecordedEvent(**fields)
    except (TypeError, ValueError, RecursionError) as error:
        raise CorruptLog(expected, "a line is no event") from error
    if type(event.position) is not int or not isinstance(event.stream, str):
        raise CorruptLog(expected, "a line is no event")
    return dataclasses.replace(event, stream=StreamName(event.stream))
