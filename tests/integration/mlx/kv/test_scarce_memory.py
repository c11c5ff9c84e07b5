"""Agents that do not fit into memory together, each of which continues its context turn by turn.

With any budget that holds one context, its growth, the copies on their way to the disk and one
checkpoint, the next turn of every agent starts from what it knows, and its text is that of an
unlimited budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from tests.support.day_and_night import in_turn
from tests.support.models.disk_bench import DiskBench
from tests.support.models.families import AT_NIGHT
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import BLOCK, STEPS_MAX, Bench, Run
from tests.support.models.tiny_architectures import (
    FALCON_H1,
    GEMMA3,
    GPT_OSS,
    LLAMA,
    QWEN3_8_BITS,
    Architecture,
)

TURNS = 3
AGENTS = 3
#: Prompt tokens computed in a step.
STEP_TOKENS = 4 * BLOCK
ANSWER_TOKENS = 8
SYSTEM = random_tokens(6 * BLOCK + 5, 1)
#: Part of its known tokens from which a turn starts, at least.
KNOWN_SHARE_MIN = 0.98

#: One context and a margin, most of all contexts, and more than enough.
BUDGETS = ("1.05 of one", "all", "1.35 of one", "0.8 of all")
ROTATION_BUDGETS = ("0.8 of all", "1.05 of one")


def architectures_and(budgets: Sequence[str]) -> pytest.MarkDecorator:
    """Return the cases: by day each architecture with one budget."""
    few = (LLAMA, GEMMA3, GPT_OSS, FALCON_H1, QWEN3_8_BITS)
    columns = {budget: budget for budget in budgets}
    return in_turn("architecture, budget", few, columns, at_night=AT_NIGHT)


@dataclass
class Agent:
    """One conversation.

    Attributes:
        number: Seeds its tokens.
        prompt: Of its next turn, or of the one that runs.
        known: Tokens of its context after its last turn.
        turns: The turns that ended or run.
        shares: Parts of the known tokens from which its turns started, the first turn excepted.
    """

    number: int
    prompt: list[int] = field(default_factory=list)
    known: int = 0
    turns: list[Run] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prompt = SYSTEM + random_tokens(200 + 40 * self.number, 100 + self.number)

    def wait(self, bench: Bench) -> None:
        """Queue the next turn."""
        run = bench.wait(list(self.prompt), ANSWER_TOKENS, checkpoints=(len(SYSTEM),))
        self.turns.append(run)

    def record(self) -> None:
        """Register the turn that ended, and write the prompt of the next one."""
        run = self.turns[-1]
        assert run.fault is None
        if self.known:
            self.shares.append(min(1.0, run.starts[0][1] / self.known))
        for length, restored in run.starts[1:]:
            self.shares.append(restored / length)
        self.known = len(self.prompt) + len(run.tokens)
        result = random_tokens(25 + 3 * self.number, 1000 * self.number + len(self.turns))
        self.prompt += run.tokens + result


def final_tokens(number: int) -> int:
    """Return the tokens of an agent's context after its last turn."""
    prompt = len(SYSTEM) + 200 + 40 * number
    return prompt + (TURNS - 1) * (25 + 3 * number) + TURNS * ANSWER_TOKENS


def budget_bytes(architecture: Architecture, budget: str) -> int:
    bench = Bench(architecture)
    spec, row_bytes = bench.reuse._spec, bench.reuse.row_bytes
    sizes = [row_bytes(final_tokens(number)) for number in range(AGENTS)]
    bytes_by_name = {
        "1.05 of one": 1.05 * max(sizes),
        "1.35 of one": 1.35 * max(sizes),
        "0.8 of all": 0.8 * sum(sizes),
        "all": 4.0 * sum(sizes),
    }
    held_bytes = int(bytes_by_name[budget]) + spec.checkpoint_bytes + spec.full_bytes(BLOCK)
    return held_bytes + max(spec.full_bytes(BLOCK), held_bytes // 24)


@cache
def texts(architecture: Architecture) -> list[list[list[int]]]:
    """Return the answers of all agents, each prompt computed whole."""
    bench = Bench(architecture, budget_bytes=None, step_tokens=STEP_TOKENS)
    agents = [Agent(number) for number in range(AGENTS)]
    for agent in agents:
        for _ in range(TURNS):
            agent.wait(bench)
            bench.drain()
            agent.known = 0  # nothing is restored
            agent.record()
    return [[run.tokens for run in agent.turns] for agent in agents]


def started(
    architecture: Architecture, budget: str, directory: Path
) -> tuple[DiskBench, list[Agent]]:
    bench = DiskBench(
        architecture,
        directory,
        budget_bytes=budget_bytes(architecture, budget),
        step_tokens=STEP_TOKENS,
    )
    return bench, [Agent(number) for number in range(AGENTS)]


def assert_continued(architecture: Architecture, agents: list[Agent]) -> None:
    assert [[run.tokens for run in agent.turns] for agent in agents] == texts(architecture)
    for agent in agents:
        assert min(agent.shares) >= KNOWN_SHARE_MIN, (agent.number, agent.shares)


@architectures_and(ROTATION_BUDGETS)
def test_turns_in_rotation_start_from_what_they_know(
    architecture: Architecture, budget: str, tmp_path: Path
) -> None:
    bench, agents = started(architecture, budget, tmp_path)
    for _ in range(TURNS):
        for agent in agents:
            agent.wait(bench)
            bench.drain()
            agent.record()
    assert_continued(architecture, agents)
    bench.close()


@architectures_and(BUDGETS)
def test_turns_at_once_start_from_what_they_know(
    architecture: Architecture, budget: str, tmp_path: Path
) -> None:
    bench, agents = started(architecture, budget, tmp_path)
    for agent in agents:
        agent.wait(bench)
    running = set(range(AGENTS))
    for _ in range(STEPS_MAX):
        bench.go_on()
        for agent in [agents[number] for number in running if agents[number].turns[-1].ended]:
            agent.record()
            if len(agent.turns) < TURNS:
                agent.wait(bench)
            else:
                running.remove(agent.number)
        if not running:
            break
    assert_continued(architecture, agents)
    bench.close()
