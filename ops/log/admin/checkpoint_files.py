"""Reads and writes the files of the signed checkpoints: the key, and the checkpoints."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from domain.errors import CorruptLog, LogUnavailable
from domain.log.checkpoints import (
    KEY_BYTES,
    CheckpointKind,
    ForgedCheckpoint,
    SignedCheckpoint,
    read_checkpoints,
    sign_checkpoint,
)
from domain.log.record import LogHead
from domain.ports import Clock
from domain.values import rfc3339
from ops.data_dir.permissions import (
    replace_file,
    sync_directory,
    sync_drive,
    write_once,
)
from ops.log.archives import read_anchor
from ops.log.database import reading, unavailable
from ops.log.reader import LogReader
from ops.log.row_codec import hash_at

KEY_NAME = "heads.key"
CHECKPOINTS_NAME = "heads.jsonl"
#: A copy of the last line of the checkpoints, which shows that lines are missing at their end.
LAST_NAME = "heads.last"
#: Most bytes that are read of the file; a checkpoint a minute for ten years is less.
CHECKPOINTS_BYTES_MAX = 2**31
_LINE_BYTES_MAX = 64 * 1024


class CheckpointsCut(ForgedCheckpoint):
    """The end of the checkpoints is missing, or the copy of their last line is damaged."""

    code = ForgedCheckpoint.code

    def __init__(self, cut: str, whole: str) -> None:
        super().__init__(f"{cut} lacks what {whole} has; remove both to begin anew")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFiles:
    """The paths of the key and the checkpoints; keep copies of both on another machine.

    Attributes:
        key: File of 64 hex digits, readable by the owner only.
        checkpoints: File of one signed checkpoint a line.
    """

    key: Path
    checkpoints: Path

    @classmethod
    def of(cls, data_dir: Path) -> CheckpointFiles:
        """Return the files of a data directory."""
        return cls(key=data_dir / KEY_NAME, checkpoints=data_dir / CHECKPOINTS_NAME)

    def load_key(self) -> bytes:
        """Return the key.

        Raises:
            LogUnavailable: The file is missing or holds no key.
        """
        with unavailable("the key of the checkpoints cannot be read", OSError, ValueError):
            key = bytes.fromhex(self.key.read_text("ascii").strip())
        if len(key) != KEY_BYTES:
            raise LogUnavailable(f"{self.key} is no key of {KEY_BYTES} bytes")
        return key

    def make_key(self) -> bytes:
        """Return the key; generate it if there is none.

        Raises:
            LogUnavailable: The key cannot be written, or checkpoints exist without their key.
        """
        if self.key.exists():
            return self.load_key()
        if self.checkpoints.exists():
            msg = f"{self.checkpoints} was signed with a key that is not there: {self.key}"
            raise LogUnavailable(msg)
        with unavailable("the key of the checkpoints cannot be written", OSError):
            write_once(self.key, os.urandom(KEY_BYTES).hex() + "\n")
        return self.load_key()

    def read(self) -> tuple[SignedCheckpoint, ...]:
        """Return the checkpoints, whose signatures are valid; none if there is no file.

        Raises:
            ForgedCheckpoint: A line has no valid signature.
        """
        if not self.checkpoints.exists() and not self._last_path.exists():
            return ()
        # Before the lines: another process may append one meanwhile.
        last = self._last_signed()
        found = read_checkpoints(self._lines(CHECKPOINTS_BYTES_MAX), key=self.load_key())
        if last is not None and last not in found:
            raise CheckpointsCut(self.checkpoints.name, LAST_NAME)
        return found

    def last(self) -> SignedCheckpoint | None:
        """Return the last checkpoint without reading the others.

        Raises:
            ForgedCheckpoint: Its signature is not valid.
        """
        signed = self._last_signed()
        lines = self._lines(_LINE_BYTES_MAX)
        if signed is not None and signed.to_line().strip() not in lines:
            raise CheckpointsCut(self.checkpoints.name, LAST_NAME)
        return read_checkpoints(lines[-1:], key=self.load_key())[0] if lines else None

    def append(self, checkpoint: SignedCheckpoint) -> None:
        """Append a checkpoint durably; concurrent processes take turns."""
        with unavailable("the checkpoints cannot be written", OSError):
            descriptor = os.open(self.checkpoints, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                size = file.seek(0, os.SEEK_END)
                begin = file.seek(max(0, size - _LINE_BYTES_MAX))
                file.seek(begin + len(_complete(file.read())))
                file.truncate()
                file.write(checkpoint.to_line().encode())
                file.flush()
                sync_drive(file.fileno())
            if not size:
                sync_directory(self.checkpoints.parent)
            # The line that it repeats is durable.
            replace_file(self._last_path, checkpoint.to_line(), is_durable=True)

    @property
    def _last_path(self) -> Path:
        return self.checkpoints.with_name(LAST_NAME)

    def _last_signed(self) -> SignedCheckpoint | None:
        """Return the checkpoint of ``heads.last``, a copy of the last line."""
        if not self._last_path.exists():
            return None
        with unavailable("the checkpoints cannot be read", OSError):
            line = self._last_path.read_text("utf-8", "replace")
        found = read_checkpoints([line], key=self.load_key())
        if len(found) != 1:
            raise CheckpointsCut(LAST_NAME, self.checkpoints.name)
        return found[0]

    def _lines(self, bytes_max: int) -> list[str]:
        """Return the complete lines of the last bytes."""
        if not self.checkpoints.exists():
            return []
        failure = "the checkpoints cannot be read"
        with unavailable(failure, OSError), self.checkpoints.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - bytes_max))
            content = file.read(bytes_max)
        return _complete(content).decode("utf-8", "replace").splitlines()


def _complete(content: bytes) -> bytes:
    """Return the lines without a last one that a power cut left without its end or its beginning.

    The beginning lies in another block of the disk then, and reads as zeros.
    """
    end = content.rfind(b"\n") + 1
    begin = content.rfind(b"\n", 0, max(0, end - 1)) + 1
    return content[: begin if content.startswith(b"\0", begin) else end]


def sign_log(engine: Engine, files: CheckpointFiles, *, clock: Clock) -> SignedCheckpoint:
    """Sign a checkpoint; return the last one if the log has not grown since.

    Raises:
        CorruptLog: The log does not contain the last checkpoint, so nothing is signed.
        ForgedCheckpoint: The last checkpoint has no valid signature.
    """
    key = files.make_key()
    last = files.last()
    if last is not None and last.position:
        verify_checkpoint(engine, LogHead(position=last.position, hash=last.hash))
    head = LogReader(engine).head()
    if last is not None and (last.position, last.hash) == (head.position, head.hash):
        return last
    return _signed(head, files, key=key, clock=clock, kind="head")


def sign_restore(
    engine: Engine, files: CheckpointFiles, *, clock: Clock
) -> SignedCheckpoint | None:
    """Sign that the log was restored on purpose; ``None`` if there is no checkpoint.

    Raises:
        ForgedCheckpoint: The last checkpoint has no valid signature.
    """
    if files.last() is None:
        return None
    head = LogReader(engine).head()
    return _signed(head, files, key=files.load_key(), clock=clock, kind="restore")


def verify_checkpoint(engine: Engine, signed: LogHead) -> None:
    """Check that the log still has the event of a checkpoint; reads that event only.

    Raises:
        CorruptLog: The event is missing or another one.
    """
    with reading(engine) as connection:
        anchor = read_anchor(connection)
        found = hash_at(connection, signed.position)
    if found is None and signed.position < anchor.position:
        return  # archived: `verify_archives` checks it
    if signed.position == anchor.position:
        found = anchor.hash
    if found is None:
        raise CorruptLog(signed.position, "the log ends before its last signed head")
    if found != signed.hash:
        raise CorruptLog(signed.position, "another event stood here when the head was signed")


def _signed(
    head: LogHead, files: CheckpointFiles, *, key: bytes, clock: Clock, kind: CheckpointKind
) -> SignedCheckpoint:
    checkpoint = sign_checkpoint(head, key=key, at=rfc3339(clock.now()), kind=kind)
    files.append(checkpoint)
    return checkpoint
