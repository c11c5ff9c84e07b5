"""A schema that counts how often it is read."""

from __future__ import annotations

from typing import Any


class CountedSchema(dict[str, Any]):
    """A JSON schema that fails where its keywords are read too often.

    Args:
        visits_max: Most readings of ``anyOf``.
        keywords: The schema.
    """

    def __init__(self, *, visits_max: int, **keywords: object) -> None:
        super().__init__(keywords)
        self._left = visits_max

    def get(self, key: str, default: object = None) -> Any:
        """Return a keyword, and count the readings of ``anyOf``."""
        if key == "anyOf":
            self._left -= 1
            if self._left < 0:
                raise AssertionError("the schema is read too often")
        return super().get(key, default)
