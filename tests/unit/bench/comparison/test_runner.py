from __future__ import annotations

import sys
from pathlib import Path

import pytest

import worker.demo_model
from bench.comparison.adapters.base import Adapter, Place
from bench.comparison.conversation import Conversations
from bench.comparison.measurements.base import Measurement, Round, Row
from bench.comparison.runner import compare
from bench.comparison.server import Server

MODEL = Path(worker.demo_model.__file__).parent


class StandIn(Server):
    """Runs nothing."""

    alive = False

    @property
    def running(self) -> bool:
        return self.alive

    def start(self) -> None:
        self.alive = True

    def kill(self) -> None:
        self.alive = False


def _stand_in(name: str, scratch: Path) -> StandIn:
    adapter = Adapter(
        name=name,
        distribution=name,
        command=lambda _place: [],
        environment=lambda _place: {},
        ready_path="/",
    )
    return StandIn(adapter, python=Path(sys.executable), model=MODEL, data_dir=scratch / name)


def _measurement(name: str, asked: list[str], *, once: bool = False) -> Measurement:
    def run(server: Server, round_: Round) -> dict[str, float]:
        assert server.running
        asked.append(f"{round_.name} {server.adapter.name}")
        if server.adapter.name == "broken":
            raise RuntimeError("no answer")
        return {name: 1.0}

    return Measurement(
        name=name, rows=(Row(key=name, title=name, form="{:.0f}"),), run=run, once=once
    )


def test_servers_take_turns_in_another_order_each_round(tmp_path: Path) -> None:
    asked: list[str] = []

    compare(
        [_stand_in("a", tmp_path), _stand_in("b", tmp_path)],
        [_measurement("m", asked)],
        conversations=Conversations(MODEL, 10),
        rounds=2,
        scratch=tmp_path,
    )

    assert asked == ["Round 1 a", "Round 1 b", "Round 2 b", "Round 2 a"]


def test_server_that_fails_is_told_and_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    server = _stand_in("broken", tmp_path)

    results = compare(
        [server],
        [_measurement("m", asked)],
        conversations=Conversations(MODEL, 10),
        rounds=2,
        scratch=tmp_path,
    )

    assert results.cells["m", "broken"].failures == ["RuntimeError: no answer"] * 2
    assert not server.running
    assert "failed: no answer" in capsys.readouterr().out


def test_verdict_is_taken_once(tmp_path: Path) -> None:
    asked: list[str] = []

    compare(
        [_stand_in("a", tmp_path)],
        [_measurement("m", asked, once=True)],
        conversations=Conversations(MODEL, 10),
        rounds=3,
        scratch=tmp_path,
    )

    assert asked == ["Round 1 a"]


def test_script_is_looked_for_beside_the_interpreter(tmp_path: Path) -> None:
    place = Place(python=tmp_path / "bin" / "python", model=MODEL, data_dir=tmp_path, port=1)

    assert place.script("serve") == str(tmp_path / "bin" / "serve")
