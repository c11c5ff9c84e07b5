"""What does the disk tier cost running streams, and what does a restart cost?

``python -m bench.disk_tier`` prints Markdown. The baseline is the same engine without the disk
tier; rounds with and without it take turns in one process. The network has the KV shape of a 135M
model and few other weights, so that a step is short and a stall is visible.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models import llama

from domain.values import ModelCard, Sampling
from ops.blockstore.store import BlockStore
from ops.clock import SystemClock
from worker.cachestore.tier import DiskTier
from worker.engine.mlx.model.loaded_weights import LoadedWeights
from worker.engine.mlx.runner import BatchRunner
from worker.engine.output.detokenizer import ByteDetokenizer
from worker.engine.ports import Admission, LoadedModel, RenderedPrompt

#: Keys and values of 30 layers with 3 heads of 64, bfloat16: 5.9 MB for 256 tokens.
LAYERS, HEADS, DIM, VOCABULARY = 30, 3, 64, 1000
STREAMS = 2
PROMPT_TOKENS = 200
ANSWER_TOKENS = 330
CONTEXTS = (2048, 4096, 8192, 16384)
WAIT_S = 600.0


class _Gap(NamedTuple):
    gap_ms: float
    busy_ms: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contexts", type=int, nargs="*", default=CONTEXTS)
    parser.add_argument("--dir", type=Path, default=None, help="on the disk to measure")
    given = parser.parse_args()
    network = _network()
    with tempfile.TemporaryDirectory(dir=given.dir) as name:
        _print_gaps(network, Path(name), given.rounds)
    print("\n| tokens | MB | computed ms | from disk ms | in memory ms | plain read ms |")
    print("|--:|--:|--:|--:|--:|--:|")
    for tokens in given.contexts:
        with tempfile.TemporaryDirectory(dir=given.dir) as name:
            print(_restart_row(network, Path(name), tokens))


def _print_gaps(network: Any, directory: Path, rounds: int) -> None:
    gaps: dict[bool, list[_Gap]] = {False: [], True: []}
    sealed = 0
    for number in range(rounds):
        for persists in (False, True):
            tier = _tier(directory / str(number)) if persists else None
            runner = _runner(network, tier)
            gaps[persists] += _decode(runner, number)
            runner.reset()
            if tier is not None:
                tier.flush(WAIT_S)
                sealed += tier.figures().store.stored
                tier.close(WAIT_S)
    print(f"{STREAMS} streams, prompts of {PROMPT_TOKENS}, answers of {ANSWER_TOKENS} tokens;")
    print(f"{sealed} blocks written in {rounds} rounds; gap between two tokens in ms, and the time")
    print("that the engine thread itself was busy in it, which others' load does not change\n")
    print("| disk | gap p50 | p99 | longest | busy p50 | p99 | longest |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for persists, label in ((False, "off"), (True, "on")):
        figures = []
        for values in zip(*gaps[persists], strict=True):
            cuts = statistics.quantiles(values, n=100)
            figures += [cuts[49], cuts[98], max(values)]
        print(f"| {label} | " + " | ".join(f"{figure:.1f}" for figure in figures) + " |")


def _decode(runner: BatchRunner, seed: int) -> list[_Gap]:
    """Return the times between tokens once all streams decode."""
    prompts = [_prompt(PROMPT_TOKENS, seed * STREAMS + stream) for stream in range(STREAMS)]
    for prompt in prompts:
        runner.insert(_admission(prompt, ANSWER_TOKENS))
    tokens = 0
    while tokens < STREAMS:
        tokens = len(runner.step().tokens)
    gaps = []
    while tokens == STREAMS:
        began_s, busy_s = time.perf_counter(), time.thread_time()
        tokens = len(runner.step().tokens)
        gap_ms = 1000 * (time.perf_counter() - began_s)
        gaps.append(_Gap(gap_ms, 1000 * (time.thread_time() - busy_s)))
    return gaps


def _restart_row(network: Any, directory: Path, tokens: int) -> str:
    prompt = _prompt(tokens, tokens)
    tier = _tier(directory)
    runner = _runner(network, tier)
    computed_ms = _first_token_ms(runner, prompt)
    memory_ms = _first_token_ms(runner, tuple(prompt))
    runner.reset()
    tier.flush(WAIT_S)
    tier.close(WAIT_S)
    files = list(directory.rglob("*.kv"))
    began_s = time.perf_counter()
    size_bytes = sum(len(path.read_bytes()) for path in files)
    read_ms = 1000 * (time.perf_counter() - began_s)
    tier = _tier(directory)
    runner = _runner(network, tier)
    disk_ms = _first_token_ms(runner, tuple(prompt))
    runner.reset()
    tier.close(WAIT_S)
    figures = (size_bytes / 1e6, computed_ms, disk_ms, memory_ms, read_ms)
    return f"| {tokens} | " + " | ".join(f"{figure:.0f}" for figure in figures) + " |"


def _first_token_ms(runner: BatchRunner, prompt: Sequence[int]) -> float:
    admission = _admission(prompt, 1)
    began_s = time.perf_counter()
    while runner.must_wait(admission):
        time.sleep(0.002)
    runner.insert(admission)
    while not runner.step().tokens:
        pass
    return 1000 * (time.perf_counter() - began_s)


def _admission(prompt: Sequence[int], max_tokens: int) -> Admission:
    return Admission(
        tokens=tuple(prompt),
        first_index=0,
        max_new_tokens=max_tokens,
        sampling=Sampling(temperature=0),
    )


def _prompt(tokens: int, seed: int) -> tuple[int, ...]:
    draw = random.Random(seed)
    return tuple(draw.randrange(VOCABULARY) for _ in range(tokens))


def _tier(directory: Path) -> DiskTier:
    clock = SystemClock()
    tier = DiskTier(BlockStore(directory, budget_bytes=1 << 40, clock=clock), clock=clock)
    tier.start()
    tier.wait_scanned(WAIT_S)
    return tier


def _runner(network: Any, tier: DiskTier | None) -> BatchRunner:
    runner = BatchRunner(
        load_weights=lambda: LoadedWeights(network, frozenset(), _model()),
        prefill_step_tokens=256,
        kv_budget_bytes=2 << 30,
        tier=tier,
    )
    runner.load()
    return runner


def _network() -> Any:
    mx.random.seed(1)
    network = llama.Model(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=HEADS * DIM,
            num_hidden_layers=LAYERS,
            intermediate_size=256,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            head_dim=DIM,
            rms_norm_eps=1e-5,
            vocab_size=VOCABULARY,
            max_position_embeddings=1 << 17,
        )
    )
    network.set_dtype(mx.bfloat16)
    mx.eval(network.parameters())
    return network


def _model() -> LoadedModel:
    card = ModelCard(
        id="bench",
        fingerprint="sha256:" + "0" * 64,
        context_length=1 << 17,
        description="",
        created_at="2026-01-01T00:00:00Z",
    )
    return LoadedModel(
        card=card,
        think_tags=None,
        render=lambda *_: RenderedPrompt((1,)),
        opens_thinking=lambda _: False,
        detokenizer=lambda: ByteDetokenizer([]),
    )


if __name__ == "__main__":
    main()
