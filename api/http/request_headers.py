"""Headers that any generation may carry beside its body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from api.http.parameters import header
from domain.errors import InvalidRequest

#: Characters of an idempotency key.
KEY_CHARS_MAX: Final = 255
#: Longest that a reply is held back for the end of its job (``Prefer: wait``), in seconds.
WAIT_MAX_S: Final = 60
#: The official SDKs send it; it is above 0 on a request that they repeat.
RETRY_COUNT_HEADER: Final = "x-stainless-retry-count"

_KEY_HEADER: Final = "Idempotency-Key"
#: Printable ASCII without a space at either end.
_KEY_PATTERN: Final = r"^[!-~]([ -~]*[!-~])?$"
_PRINTABLE: Final = re.compile(_KEY_PATTERN)
_WAIT: Final = re.compile(r"\s*wait\s*=\s*\"?(\d{1,9})\"?\s*", re.IGNORECASE)


def is_retry(headers: Mapping[str, str]) -> bool:
    """Return whether the client repeats a request; a count that is no number means it does not."""
    count = headers.get(RETRY_COUNT_HEADER, "0")
    return count.isascii() and count.isdigit() and int(count[:9]) > 0


def _key(value: str) -> str:
    if len(value) > KEY_CHARS_MAX or not _PRINTABLE.fullmatch(value):
        msg = f"must be 1 to {KEY_CHARS_MAX} printable ASCII characters"
        raise InvalidRequest(msg, field=_KEY_HEADER)
    return value


def _wait_s(value: str) -> int | None:
    for preference in value.split(","):
        found = _WAIT.fullmatch(preference.split(";")[0])
        if found is not None:
            return min(int(found[1]), WAIT_MAX_S)
    return None


#: The key that a client gives a request, so that a repeat of it makes no second job.
IDEMPOTENCY_KEY: Final = header(
    _KEY_HEADER,
    {"type": "string", "minLength": 1, "maxLength": KEY_CHARS_MAX, "pattern": _KEY_PATTERN},
    _key,
    None,
    "Requests with the same key create one job. The same key with another request is refused.",
)
#: Seconds that the client waits for the end (RFC 7240), lowered to ``WAIT_MAX_S``. Other
#: preferences, and those that cannot be read, are ignored, as the RFC asks.
PREFERRED_WAIT_S: Final = header(
    "Prefer",
    {"type": "string", "example": "wait=30"},
    _wait_s,
    None,
    "wait=n delays the reply until the job has ended, by at most n seconds.",
)
