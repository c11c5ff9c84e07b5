"""The rows that are being opened."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias

#: Yields ``True`` after a step of work and ``False`` where it waits; returns the tokens restored.
Opening: TypeAlias = Generator[bool, None, int]


class OpeningRows:
    """Takes turns among the rows that are being opened."""

    def __init__(self) -> None:
        self._openings: dict[int, Opening] = {}

    def __len__(self) -> int:
        return len(self._openings)

    def __contains__(self, uid: object) -> bool:
        return uid in self._openings

    def add(self, uid: int, opening: Opening) -> None:
        """Add a row."""
        self._openings[uid] = opening

    def remove(self, uid: int) -> None:
        """Remove a row; an unknown uid is ignored."""
        opening = self._openings.pop(uid, None)
        if opening is not None:
            opening.close()

    def advance(
        self, is_due: Callable[[], bool], failed: Callable[[int, Exception], None]
    ) -> dict[int, int]:
        """Open rows until other work is due, or until all of them wait.

        Args:
            is_due: Whether other work is due.
            failed: Receives the rows that cannot be opened; they are removed.

        Returns:
            The restored tokens of the rows that are ready, by uid.
        """
        ready: dict[int, int] = {}
        waiting: set[int] = set()
        while len(waiting) < len(self._openings):
            for uid in [one for one in self._openings if one not in waiting]:
                try:
                    if not next(self._openings[uid]):
                        waiting.add(uid)
                except StopIteration as end:
                    del self._openings[uid]
                    ready[uid] = end.value
                except Exception as error:  # noqa: BLE001 - the other rows go on
                    del self._openings[uid]
                    failed(uid, error)
                if is_due():
                    return ready
        return ready
