"""The benchmarks of the report: how each is run, and which section shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from bench.report import sections
from bench.report.sections import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One benchmark.

    Attributes:
        name: Its module in ``bench``, and the name of its file of figures.
        title: Its heading.
        question: What it answers.
        full: Arguments of a whole run.
        quick: Arguments of a run that only checks the harness.
        section: Makes its section from its figures.
    """

    name: str
    title: str
    question: str
    full: tuple[str, ...]
    quick: tuple[str, ...]
    section: Callable[[dict[str, Any]], Section]


PARTS: Final = (
    Part(
        name="serving",
        title="Serving",
        question="How fast is the service beside mlx-lm's bare generator and its server?",
        full=("--rounds", "5"),
        quick=("--rounds", "1", "--streams", "1", "--no-prefill"),
        section=sections.serving,
    ),
    Part(
        name="comparison",
        title="Comparison with other servers",
        question="How long do cold and warm requests take, also after a restart?",
        full=("--rounds", "3"),
        quick=("--rounds", "1", "--tokens", "300", "--servers", "semantic"),
        section=sections.comparison,
    ),
    Part(
        name="memory",
        title="Memory",
        question="Does the engine stay within its memory when contexts do not fit?",
        full=(),
        quick=("--quick", "--shapes", "Qwen3-14B"),
        section=sections.memory,
    ),
    Part(
        name="promises",
        title="Acceptance and cancellation",
        question="How long do acceptance and cancellation take?",
        full=(),
        quick=("--jobs", "10", "--cancels", "3"),
        section=sections.promises,
    ),
    Part(
        name="swap",
        title="Swaps",
        question="How long does a swap of the model pause the service?",
        full=("--swaps", "20"),
        quick=("--swaps", "1", "--streams", "1"),
        section=sections.swap,
    ),
    Part(
        name="soak",
        title="Mixed load",
        question="Does anything grow or slow down while agents, batches and swaps go on?",
        full=("--minutes", "15", "--swap-minutes", "4"),
        quick=("--minutes", "1", "--swap-minutes", "0.4"),
        section=sections.soak,
    ),
    Part(
        name="idle",
        title="An idle service",
        question="What does the service cost while nothing runs?",
        full=("--seconds", "60"),
        quick=("--seconds", "5"),
        section=sections.idle,
    ),
)
