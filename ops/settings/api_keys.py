"""API keys: their form in the settings, and the digest that is kept of each.

``KEY``, ``NAME=KEY`` or ``NAME=sha256:HEX``, where ``HEX`` is the SHA-256 of the key. A digest
verifies a key and cannot be sent as one; the processes of the service hold digests only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

#: Below this a key can be guessed from its digest; 16 random characters cannot.
KEY_CHARS_MIN: Final = 16
KEY_CHARS_MAX: Final = 512
#: Name of the key that the supervisor draws for itself at each start.
SUPERVISOR_KEY: Final = "_serve"

_NAMED = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]{0,63})=(.+)")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})", re.IGNORECASE)
#: What a header carries as it stands: printable ASCII without spaces.
_KEY = re.compile(rf"[!-~]{{{KEY_CHARS_MIN},{KEY_CHARS_MAX}}}")
_DIGEST_PREFIX: Final = "sha256:"


class KeyScope(StrEnum):
    """What the holder of a key may do: everything, use what is its own, or read everything."""

    ADMIN = "admin"
    OWN = "own"
    READ = "read"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key.

    Attributes:
        name: The name of its holder in logs and limits.
        digest: SHA-256 of the key.
    """

    name: str
    digest: bytes

    @property
    def text(self) -> str:
        """The key as settings write it, without the key itself."""
        return f"{self.name}={_DIGEST_PREFIX}{self.digest.hex()}"


def digest_of_key(key: str) -> bytes:
    """Return the SHA-256 of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def read_keys(texts: Iterable[str]) -> tuple[ApiKey, ...]:
    """Parse the keys of the settings; a key without a name is named ``key-`` and its place.

    Raises:
        ValueError: A key is malformed, or two have one name. The message contains no key.
    """
    keys: dict[str, ApiKey] = {}
    for place, text in enumerate(texts, start=1):
        name, key = _parts(text)
        name = name or f"key-{place}"
        if name in keys:
            raise ValueError(f"two keys are called {name}")
        found = _DIGEST.fullmatch(key)
        if found is None and not _KEY.fullmatch(key):
            msg = (
                f"{name} is no key: {KEY_CHARS_MIN} to {KEY_CHARS_MAX} printable ASCII characters"
                f" without spaces, or {_DIGEST_PREFIX} and 64 hexadecimal digits"
            )
            raise ValueError(msg)
        keys[name] = ApiKey(name, bytes.fromhex(found[1]) if found else digest_of_key(key))
    return tuple(keys.values())


def scopes_of(keys: Iterable[ApiKey], given: Mapping[str, KeyScope]) -> dict[str, KeyScope]:
    """Return the scope of each key by its name.

    A key without one is ``own`` if there are several keys, and ``admin`` if it is the only one.
    The key of the supervisor is ``admin`` and does not count.

    Args:
        given: The scopes of the settings, by name.
    """
    names = [key.name for key in keys if key.name != SUPERVISOR_KEY]
    default = KeyScope.OWN if len(names) > 1 else KeyScope.ADMIN
    return {name: given.get(name, default) for name in names} | {SUPERVISOR_KEY: KeyScope.ADMIN}


def first_sendable(texts: Iterable[str]) -> str | None:
    """Return the first key that is given as such, not as a digest."""
    keys = (_parts(text)[1] for text in texts)
    return next((key for key in keys if not _DIGEST.fullmatch(key)), None)


def _parts(text: str) -> tuple[str | None, str]:
    """Split off a name; a key without one may itself end in ``=``, as base64 does."""
    found = _NAMED.fullmatch(text)
    if found is None or not found[2].strip("="):
        return None, text
    return found[1], found[2]
