"""Hypothesis chooses moves, ``World`` executes them, ``Truth`` checks invariants.

One rule for each move, more for what should happen more often: Hypothesis takes rules evenly.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from structlog.testing import capture_logs

from tests.simulation.moves import MOVES, NIGHT_MOVES, NUMBERS
from tests.simulation.world import World

numbers = st.integers(0, NUMBERS - 1)
_OFTEN = st.sampled_from(["work", "go_on", "compute", "tick", "follow_up"])
_WISHES = st.sampled_from(
    ["submit", "repeat", "cancel", "retry", "expire", "read", "look", "batch"]
)
_FAULTS = st.sampled_from(
    [
        "restart",
        "lose_reply",
        "lose_fetched",
        "fail_batch",
        "drain",
        "broker",
        "broker_data",
        "disk",
        "swap",
        "strand",
    ]
)


class Simulation(RuleBasedStateMachine):
    """One life of the service under faults."""

    def __init__(self) -> None:
        super().__init__()
        self._logs = capture_logs()
        self._logs.__enter__()
        self.world = World()

    def teardown(self) -> None:
        try:
            self.world.heal()
        finally:
            self.world.close()
            self._logs.__exit__(None, None, None)

    @initialize(first=st.lists(numbers, min_size=1, max_size=4))
    def begin(self, first: list[int]) -> None:
        for number in first:
            self._do("submit", number)

    @rule(number=numbers)
    def work(self, number: int) -> None:
        self._do("work", number)

    @rule(move=_OFTEN, number=numbers)
    def progress(self, move: str, number: int) -> None:
        self._do(move, number)

    @rule(number=numbers)
    def submit(self, number: int) -> None:
        self._do("submit", number)

    @rule(move=_WISHES, number=numbers)
    def wish(self, move: str, number: int) -> None:
        self._do(move, number)

    @rule(move=st.sampled_from(["die", "freeze", "restart"]), number=numbers)
    def mortality(self, move: str, number: int) -> None:
        self._do(move, number)

    @rule(move=_FAULTS, number=numbers)
    def fault(self, move: str, number: int) -> None:
        self._do(move, number)

    @rule(move=st.sampled_from(list(NIGHT_MOVES)), number=numbers)
    def night(self, move: str, number: int) -> None:
        self._do(move, number)

    @rule(number=numbers)
    def reconciled(self, number: int) -> None:
        self._do("reconciled", number)

    def _do(self, move: str, number: int) -> Any:
        (MOVES | NIGHT_MOVES)[move].do(self.world, number)
        self.world.check()
