"""Agents whose client rewrites the last message, in memory for a third of them.

The next prompt parts inside the previous one: where a reminder stood at the end of its last
message, where that message was replaced, or a few tokens before the end. What both share is not
computed again, and checkpoints of the abandoned ends leave the disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from domain.kv.hashing import common_tokens
from tests.support.day_and_night import by_day, in_turn
from tests.support.models.disk_bench import WAIT_S, DiskBench
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import BLOCK, Bench, Run
from tests.support.models.tiny_architectures import (
    FALCON_H1,
    GEMMA3,
    GPT_OSS,
    LLAMA,
    Architecture,
)
from tests.support.polling import scaled

AGENTS = 5
TURNS = by_day(4, night=6)
SYSTEM = random_tokens(8 * BLOCK + 5, 1)
#: What a template writes before a message, and behind the last one.
HEAD, OPENING = random_tokens(3, 2), random_tokens(4, 3)
#: With what each reminder begins.
REMINDS = random_tokens(4, 4)
TASK_TOKENS, RESULT_TOKENS, ANSWER_TOKENS = 12 * BLOCK, 5 * BLOCK, 12
#: Part of the tokens that a prompt shares with the one before it from which it starts, at least.
SHARED_MIN = 0.95
#: Bytes on the disk, in parts of what the contexts take in memory, at most.
STORED_MAX = 1.5

ARCHITECTURES = (LLAMA, GEMMA3, FALCON_H1, GPT_OSS)


@dataclass
class Agent:
    """One conversation.

    Attributes:
        number: Seeds its tokens.
        settled: Tokens of the messages that are not rewritten any more.
        last: Tokens of the last message, without what is rewritten.
        runs: Its turns.
        shared: Tokens of each prompt after the first that the one before it has too.
    """

    number: int
    settled: list[int] = field(default_factory=lambda: list(SYSTEM))
    last: list[int] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    shared: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.last = self.drawn(TASK_TOKENS)

    def drawn(self, count: int) -> list[int]:
        return random_tokens(count, 1000 * (1 + self.number) + len(self.runs))

    def ask(self, bench: DiskBench, rewritten: list[int]) -> None:
        prompt = [*self.settled, *HEAD, *self.last, *rewritten, *OPENING]
        if self.runs:
            self.shared.append(common_tokens(prompt, self.runs[-1].prompt))
        run = bench.wait(
            prompt,
            ANSWER_TOKENS,
            checkpoints=(len(SYSTEM),),
            last_message=len(self.settled) + len(HEAD),
            agent=f"agent-{self.number}",
        )
        bench.drain()
        assert run.fault is None
        self.runs.append(run)

    def go_on(self) -> None:
        """Append the answer and the result of its tool."""
        self.settled += [*HEAD, *self.last, *OPENING, *self.runs[-1].tokens]
        self.last = self.drawn(RESULT_TOKENS)

    @property
    def reused(self) -> float:
        starts = [run.starts[0][1] for run in self.runs[1:]]
        return sum(map(min, starts, self.shared)) / sum(self.shared)


def remind(agent: Agent, bench: DiskBench) -> None:
    """A reminder that changes stands at the end of the last message, and only there."""
    if agent.runs:
        agent.go_on()
    count = 2 + (agent.number + len(agent.runs)) % 4
    agent.ask(bench, REMINDS + random_tokens(count, 77 * (1 + agent.number) + len(agent.runs)))


def replace_last(agent: Agent, bench: DiskBench) -> None:
    """Every second turn replaces the last message of the one before it."""
    if len(agent.runs) % 2:
        agent.last = agent.drawn(RESULT_TOKENS)
    elif agent.runs:
        agent.go_on()
    agent.ask(bench, [])


def replay(agent: Agent, bench: DiskBench) -> None:
    """Each turn has more of the last message: it parts a few tokens before the end."""
    if agent.runs:
        agent.last += agent.drawn(RESULT_TOKENS)
    agent.ask(bench, [])


def started(architecture: Architecture, directory: Path) -> DiskBench:
    """Return a process with memory for a third of ``AGENTS``."""
    longest = len(SYSTEM) + TASK_TOKENS + TURNS * (RESULT_TOKENS + 30)
    reuse = Bench(architecture).reuse
    budget = int(0.33 * AGENTS * reuse.row_bytes(longest)) + reuse.pool.spec.checkpoint_bytes
    return DiskBench(architecture, directory, budget_bytes=budget, step_tokens=4 * BLOCK)


def settle(bench: DiskBench) -> None:
    """Wait for all writes and deletions."""
    bench.settle()
    bench.tier.forget([]).result(scaled(WAIT_S))


def stored_share(bench: DiskBench, agents: list[Agent]) -> float:
    """Return the bytes on the disk, in parts of the contexts of all agents in memory."""
    settle(bench)
    spec = bench.reuse.pool.spec
    live = sum(spec.live_bytes(len(one.runs[-1].prompt) + ANSWER_TOKENS) for one in agents)
    return bench.tier.stats().size_bytes / live


@in_turn(
    "architecture, turn",
    ARCHITECTURES,
    {"replaced": replace_last, "reminder": remind, "near the end": replay},
)
def test_shared_tokens_are_not_computed_again(
    architecture: Architecture, turn: Callable[[Agent, DiskBench], None], tmp_path: Path
) -> None:
    # The blocks of replaced messages stay until the disk is full.
    stored_max = 3.0 if turn is replace_last else STORED_MAX
    agents = [Agent(number) for number in range(AGENTS)]
    bench = started(architecture, tmp_path)
    for _ in range(TURNS):
        for agent in agents:
            turn(agent, bench)
    assert min(agent.reused for agent in agents) >= SHARED_MIN
    assert stored_share(bench, agents) <= stored_max
    bench.close()


@in_turn("architecture, turn", ARCHITECTURES, {"reminder": remind, "near the end": replay})
def test_a_kill_between_two_turns_changes_nothing(
    architecture: Architecture, turn: Callable[[Agent, DiskBench], None], tmp_path: Path
) -> None:
    agents = [Agent(number) for number in range(2)]
    for number in range(4):
        bench = started(architecture, tmp_path / str(number))
        for agent in agents:
            turn(agent, bench)
        settle(bench)
        shutil.copytree(tmp_path / str(number), tmp_path / str(number + 1))  # what a kill leaves
        bench.close()
    assert min(agent.reused for agent in agents) >= SHARED_MIN
