"""Checkpoints: what a signature covers, which lines are refused, and what a restore voids."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest

from domain.log.checkpoints import (
    ForgedCheckpoint,
    SignedCheckpoint,
    key_id,
    read_checkpoints,
    required_hashes,
    sign_checkpoint,
)
from domain.log.record import LogHead

KEY = bytes(range(32))
OTHER = bytes(32)
AT = "2026-01-01T00:00:00.000000Z"


def signed(position: int, *, key: bytes = KEY, **more: Any) -> SignedCheckpoint:
    return sign_checkpoint(LogHead(position=position, hash=f"h{position}"), key=key, at=AT, **more)


def test_line_of_a_checkpoint_stays_readable_by_other_programs() -> None:
    name = hashlib.sha256(b"semantic head key\n" + KEY).hexdigest()[:16]
    content = f'"hash":"h7","key":"{name}","kind":"head"'
    covered = f'{{"at":"{AT}",{content},"position":7}}'
    mac = hmac.new(KEY, covered.encode(), "sha256").hexdigest()
    assert signed(7).to_line() == f'{{"at":"{AT}",{content},"mac":"{mac}","position":7}}\n'
    assert key_id(KEY) == name != key_id(OTHER)


def test_signed_lines_are_read_in_their_order_and_empty_ones_are_skipped() -> None:
    written = [signed(3), signed(5), signed(4, kind="restore")]
    lines = ["\n", written[0].to_line(), "  ", *(one.to_line() for one in written[1:])]
    assert read_checkpoints(lines, key=KEY) == tuple(written)
    assert read_checkpoints([], key=KEY) == ()


@pytest.mark.parametrize(
    ("field", "value"), [("kind", "restore"), ("position", 8), ("hash", "h8"), ("at", "2027")]
)
def test_signature_covers_every_field(field: str, value: Any) -> None:
    changed = json.dumps(json.loads(signed(7).to_line()) | {field: value})
    with pytest.raises(ForgedCheckpoint, match="line 2 of the heads has a signature that is not"):
        read_checkpoints([signed(6).to_line(), changed], key=KEY)


@pytest.mark.parametrize("line", ["rubbish", "[]", "{}", '{"kind":"head"}', "7"])
def test_line_that_is_no_checkpoint_is_named(line: str) -> None:
    with pytest.raises(ForgedCheckpoint, match="line 2 of the heads is no signed head"):
        read_checkpoints([signed(1).to_line(), line], key=KEY)


def test_line_of_another_key_and_a_repeated_line_are_refused() -> None:
    with pytest.raises(ForgedCheckpoint, match=rf"another key \({key_id(OTHER)}\)"):
        read_checkpoints([signed(1, key=OTHER).to_line()], key=KEY)
    with pytest.raises(ForgedCheckpoint, match="line 3 of the heads repeats an earlier line"):
        read_checkpoints([signed(1).to_line(), "", signed(1).to_line()], key=KEY)


def test_restore_voids_the_checkpoints_above_it_only() -> None:
    heads = [signed(0), signed(3), signed(5), signed(9)]
    assert required_hashes(heads) == {3: "h3", 5: "h5", 9: "h9"}
    restore = sign_checkpoint(LogHead(position=5, hash="new"), key=KEY, at=AT, kind="restore")
    assert required_hashes([*heads, restore]) == {3: "h3", 5: "new"}
    assert required_hashes([*heads, restore, signed(7)]) == {3: "h3", 5: "new", 7: "h7"}
    assert required_hashes([*heads, signed(0, kind="restore")]) == {}
