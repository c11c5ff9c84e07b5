"""Models that are worth a try, with their sizes, and how many contexts of them a machine holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from domain.kv.plan import AGENTS_DEFAULT, metal_working_set, planned_share


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedModel:
    """A model of the hub, sized from its published shape as ``semantic models plan`` sizes it.

    Attributes:
        hub_id: ``owner/name``.
        good_for: In a few words.
        step_bytes: Working set of one step.
        context_bytes: One context of ``CONTEXT_TOKENS_DEFAULT`` tokens.
        first_bytes: The budget that the first one needs, with room for what it shares.
        context_length: Longest context, in tokens.
    """

    hub_id: str
    good_for: str
    weights_bytes: int
    step_bytes: int
    context_bytes: int
    first_bytes: int
    context_length: int

    def contexts_in(self, usable_bytes: int) -> int:
        """Return the planned contexts that stay in memory together; 0 if the model does not fit."""
        left = usable_bytes - self.weights_bytes - self.step_bytes - self.first_bytes
        return max(0, min(AGENTS_DEFAULT, 1 + left // self.context_bytes))


#: The smallest first; ``tests/integration/mlx/model/test_suggested.py`` sizes them anew.
SUGGESTED: Final = (
    SuggestedModel(
        hub_id="mlx-community/Qwen3.5-4B-4bit",
        good_for="chat and small tools",
        weights_bytes=2_367_117_312,
        step_bytes=1_238_171_648,
        context_bytes=706_871_296,
        first_bytes=789_981_866,
        context_length=262_144,
    ),
    SuggestedModel(
        hub_id="mlx-community/Qwen3.5-9B-4bit",
        good_for="tools and short programs",
        weights_bytes=5_038_040_064,
        step_bytes=1_313_669_120,
        context_bytes=706_871_296,
        first_bytes=789_981_866,
        context_length=262_144,
    ),
    SuggestedModel(
        hub_id="openai/gpt-oss-20b",
        good_for="reasoning, fast for its size",
        weights_bytes=13_761_264_768,
        step_bytes=1_130_315_776,
        context_bytes=497_811_456,
        first_bytes=521_830_399,
        context_length=131_072,
    ),
    SuggestedModel(
        hub_id="mlx-community/gemma-4-26b-a4b-it-4bit",
        good_for="long texts, fast for its size",
        weights_bytes=14_200_055_868,
        step_bytes=512_229_376,
        context_bytes=645_529_600,
        first_bytes=890_879_999,
        context_length=262_144,
    ),
    SuggestedModel(
        hub_id="mlx-community/Qwen3.6-27B-4bit",
        good_for="coding agents, slow",
        weights_bytes=15_132_802_048,
        step_bytes=2_473_328_640,
        context_bytes=1_464_664_064,
        first_bytes=1_686_050_133,
        context_length=262_144,
    ),
    SuggestedModel(
        hub_id="mlx-community/GLM-4.7-Flash-4bit",
        good_for="coding agents",
        weights_bytes=16_852_196_608,
        step_bytes=1_626_062_848,
        context_bytes=1_082_880_000,
        first_bytes=1_127_999_999,
        context_length=202_752,
    ),
    SuggestedModel(
        hub_id="mlx-community/Qwen3.6-35B-A3B-4bit",
        good_for="coding agents, fast for its size",
        weights_bytes=19_508_787_456,
        step_bytes=1_374_230_528,
        context_bytes=473_989_120,
        first_bytes=560_810_666,
        context_length=262_144,
    ),
)


def usable_memory(memory_bytes: int, *, is_mac: bool) -> int:
    """Return the part of a machine's memory that a plan may use, in bytes."""
    return planned_share(metal_working_set(memory_bytes) if is_mac else memory_bytes)
