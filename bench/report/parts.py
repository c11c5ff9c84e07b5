"""The benchmarks of the report: how each is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bench.stress.cases import CASES


@dataclass(frozen=True, slots=True)
class Part:
    """One benchmark.

    Attributes:
        name: The name of its file of figures: its module in ``bench``, and what follows a hyphen.
        title: Its heading.
        question: What it answers.
        full: Arguments of a whole run.
        quick: Arguments of a run that only checks the harness.
        pages: Below ``docs``, where it stands.
    """

    name: str
    title: str
    question: str
    full: str
    quick: str
    pages: tuple[str, ...] = ("benchmarks.md",)

    @property
    def module(self) -> str:
        """Its module in ``bench``."""
        return self.name.partition("-")[0]


PARTS: Final = (
    Part(
        "together",
        "Together",
        "How fast is the service beside mlx_lm.server and mlx-lm's bare generator?",
        full="--rounds 3",
        quick="--rounds 1 --streams 1 --tokens 8 --kinds prose",
    ),
    Part(
        "league",
        "Load by strangers",
        "What do load generators and clients of others see of this service and of other servers?",
        full="--long --rounds 3",
        quick="--rounds 1 --servers semantic mlx_lm.server",
        pages=("benchmarks/league.md",),
    ),
    Part(
        "memory",
        "Memory",
        "Does the engine stay within its memory when contexts do not fit?",
        full="",
        quick="--quick --shapes Qwen3-14B",
    ),
    Part(
        "promises",
        "Acceptance and cancellation",
        "How long do acceptance and cancellation take?",
        full="",
        quick="--jobs 10 --cancels 3 --kills 1",
    ),
    Part(
        "swap",
        "Swaps",
        "How long does a swap of the model pause the service?",
        full="--swaps 20",
        quick="--swaps 1 --streams 1",
    ),
    Part(
        "soak",
        "Mixed load",
        "Does anything grow or slow down while agents, batches and swaps go on?",
        full="--minutes 15 --swap-minutes 4",
        quick="--minutes 1 --swap-minutes 0.4",
        pages=("benchmarks.md", "benchmarks/soak.md"),
    ),
    Part(
        "idle",
        "An idle service",
        "What does the service cost while nothing runs?",
        full="--seconds 60",
        quick="--seconds 5",
    ),
    *(
        Part(
            f"stress-{case.name}",
            f"Case `{case.name}`",
            f"{case.load}.",
            full=f"--case {case.name}",
            quick=f"--case {case.name} --scale 0.1",
            pages=("benchmarks/stress.md",),
        )
        for case in CASES
    ),
)
