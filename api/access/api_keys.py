"""Which key a request carries, told without telling how much of a guess was right."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterator, Mapping, Sequence

from api.errors import TransportError
from ops.api_keys import ApiKey, digest_of_key

_BEARER = re.compile(r"bearer +(\S+) *", re.IGNORECASE)


class KeyRing:
    """The keys of the settings.

    Args:
        keys: None where everybody may come in.
    """

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._keys = tuple(keys)

    def holder(self, headers: Mapping[str, str]) -> str:
        """Return the name of the key that a request carries; empty where none is asked for.

        Both styles count, ``authorization: Bearer`` and ``x-api-key``: clients that know both
        variables send both, and one of them may be meant for somebody else.

        Raises:
            TransportError: 403. Claude Code repeats a request that gets 401 for three minutes.
        """
        if not self._keys:
            return ""
        found = ""
        for given in _given(headers):
            digest = digest_of_key(given)
            for key in self._keys:
                # No early end: how long this takes must not depend on which key is right.
                if hmac.compare_digest(digest, key.digest):
                    found = key.name
        if found:
            return found
        message = (
            "the key is not one of this service's"
            if next(_given(headers), None) is not None
            else "send a key, as authorization: Bearer KEY or x-api-key: KEY"
        )
        raise TransportError(403, "invalid_api_key", message)


def _given(headers: Mapping[str, str]) -> Iterator[str]:
    bearer = _BEARER.fullmatch(headers.get("authorization", ""))
    if bearer is not None:
        yield bearer[1]
    if headers.get("x-api-key"):
        yield headers["x-api-key"]
