"""How much memory do several agents take, compared with mlx-lm's BatchGenerator?

``python -m bench.experiments.memory``. Each figure is a process of its own that loads the demo
model and answers one request of 512 prompt tokens for each agent, all at once: this engine with its
prefix cache, or the BatchGenerator. RSS is measured after loading, at its peak, and after the
answers.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

import mlx_lm.utils
import psutil

from bench.experiments.demo_engine import DemoEngine, outcome_of
from bench.experiments.report import print_conditions, print_table, print_verdict
from bench.raw_batch import run_batch
from domain.chat.request import Message
from ops.setting_groups.models import DEMO_MODEL
from ops.supervisor.environment import LARGE_ARRAYS, allocator_environment
from worker.engine.mlx.model.loader import find_model

AGENTS = (1, 5, 10)
PROMPT_TOKENS = 512
MAX_TOKENS = 64
ENGINE, RAW = "engine", "raw BatchGenerator"


def main() -> None:
    """Print the table, or measure in a child process of this program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", choices=(ENGINE, RAW), help="measure and print JSON")
    parser.add_argument("--agents", type=int, default=1)
    given = parser.parse_args()
    if given.child is not None:
        print(json.dumps(_engine(given.agents) if given.child == ENGINE else _raw(given.agents)))
        return
    started_s = time.monotonic()
    grown: dict[str, list[float]] = {ENGINE: [], RAW: []}
    print_table(
        (">agents", "contender", ">loaded MB", ">peak MB", ">after MB", ">peak over loaded MB"),
        _rows(grown),
    )
    shares = [ours / theirs for ours, theirs in zip(grown[ENGINE], grown[RAW], strict=True)]
    print_verdict(
        reached=max(shares) <= 1,
        why=f"over the loaded model, the engine and its blocks take {min(shares):.0%} to"
        f" {max(shares):.0%} of what the bare generator takes (goal: at most 100%).",
    )
    print_conditions(started_s)


def _rows(grown: dict[str, list[float]]) -> Iterator[tuple[object, ...]]:
    for agents in AGENTS:
        for contender in (ENGINE, RAW):
            command = [sys.executable, "-m", "bench.experiments.memory"]
            done = subprocess.run(
                [*command, "--child", contender, "--agents", str(agents)],
                check=True,
                stdout=subprocess.PIPE,
                env=os.environ
                | (allocator_environment(LARGE_ARRAYS, os.environ) if contender == ENGINE else {}),
                text=True,
            )
            loaded, peak, after = json.loads(done.stdout)
            grown[contender].append(peak - loaded)
            yield (
                agents,
                contender,
                *(f"{size / 1e6:.0f}" for size in (loaded, peak, after, peak - loaded)),
            )


def _engine(agents: int) -> tuple[int, int, int]:
    with DemoEngine(batch=max(AGENTS)) as engine:
        loaded = _rss_bytes()
        prompts = [
            engine.prepare([Message(role="user", content=_text(agent))], MAX_TOKENS)
            for agent in range(agents)
        ]
        for handle in [engine.submit(prompt) for prompt in prompts]:
            outcome_of(handle)
        return loaded, _peak_bytes(), _rss_bytes()


def _raw(agents: int) -> tuple[int, int, int]:
    network, tokenizer, *_ = mlx_lm.utils.load(str(find_model(DEMO_MODEL)))
    loaded = _rss_bytes()
    bodies = [
        {
            "messages": [{"role": "user", "content": _text(agent)}],
            "max_tokens": MAX_TOKENS,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        for agent in range(agents)
    ]
    run_batch(network, tokenizer, bodies)
    return loaded, _peak_bytes(), _rss_bytes()


def _text(agent: int) -> str:
    """Return a prompt of about the given number of tokens, different for each agent."""
    return f"{agent} is my number. " + "the sea and the sky " * (PROMPT_TOKENS // 5)


def _rss_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def _peak_bytes() -> int:
    """Return the process's peak resident size; Linux reports it in kilobytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


if __name__ == "__main__":
    main()
