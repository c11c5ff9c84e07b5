"""``bench.memory`` at its smallest: agents in too little memory answer as they do with enough."""

from __future__ import annotations

import pytest

from bench.memory.rotation_table import UNLIMITED, equal_answers, rotation

AGENTS = 3
#: Share of the known tokens from which every next turn starts while agents take turns.
REUSED_MIN = 0.98


@pytest.mark.parametrize("shape", ["Gemma-3-12B"])
def test_agents_that_take_turns_in_little_memory(shape: str) -> None:
    whole = rotation(shape, UNLIMITED, AGENTS, at_once=False, quick=True)

    assert whole.figures["reused_worst"] == 1
    assert whole.figures["recomputed_tokens"] == 0
    for budget, at_once in (("0.8x all", True), ("0.8x all", False), ("1.35x one", False)):
        tight = rotation(shape, budget, AGENTS, at_once=at_once, quick=True)
        assert equal_answers(tight, whole) in {"9 of 9", "-"}
        if not at_once:
            assert tight.figures["reused_worst"] >= REUSED_MIN
