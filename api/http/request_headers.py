"""What the headers of a request ask for beside its body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from domain.errors import InvalidRequest

KEY_HEADER: Final = "idempotency-key"
#: Characters of an idempotency key.
KEY_CHARS_MAX: Final = 255
#: Sent by the official SDKs; above 0 on a request that they repeat.
RETRY_COUNT_HEADER: Final = "x-stainless-retry-count"
PREFER_HEADER: Final = "prefer"

_WAIT = re.compile(r"\s*wait\s*=\s*\"?(\d{1,9})\"?\s*", re.IGNORECASE)
#: Printable ASCII without a space at either end.
KEY_PATTERN: Final = r"^[!-~]([ -~]*[!-~])?$"
_PRINTABLE = re.compile(KEY_PATTERN)


def idempotency_key(headers: Mapping[str, str]) -> str | None:
    """Return the caller's key, if there is one.

    Raises:
        InvalidRequest: It is empty, too long, or not printable ASCII.
    """
    key = headers.get(KEY_HEADER)
    if key is None:
        return None
    if len(key) > KEY_CHARS_MAX or not _PRINTABLE.fullmatch(key):
        msg = f"must be 1 to {KEY_CHARS_MAX} printable ASCII characters"
        raise InvalidRequest(msg, field="Idempotency-Key")
    return key


def is_retry(headers: Mapping[str, str]) -> bool:
    """Whether the client says that it asked before; a count that is no number says nothing."""
    count = headers.get(RETRY_COUNT_HEADER, "0")
    return count.isascii() and count.isdigit() and int(count[:9]) > 0


def preferred_wait_s(headers: Mapping[str, str], *, most_s: int) -> int | None:
    """Return how long the caller would wait for the end (RFC 7240), lowered to ``most_s``.

    Other preferences, and those that cannot be read, are left aside as the RFC asks.
    """
    for preference in headers.get(PREFER_HEADER, "").split(","):
        found = _WAIT.fullmatch(preference.split(";")[0])
        if found is not None:
            return min(int(found[1]), most_s)
    return None
