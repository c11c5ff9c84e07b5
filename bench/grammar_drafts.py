"""What drafts win while a grammar restricts the answers: ``python -m bench.grammar_drafts``.

Two runners of the demo model in one process answer the same requests in turn: one drafts, the other
draws one token of each sequence in a pass. Their tokens are equal. Without prefix reuse, so that
both read the whole prompts. CPU time is that of all threads of the process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.experiments.report import log_to_stderr, print_conditions, print_table, print_verdict
from domain.chat.generation import GenerationTask
from domain.chat.request import ChatRequest, Message, ToolChoice
from domain.model.registry import ModelEntry
from domain.values import JobId, SamplingWish
from ops.settings.models import DEMO_MODEL
from worker.engine.mlx.model.loader import load_weights
from worker.engine.mlx.runner import BatchRunner
from worker.engine.ports import LoadedModel
from worker.engine.preparation import admission_of, prepare

#: Tokens per second with drafts, in those without.
GAIN_MIN = 1.3
TOKENS_MAX = 160
_PLACES = ("Paris", "Oslo", "Lima", "Cairo", "Quito", "Hanoi", "Dakar", "Turin")
_STRING = {"type": "string", "maxLength": 24}
_CITY = {
    "type": "object",
    "properties": {
        "city": _STRING,
        "country": _STRING,
        "is_capital": {"type": "boolean"},
        "population_in_millions": {"type": "integer", "minimum": 0, "maximum": 99},
        "continent": {"enum": ["Africa", "America", "Asia", "Europe"]},
    },
    "required": ["city", "country", "is_capital", "population_in_millions", "continent"],
    "additionalProperties": False,
}
_FORECAST = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Returns the weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {
                "location": _STRING,
                "unit": {"enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
            },
            "required": ["location", "unit", "days"],
            "additionalProperties": False,
        },
    },
}


@dataclass(slots=True)
class _Side:
    """A runner, and what it has taken in each round."""

    runner: BatchRunner
    model: LoadedModel
    tokens: list[list[int]] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    passes: int = 0
    total: int = 0

    def answer(self, requests: Sequence[ChatRequest]) -> None:
        """Answer requests together, and note what their decode steps took."""
        answers: dict[int, list[int]] = {}
        for number, request in enumerate(requests):
            prompt = prepare(request, self.model)
            task = GenerationTask(
                job_id=JobId(f"job-{number}"),
                attempt=1,
                prompt=prompt,
                emitted=(),
                first_item=1,
                stop=(),
            )
            admitted = self.runner.insert(admission_of(task, self.model, arrival=number))
            assert admitted is not None, "there is no room"
            answers[admitted.uid] = []
        running = set(answers)
        while self.runner.sequences.is_prefilling or self.runner.sequences.opening:
            self._step(answers, running)
        wall, cpu = time.perf_counter(), time.process_time()
        while running:
            self._step(answers, running)
            self.passes += 1
        self.wall_s.append(time.perf_counter() - wall)
        self.cpu_s.append(time.process_time() - cpu)
        self.tokens += answers.values()
        self.total += sum(map(len, answers.values()))

    def _step(self, answers: dict[int, list[int]], running: set[int]) -> None:
        step = self.runner.step()
        assert not step.faults, step.faults
        for uid, token, finish in step.tokens:
            answers[uid].append(token)
            if finish is not None:
                running.discard(uid)


def _side(*, drafts: bool) -> _Side:
    runner = BatchRunner(
        load_weights=lambda: load_weights(ModelEntry(name=DEMO_MODEL, source=DEMO_MODEL)),
        reuse=False,
    )
    runner.speculates = drafts
    return _Side(runner, runner.load())


def _request(text: str, seed: int, **more: Any) -> ChatRequest:
    return ChatRequest(
        model=DEMO_MODEL,
        messages=(Message(role="user", content=text),),
        max_tokens=TOKENS_MAX,
        sampling=SamplingWish(temperature=0.7, seed=seed),
        **more,
    )


def _workload(name: str, round_: int, streams: int) -> list[ChatRequest]:
    requests = []
    for stream in range(streams):
        place = _PLACES[(round_ * streams + stream) % len(_PLACES)]
        seed = 100 * round_ + stream
        if name == "one object":
            requests.append(_request(f"Describe the city {place}.", seed, answer_schema=_CITY))
        elif name == "a list of objects":
            schema = {"type": "array", "items": _CITY, "minItems": 3, "maxItems": 3}
            requests.append(_request(f"Describe {place}.", seed, answer_schema=schema))
        else:
            text = f"What is the weather in {place}?"
            choice = ToolChoice(mode="any")
            requests.append(_request(text, seed, tools=(_FORECAST,), tool_choice=choice))
    return requests


def main() -> None:
    """Print what drafts win on each workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    given = parser.parse_args()
    log_to_stderr()
    started_s = time.monotonic()
    rows, worst = [], float("inf")
    for streams in given.streams:
        for name in ("one object", "a list of objects", "a tool call"):
            plain, drafting = _side(drafts=False), _side(drafts=True)
            for round_ in range(given.rounds):
                requests = _workload(name, round_, streams)
                for side in (plain, drafting) if round_ % 2 else (drafting, plain):
                    side.answer(requests)
            assert plain.tokens == drafting.tokens, "drafts have changed tokens"
            # The first rounds teach what drafts cost and how the model writes.
            later = slice(given.rounds // 4, None)
            cpu, wall = (
                median(
                    one / two
                    for one, two in zip(
                        getattr(plain, kind)[later], getattr(drafting, kind)[later], strict=True
                    )
                )
                for kind in ("cpu_s", "wall_s")
            )
            worst = min(worst, cpu)
            figures = drafting.runner.drafts
            rows.append(
                (
                    name,
                    str(streams),
                    str(plain.total),
                    str(plain.passes),
                    str(drafting.passes),
                    f"{plain.passes / drafting.passes:.2f}",
                    f"{cpu:.2f}",
                    f"{wall:.2f}",
                    f"{figures.accepted_tokens} of {figures.drafted_tokens}",
                )
            )
    columns = ("workload", ">streams", ">tokens", ">passes without", ">with", ">fewer")
    print_table((*columns, ">CPU ratio", ">wall ratio", ">accepted"), rows)
    print_conditions(started_s)
    why = f"{worst:.2f} times the tokens per CPU second at least, wanted {GAIN_MIN}"
    print_verdict(reached=worst >= GAIN_MIN, why=why)


if __name__ == "__main__":
    main()
