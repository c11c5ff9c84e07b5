"""Swaps under load: how long each phase takes, whether a stream fails, and what memory remains.

``python -m bench.swap [--shape demo|135m] [--swaps 20] [--streams 4]``: two models of one shape
take turns. Before each swap, streams run; they have to end with the text that the model they began
with gives alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx

from bench.chaos.model import make_exact_model
from bench.report.section import Section, table_lines
from tests.support.clients.job_reader import JobReader
from tests.support.models.tiny_models import make_tiny_llama
from tests.support.processes.service import Service

#: Tokens of each stream, so that it runs when the swap begins.
TOKENS: Final = 300
#: Phases of a swap object, in their order.
PHASES: Final = ("notice", "drain", "save", "restart", "load", "total")
_WAIT_S: Final = 300.0
_LOOK_S: Final = 0.02


def make_models(shape: str, directory: Path) -> str:
    """Write the two models of a shape and return their tables of the configuration."""
    tables = []
    for seed, name in enumerate("ab"):
        source = directory / name
        if shape == "demo":
            make_exact_model(source)
        else:
            make_tiny_llama(source, hidden=576, layers=30, context=4096, seed=seed)
        tables.append(f'[models.{name}]\nsource = "{source}"\n')
    return "".join(tables)


class Bench:
    """A service with two models.

    Args:
        shape: Shape of the models.
        directory: For models and data.
    """

    def __init__(self, shape: str, directory: Path) -> None:
        config = directory / "semantic.toml"
        config.write_text(make_models(shape, directory))
        env = {
            "SEMANTIC_CONFIG": str(config),
            "SEMANTIC_MODEL__ID": "a",
            "SEMANTIC_JOBS__WORKER_STANDBY": "true",
        }
        self.service = Service(directory / "data", env=env)
        self.http = httpx.Client(base_url=self.service.base_url, timeout=_WAIT_S)

    def submit(self, prompt: str, tokens: int) -> str:
        """Submit a job for whichever model is loaded."""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "seed": 1}
        reply = self.http.post("/v1/jobs", json=body).raise_for_status()
        return str(reply.json()["id"])

    def first_token_ms(self) -> float:
        """Return the time to the first item with text of a new job."""
        begun = time.monotonic()
        with JobReader(self.service.base_url, self.submit("A word.", 2)) as reader:
            reader.wait_for(2)
        return (time.monotonic() - begun) * 1000

    def swap(self, model: str) -> dict[str, Any]:
        """Swap, and return the swap at its end."""
        swap = self.http.post(f"/admin/models/{model}/load").raise_for_status().json()
        while swap["ended_at"] is None:
            time.sleep(_LOOK_S)
            swap = self.http.get(f"/admin/swaps/{swap['id']}").raise_for_status().json()
        return dict(swap)

    def texts(self, prompts: list[str]) -> list[str]:
        """Return what the loaded model says to each prompt, one after the other."""
        found = []
        for prompt in prompts:
            with JobReader(self.service.base_url, self.submit(prompt, TOKENS)) as reader:
                found.append(reader.whole())
        return found

    def worker_mb(self) -> float:
        """Return the resident memory of the worker, in 10^6 bytes."""
        return float(self.service.part("worker").memory_info().rss) / 1e6


def measure(bench: Bench, swaps: int, streams: int) -> dict[str, Any]:
    """Swap under streams and return the figures."""
    prompts = [f"Tell me story {number}." for number in range(streams)]
    alone = {"a": bench.texts(prompts)}
    cold_mb = bench.worker_mb()
    rows: list[dict[str, float]] = []
    failed = changed = 0
    model = "a"
    for _ in range(swaps):
        before, model = model, "b" if model == "a" else "a"
        with ExitStack() as stack:
            jobs = [bench.submit(prompt, TOKENS) for prompt in prompts]
            url = bench.service.base_url
            readers = [stack.enter_context(JobReader(url, job)) for job in jobs]
            for reader in readers:
                reader.wait_for(3)
            swap = bench.swap(model)
            assert swap["state"] == "done", swap
            first_ms = bench.first_token_ms()
            for reader, text in zip(readers, alone[before], strict=True):
                try:
                    changed += reader.whole() != text
                except AssertionError:
                    failed += 1
        if model not in alone:
            alone[model] = bench.texts(prompts)
        rows.append({phase: swap["timings_ms"][phase] or 0.0 for phase in PHASES})
        rows[-1]["first_token"] = first_ms
    if model != "a":
        bench.swap("a")
    bench.texts(prompts)
    return {
        "swaps": swaps,
        "streams": swaps * streams,
        "failed_streams": failed,
        "changed_texts": changed,
        "median_ms": {
            phase: round(statistics.median(row[phase] for row in rows)) for phase in rows[0]
        },
        "worst_total_ms": round(max(row["total"] for row in rows)),
        "rss_cold_mb": round(cold_mb),
        "rss_after_mb": round(bench.worker_mb()),
    }


def main() -> None:
    """Measure one shape and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=("demo", "135m"), default="demo")
    parser.add_argument("--swaps", type=int, default=20)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(given.shape, Path(directory))
        with bench.service, bench.http:
            figures = measure(bench, given.swaps, given.streams)
    middle = figures["median_ms"]
    streams = f"{figures['failed_streams']} of {figures['streams']} streams failed"
    rest = f"{figures['changed_texts']} texts changed; the worker had {figures['rss_cold_mb']} MB"
    rest += f" before and {figures['rss_after_mb']} MB after {figures['swaps']} swaps"
    Section(
        headline=(
            "swap of the model under streams",
            f"{middle['total'] / 1000:.1f} s; {streams}",
        ),
        table=[
            *table_lines(("phase", ">median, ms"), ((n, f"{ms:,}") for n, ms in middle.items())),
            "",
            f"{streams}; {rest}; the slowest swap took {figures['worst_total_ms']:,} ms.",
        ],
        figures={"shape": given.shape, **figures},
    ).emit(given.json)


if __name__ == "__main__":
    main()
