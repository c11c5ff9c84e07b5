"""The tables of plans in ``docs/models.md``: ``python -m docs.site.plan_table`` writes them.

Each plan is the one that ``semantic models plan CONFIG --memory SIZE --bits 4 --json`` prints for a
configuration in ``tests/fixtures/configs``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from domain.kv.plan import AGENTS_DEFAULT, CONTEXT_TOKENS_DEFAULT
from domain.values import Degree
from worker.plan import PlanRequest, footprint_of, plan_of

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "tests" / "fixtures" / "configs"
PAGE = ROOT / "docs" / "models.md"
#: Text between the marks of a table.
_BETWEEN = re.compile(
    r"(<!-- (\w+): begin \(made by `make packages`\) -->\n).*?(<!-- \2: end -->)", re.DOTALL
)
#: Models of 2026, in the order of the table.
TODAY = (
    "LFM2.5-2.6B",
    "Qwen3.5-4B",
    "Qwen3.5-9B",
    "Gemma-4-12B",
    "gpt-oss-20b",
    "Gemma-4-26B-A4B",
    "Qwen3.8-27B",
    "GLM-4.7-Flash",
    "Qwen3.6-35B-A3B",
)
EARLIER = (
    "Llama-3.1-8B",
    "Mistral-Nemo-12B",
    "Gemma-3-12B",
    "Qwen3-14B",
    "Gemma-3-27B",
    "Qwen3-30B-A3B",
)
MEMORY_GIB = (16, 24, 32, 64)
_GIB = 1 << 30


def request_for(model: str, memory_gib: int) -> PlanRequest:
    """Return what the command plans by default, with weights of 4 bits."""
    file = CONFIGS / model / "config.json"
    quantized = "quantization_config" in json.loads(file.read_text())
    return PlanRequest(
        model=str(file),
        memory_bytes=memory_gib * _GIB,
        agents=AGENTS_DEFAULT,
        context_tokens=CONTEXT_TOKENS_DEFAULT,
        bits=None if quantized else 4,
        kv_bits=0,
        piece_tokens=256,
        batch=8,
        disk_bytes_per_s=2e9,
        disk_budget_bytes=20 * 10**9,
    )


Plans = Mapping[str, list[dict[str, Any]]]


def plans_of(models: Sequence[str]) -> Plans:
    """Return the plans of each model, one for each memory."""
    found = {}
    for model in models:
        requests = [request_for(model, size) for size in MEMORY_GIB]
        footprint = footprint_of(requests[0])
        found[model] = [plan_of(request, footprint) for request in requests]
    return found


def rows(plans: Plans) -> Iterator[str]:
    """Yield the lines of the table of plans."""
    sizes = " | ".join(f"{size} GB" for size in MEMORY_GIB)
    yield f"| model | weights | KV per token | one context | on disk, of 5 | {sizes} | limits |"
    yield f"|---|--:|--:|--:|--:|{'---|' * len(MEMORY_GIB)}---|"
    for model, found in plans.items():
        yield _row(model, found)


def _row(model: str, plans: list[dict[str, Any]]) -> str:
    first = plans[0]
    limits = [
        f"no {name.replace('_', ' ')}"
        for name, one in first["abilities"].items()
        if one["degree"] == Degree.NO
    ]
    cells = (
        model,
        _gb(first["weights_bytes"]),
        f"{first['kv_token_bytes'] / 1024:.0f} KiB",
        _gb(first["context_bytes"]),
        _gb(first["disk_bytes"]),
        *map(_verdict, plans),
        ", ".join(limits) or "-",
    )
    return f"| {' | '.join(cells)} |"


def choices(plans: Plans) -> Iterator[str]:
    """Yield the lines of the table of Macs: which models hold how many contexts."""
    yield "| Mac | all 5 contexts stay in memory | 2 to 4 of them | 1 of them |"
    yield "|---|---|---|---|"
    for index, size in enumerate(MEMORY_GIB):
        by_contexts: dict[int, list[str]] = {}
        for model, found in plans.items():
            plan = found[index]
            if plan["fits"]:
                by_contexts.setdefault(plan["resident_contexts"], []).append(model)
        some = [model for n in range(AGENTS_DEFAULT - 1, 1, -1) for model in by_contexts.get(n, ())]
        cells = (by_contexts.get(AGENTS_DEFAULT, []), some, by_contexts.get(1, []))
        yield f"| {size} GB | {' | '.join(', '.join(cell) or '-' for cell in cells)} |"


def _verdict(plan: dict[str, Any]) -> str:
    if plan["fits"]:
        return f"{plan['resident_contexts']} of {plan['agents']}"
    if plan["longest_context_tokens"]:
        return f"no: {plan['longest_context_tokens']:,}"
    return "no"


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"


def with_table(page: str) -> str:
    """Return a page with the present tables between their marks."""
    today, earlier = plans_of(TODAY), plans_of(EARLIER)
    tables = {"choices": choices(today), "plans": rows(today), "earlier": rows(earlier)}
    texts = {name: "".join(f"{line}\n" for line in lines) for name, lines in tables.items()}
    return _BETWEEN.sub(lambda found: found[1] + texts[found[2]] + found[3], page)


def main() -> int:
    """Write the present table into the page."""
    PAGE.write_text(with_table(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
