"""The check of docstrings finds entries that repeat a signature, and no others."""

from __future__ import annotations

from pathlib import Path

from tests.architecture.docstrings import findings

ROOM = '''
def enter(event_log: EventLog, wait_s: float, by: str) -> None:
    """Enter.

    Args:
        event_log: The event log.
        wait_s: Longest wait, in seconds.
        by: As above.
    """


class Room:
    """A room.

    Attributes:
        floor: Its floor.
        height: In metres, from the floor to the
            lowest beam.
    """

    floor: int
    height: float
'''


def test_entries_that_repeat_a_signature_are_found(tmp_path: Path) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "room.py").write_text(ROOM)

    found = [(one.line, one.name) for one in findings(tmp_path, ("app",))]

    assert found == [(6, "event_log"), (8, "by"), (16, "floor")]
