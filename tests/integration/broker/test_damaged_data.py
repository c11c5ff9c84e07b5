"""What a power cut leaves of the broker's files never keeps the broker from starting."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ops.broker.client import connect
from ops.broker.private_redis import PrivateRedis
from tests.support.processes.brokers import redis_server

VALUES = [bytes([65 + number]) * 3000 for number in range(8)]


class World:
    """A private server on files that a test may damage while it does not run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def file(self, part: str) -> Path:
        (found,) = (self.directory / "appendonlydir").glob(f"*{part}*")
        return found

    def started(self) -> list[bytes | str | None]:
        """Start the server; return the values it has, write them all, and stop it."""
        server = PrivateRedis(
            redis_server(), directory=self.directory, socket=self.directory.with_suffix(".sock")
        )
        server.start()
        client = connect(server.url)
        try:
            found = [client.get(f"key-{number}") for number in range(len(VALUES))]
            for number, value in enumerate(VALUES):
                client.set(f"key-{number}", value)
            return found
        finally:
            client.close()
            server.stop()


@pytest.fixture
def world(short_tmp: Path, tmp_path: Path) -> Iterator[World]:
    world = World(short_tmp / tmp_path.name)
    world.started()
    assert world.started() == VALUES
    yield world
    assert world.started() == VALUES


def test_a_torn_end_costs_what_was_written_last(world: World) -> None:
    file = world.file(".incr.")
    file.write_bytes(file.read_bytes()[:-1000])
    found = world.started()
    assert all(one in (None, value) for one, value in zip(found, VALUES, strict=True))


def _zeros_at_the_end(world: World) -> None:
    file = world.file(".incr.")
    whole = file.read_bytes()
    at = whole.rfind(b"*3\r\n") - random.Random(1).randrange(2)
    file.write_bytes(whole[:at] + bytes(len(whole) - at))


def _no_increment(world: World) -> None:
    world.file(".incr.").unlink()


def _no_base(world: World) -> None:
    world.file(".base.").unlink()


def _empty_manifest(world: World) -> None:
    world.file("manifest").write_bytes(b"")


def _zero_manifest(world: World) -> None:
    file = world.file("manifest")
    file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.parametrize(
    "damage", [_zeros_at_the_end, _no_increment, _no_base, _empty_manifest, _zero_manifest]
)
def test_files_that_the_server_refuses_are_replaced(
    world: World, damage: Callable[[World], None]
) -> None:
    damage(world)
    assert world.started() == [None] * len(VALUES)
