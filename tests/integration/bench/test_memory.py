"""``bench.memory`` at its smallest: agents in too little memory answer as they do with enough."""

from __future__ import annotations

import pytest

from bench.memory.rotation_table import UNLIMITED, equal_answers, rotation

AGENTS = 3


@pytest.mark.parametrize("shape", ["Gemma-3-12B"])
def test_agents_that_take_turns_in_little_memory(shape: str) -> None:
    whole = rotation(shape, UNLIMITED, AGENTS, at_once=False, quick=True)

    assert whole.figures["reused_worst"] == 1
    assert whole.figures["recomputed_tokens"] == 0
    for at_once in (False, True):
        tight = rotation(shape, "0.8x all", AGENTS, at_once=at_once, quick=True)
        assert equal_answers(tight, whole) == "9 of 9"
