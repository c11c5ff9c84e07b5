"""The table of plans in ``docs/models.md``: ``python -m docs.site.plan_table`` writes it.

Each row is the plan that ``semantic models plan CONFIG --memory SIZE --bits 4 --json`` prints for a
configuration in ``tests/fixtures/configs``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from domain.kv.plan import AGENTS_DEFAULT, CONTEXT_TOKENS_DEFAULT
from worker.plan import PlanRequest, footprint_of, plan_of

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "tests" / "fixtures" / "configs"
PAGE = ROOT / "docs" / "models.md"
BEGIN = "<!-- plans: begin (made by `make packages`) -->"
END = "<!-- plans: end -->"
#: In the order of the table.
MODELS = (
    "Llama-3.1-8B",
    "Mistral-Nemo-12B",
    "Gemma-3-12B",
    "Qwen3-14B",
    "gpt-oss-20b",
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


def rows() -> Iterator[str]:
    """Yield the lines of the table."""
    sizes = " | ".join(f"{size} GB" for size in MEMORY_GIB)
    yield f"| model | weights | KV per token | one context | on disk, of 5 | {sizes} |"
    yield f"|---|--:|--:|--:|--:|{'---|' * len(MEMORY_GIB)}"
    for model in MODELS:
        requests = [request_for(model, size) for size in MEMORY_GIB]
        footprint = footprint_of(requests[0])
        plans = [plan_of(request, footprint) for request in requests]
        yield _row(model, plans)


def _row(model: str, plans: list[dict[str, Any]]) -> str:
    first = plans[0]
    cells = (
        model,
        _gb(first["weights_bytes"]),
        f"{first['kv_token_bytes'] / 1024:.0f} KiB",
        _gb(first["context_bytes"]),
        _gb(first["disk_bytes"]),
        *map(_verdict, plans),
    )
    return f"| {' | '.join(cells)} |"


def _verdict(plan: dict[str, Any]) -> str:
    if plan["fits"]:
        return f"{plan['resident_contexts']} of {plan['agents']}"
    if plan["longest_context_tokens"]:
        return f"no: {plan['longest_context_tokens']:,}"
    return "no"


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB"


def with_table(page: str) -> str:
    """Return a page with the present table between its marks."""
    marks = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    table = "\n".join((BEGIN, *rows(), END))
    return marks.sub(lambda _: table, page)


def main() -> int:
    """Write the present table into the page."""
    PAGE.write_text(with_table(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
