"""Signed checkpoints of the log, stored apart from it.

The hash chain reveals every change in the middle of the log. It does not reveal that the end is
missing, or that an earlier state replaced the whole log. A checkpoint of an old head reveals both,
as long as only holders of the key can write one. The signature is HMAC-SHA256 (RFC 2104), so a
verifier needs the key too.

A checkpoint file has one JSON object per line. A ``restore`` checkpoint records that the log was
restored on purpose, and voids earlier checkpoints above its position.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from domain.chat.request import canonical_json
from domain.errors import Conflict
from domain.log.record import LogHead

#: Bytes of a key, the length of the hash.
KEY_BYTES = 32
_KEY_ID_HEX = 16

CheckpointKind = Literal["head", "restore"]


class ForgedCheckpoint(Conflict):
    """A line of a checkpoint file has no valid signature of this key."""

    code = "forged_head"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedCheckpoint:
    """One line of a checkpoint file.

    Attributes:
        kind: ``head``: the log ended here; ``restore``: the log was restored to here.
        position: Last position of the log.
        hash: Hash of the event there; the genesis hash for position 0.
        at: RFC 3339 instant of the checkpoint.
        key: Id of the key, which does not reveal it.
        mac: HMAC-SHA256 in hex over the canonical JSON of the fields above.
    """

    kind: CheckpointKind
    position: int
    hash: str
    at: str
    key: str
    mac: str

    def to_line(self) -> str:
        """Return the checkpoint as a line of a file."""
        return canonical_json(asdict(self)).decode() + "\n"


def key_id(key: bytes) -> str:
    """Return the id of a key."""
    return hashlib.sha256(b"semantic head key\n" + key).hexdigest()[:_KEY_ID_HEX]


def sign_checkpoint(
    head: LogHead, *, key: bytes, at: str, kind: CheckpointKind = "head"
) -> SignedCheckpoint:
    """Return a signed checkpoint of ``head``.

    Args:
        key: ``KEY_BYTES`` random bytes.
        at: RFC 3339 instant.
        kind: See ``SignedCheckpoint``.
    """
    name = key_id(key)
    mac = _mac(kind=kind, position=head.position, hash_=head.hash, at=at, name=name, key=key)
    return SignedCheckpoint(
        kind=kind, position=head.position, hash=head.hash, at=at, key=name, mac=mac
    )


def read_checkpoints(lines: Iterable[str], *, key: bytes) -> tuple[SignedCheckpoint, ...]:
    """Read the checkpoints of a file and check each signature.

    Raises:
        ForgedCheckpoint: Naming the first line that is no checkpoint, has a wrong signature or
            repeats an earlier line.
    """
    found: dict[str, SignedCheckpoint] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        checkpoint = _checked(line, number, key)
        if checkpoint.mac in found:
            # A copied line could void later checkpoints, as a restored backup does.
            raise ForgedCheckpoint(f"line {number} of the heads repeats an earlier line")
        found[checkpoint.mac] = checkpoint
    return tuple(found.values())


def required_hashes(checkpoints: Iterable[SignedCheckpoint]) -> dict[int, str]:
    """Return the hashes that the log must have, by position; voided checkpoints do not count."""
    hashes: dict[int, str] = {}
    for checkpoint in checkpoints:
        if checkpoint.kind == "restore":
            hashes = {at: hash_ for at, hash_ in hashes.items() if at < checkpoint.position}
        if checkpoint.position:
            hashes[checkpoint.position] = checkpoint.hash
    return hashes


def _checked(line: str, number: int, key: bytes) -> SignedCheckpoint:
    try:
        checkpoint = SignedCheckpoint(**json.loads(line))
        mac = _mac(
            kind=checkpoint.kind,
            position=checkpoint.position,
            hash_=checkpoint.hash,
            at=checkpoint.at,
            name=checkpoint.key,
            key=key,
        )
        is_ours = hmac.compare_digest(mac, checkpoint.mac)
    except (TypeError, ValueError) as error:
        raise ForgedCheckpoint(f"line {number} of the heads is no signed head") from error
    if checkpoint.key != key_id(key):
        msg = f"line {number} of the heads was signed with another key ({checkpoint.key})"
        raise ForgedCheckpoint(msg)
    if not is_ours:
        raise ForgedCheckpoint(f"line {number} of the heads has a signature that is not right")
    return checkpoint


def _mac(*, kind: str, position: int, hash_: str, at: str, name: str, key: bytes) -> str:
    signed = {"kind": kind, "position": position, "hash": hash_, "at": at, "key": name}
    return hmac.new(key, canonical_json(signed), hashlib.sha256).hexdigest()
