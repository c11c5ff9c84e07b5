"""Each public name of the product is reached from a process, and the analysis finds what is not."""

from __future__ import annotations

from pathlib import Path

from tests.architecture.reachable import unreachable

MAIN = """
from app.rooms import Room
from library import Base, register


class Handler(Base):
    def called_by_the_library(self) -> None: ...


@register
def registered() -> None: ...


if __name__ == "__main__":
    Room().enter()
"""
ROOMS = """
class Room:
    def enter(self) -> None:
        return self._open()

    def _open(self) -> None: ...

    def leave(self) -> None: ...


def only_tests() -> None:
    return only_by_the_dead()


def only_by_the_dead() -> None: ...
"""


def test_finds_what_no_process_reaches(tmp_path: Path) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "main.py").write_text(MAIN)
    (app / "rooms.py").write_text(ROOMS)
    (app / "forgotten.py").write_text("FACT = 1\n")

    assert unreachable(tmp_path, ("app",)) == [
        "app/forgotten.py",
        "app/main.py:6 Handler",
        "app/rooms.py:11 only_tests",
        "app/rooms.py:15 only_by_the_dead",
        "app/rooms.py:8 leave",
    ]


def test_every_public_name_of_the_product_is_reached() -> None:
    assert unreachable() == []
