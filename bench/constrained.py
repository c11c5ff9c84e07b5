"""What does constrained decoding cost, compared with free decoding?

``python -m bench.constrained [--model semantic-demo] [--streams 1,4,8] [--steps 150]
[--rounds 5] [--vocabulary FILE]``. Drives the runner without threads or text. Free and constrained
batches take turns. A figure is the median over the rounds; a cost is the median of the paired
rounds, in tokens per second and in tokens per second of processor time, which other programs on
the machine disturb less. With ``--vocabulary`` no model is used: see ``bench.large_vocabulary``.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from bench.large_vocabulary import report
from domain.chat.generation import PreparedPrompt
from domain.values import Sampling
from worker.engine.mlx.model.loader import ModelSource, load_weights
from worker.engine.mlx.runner import BatchRunner
from worker.engine.ports import Admission, LoadedModel

_TOOLS = Path(__file__).parents[1] / "tests" / "fixtures" / "tools" / "coding_agent.json"
_ENDLESS: Mapping[str, Any] = {
    "type": "array",
    "minItems": 100_000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "kind": {"enum": ["a", "b"]},
            "size": {"type": "integer"},
        },
        "required": ["name", "kind", "size"],
        "additionalProperties": False,
    },
}
_PROMPT_TOKENS = 64
_WARM_STEPS = 20
_MASKS = 200


class _Rate(NamedTuple):
    tokens_per_s: float
    tokens_per_cpu_s: float


def main() -> None:
    """Print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="semantic-demo")
    parser.add_argument("--streams", default="1,4,8")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocabulary", type=Path, help="a large one, made there if there is none")
    parser.add_argument("--size", type=int, default=151_643, help="tokens of a vocabulary to make")
    options = parser.parse_args()
    if options.vocabulary is not None:
        report(options.size, options.vocabulary, _tools())
        return
    print(f"{platform.system()} {platform.machine()}, llguidance {version('llguidance')},")
    print(f"mlx {version('mlx')}, {options.model}\n")
    runner = BatchRunner(
        load_weights=lambda: replace(
            load_weights(ModelSource(id=options.model)), end_ids=frozenset()
        ),
        prefill_step_tokens=256,
    )
    model = runner.load()
    tools = _tools()
    _print_grammars(model, tools)
    print("\n| streams | free tok/s | schema tok/s | cost | CPU | tools tok/s | cost | CPU |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|")
    for streams in map(int, options.streams.split(",")):
        row = _row(runner, model, tools, (streams, options.steps, options.rounds))
        print(f"| {streams} | {row} |", flush=True)


def _tools() -> tuple[Mapping[str, Any], ...]:
    return tuple(
        {
            "type": "function",
            "function": {"name": tool["name"], "parameters": tool["input_schema"]},
        }
        for tool in json.loads(_TOOLS.read_text())
    )


def _print_grammars(model: LoadedModel, tools: Sequence[Mapping[str, Any]]) -> None:
    opened = '<tool_call>\n{"name": "'
    print("| form | first ms | again ms | mask and accept, µs a token |")
    print("|---|--:|--:|--:|")
    for name, prompt in (
        ("a schema of four lines", _prompt(answer_schema=_ENDLESS)),
        ("one tool", _prompt(tools=tools[:1], opened=opened)),
        (f"{len(tools)} tools", _prompt(tools=tools, opened=opened)),
    ):
        first, *again = [_timed(partial(model.constraint, prompt)) for _ in range(6)]
        print(f"| {name} | {first:.1f} | {min(again):.1f} | {_mask_us(model, prompt):.0f} |")


def _mask_us(model: LoadedModel, prompt: PreparedPrompt) -> float:
    constraint = model.constraint(prompt)
    assert constraint is not None
    spent = 0.0
    for number in range(_MASKS):
        began = time.perf_counter()
        mask = constraint.mask()
        spent += time.perf_counter() - began
        if mask is None:
            # The tool call is complete.
            constraint = model.constraint(prompt)
            assert constraint is not None
            continue
        allowed = [place for place in range(8 * len(mask)) if mask[place // 8] >> (place % 8) & 1]
        began = time.perf_counter()
        constraint.accept(allowed[number * 7 % len(allowed)])
        spent += time.perf_counter() - began
    return 1e6 * spent / _MASKS


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began)


def _row(
    runner: BatchRunner,
    model: LoadedModel,
    tools: Sequence[Mapping[str, Any]],
    size: tuple[int, int, int],
) -> str:
    streams, steps, rounds = size
    forms = (_prompt(), _prompt(answer_schema=_ENDLESS), _prompt(tools=tools))
    rates: list[list[_Rate]] = [[], [], []]
    for _ in range(rounds):
        for place, form in enumerate(forms):
            rates[place].append(_rate(runner, model, form, streams, steps))
    free = rates[0]
    cells = [f"{statistics.median(rate.tokens_per_s for rate in free):.0f}"]
    for held in rates[1:]:
        pairs = list(zip(held, free, strict=True))
        cost = statistics.median(1 - one.tokens_per_s / other.tokens_per_s for one, other in pairs)
        cpu = statistics.median(
            1 - one.tokens_per_cpu_s / other.tokens_per_cpu_s for one, other in pairs
        )
        cells.append(f"{statistics.median(rate.tokens_per_s for rate in held):.0f}")
        cells += [f"{100 * cost:.1f} %", f"{100 * cpu:.1f} %"]
    return " | ".join(cells)


def _rate(
    runner: BatchRunner, model: LoadedModel, form: PreparedPrompt, streams: int, steps: int
) -> _Rate:
    """Return the decoding rate of a batch."""
    for seed in range(streams):
        sampling = Sampling(temperature=0.8, seed=seed)
        runner.insert(
            Admission(
                tokens=form.tokens,
                first_index=0,
                max_new_tokens=1 << 20,
                sampling=sampling,
                constraint=model.constraint(form),
            )
        )
    for _ in range(_WARM_STEPS + streams):
        runner.step()
    began, cpu_began, tokens = time.perf_counter(), time.process_time(), 0
    for _ in range(steps):
        tokens += len(runner.step().tokens)
    rate = _Rate(tokens / (time.perf_counter() - began), tokens / (time.process_time() - cpu_began))
    runner.reset()
    return rate


def _prompt(**form: Any) -> PreparedPrompt:
    return PreparedPrompt(
        tokens=tuple(range(100, 100 + _PROMPT_TOKENS)),
        cached_tokens=0,
        cache_source="none",
        max_tokens=1 << 20,
        sampling=Sampling(),
        **form,
    )


if __name__ == "__main__":
    main()
