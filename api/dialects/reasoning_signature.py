"""Signatures of reasoning blocks: the job, a digest and, for hidden reasoning, the text.

Clients store a signature unread and return it with the history. A signature that carries the text
gives the next turn the reasoning that its client never saw. The service keeps no state for it, so
the prompt stays the same after a restart::

    s1.<job>-<block>.<first 32 hex digits of SHA-256>[.<base64url of the deflated text>]
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from typing import Final

from api.answer import job_hex
from domain.values import JobId

_VERSION: Final = "s1"
_DIGEST_CHARS: Final = 32
_PARTS_WITH_TEXT: Final = 4
#: Most bytes of reasoning in a signature; bounds the memory that a forged one can take.
TEXT_BYTES_MAX: Final = 1 << 22


def sign_reasoning(job_id: JobId, index: int, text: str, *, carried: bool) -> str:
    """Return the signature of a block of reasoning.

    Args:
        job_id: The job of the answer.
        index: Index of the block in the answer.
        text: The reasoning.
        carried: Whether the signature carries the text.
    """
    raw = text.encode("utf-8", "replace")
    signature = f"{_VERSION}.{job_hex(job_id)}-{index}.{_digest(raw)}"
    if not carried:
        return signature
    return f"{signature}.{base64.urlsafe_b64encode(zlib.compress(raw)).decode().rstrip('=')}"


def signed_reasoning(signature: str | None) -> str:
    """Return the reasoning in a signature; "" for a foreign signature or one without text."""
    parts = (signature or "").split(".")
    if len(parts) != _PARTS_WITH_TEXT or parts[0] != _VERSION:
        return ""
    try:
        packed = base64.urlsafe_b64decode(parts[3] + "=" * (-len(parts[3]) % 4))
        raw = zlib.decompressobj().decompress(packed, TEXT_BYTES_MAX)
        text = raw.decode()
    except (binascii.Error, zlib.error, ValueError):
        return ""
    return text if parts[2] == _digest(raw) else ""


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:_DIGEST_CHARS]
