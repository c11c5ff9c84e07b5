"""Whatever is reused, the answer is the one that a cold engine gives alone (EXP-003, EXP-004)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import Phase, given, settings

from domain.kv.spec import LayerKind
from tests.support.builders.conversations import Turn, conversations
from tests.support.models import equality
from tests.support.models.families import every_architecture
from tests.support.models.tiny_architectures import ARCHITECTURES, Architecture
from worker.engine.mlx.kv.start_plan import RESTORED_TOKENS_MIN

WAYS = (
    equality.from_memory,
    equality.from_disk,
    equality.after_restart,
    equality.among_strangers,
)
#: Another process finds these by their names.
with_name = pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda one: one.name)


@every_architecture
# Shrinking would take many minutes.
@settings(max_examples=2, derandomize=True, database=None, phases=[Phase.generate])
@given(turns=conversations(3))
def test_conversation_says_in_every_way_what_it_says_cold(
    architecture: Architecture, turns: list[Turn]
) -> None:
    tallies = equality.compare(architecture, turns, WAYS)
    if any(layer.kind is not LayerKind.FULL for layer in architecture.layers):
        return  # edited turns start from checkpoints, of which the older ones are thinned
    # What memory has lost, the disk gives.
    from_memory = tallies[equality.from_memory.__name__].cached_tokens
    assert tallies[equality.from_disk.__name__].cached_tokens >= from_memory // 2
    restarted = tallies[equality.after_restart.__name__]
    # At most what is computed is a last token and a context too short to be put together.
    computed = restarted.prompt_tokens - restarted.cached_tokens
    assert computed <= restarted.requests * RESTORED_TOKENS_MIN


@pytest.fixture(scope="module")
def in_other_process() -> Iterator[equality.InOtherProcess]:
    with closing(equality.InOtherProcess()) as other:
        yield other


@pytest.mark.nightly
@with_name
@settings(max_examples=4, derandomize=True, database=None, phases=[Phase.generate])
@given(turns=conversations(6))
def test_long_conversations_say_from_memory_what_they_say_cold(
    architecture: Architecture, turns: list[Turn]
) -> None:
    ways = (equality.from_memory, equality.from_little_memory, equality.among_strangers)
    tallies = equality.compare(architecture, turns, ways)
    assert sum(tally.near_ties for tally in tallies.values()) == 0


@pytest.mark.nightly
@with_name
@settings(max_examples=4, derandomize=True, database=None, phases=[Phase.generate])
@given(turns=conversations(6))
def test_long_conversations_say_from_disk_what_they_say_cold(
    in_other_process: equality.InOtherProcess, architecture: Architecture, turns: list[Turn]
) -> None:
    ways = (
        equality.from_disk,
        in_other_process,
        equality.after_restart,
        equality.after_restart_among_strangers,
    )
    tallies = equality.compare(architecture, turns, ways)
    assert sum(tally.near_ties for tally in tallies.values()) == 0
