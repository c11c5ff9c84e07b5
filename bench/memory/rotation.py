"""Agents that take turns within a budget, one after another or all at once.

``python -m bench.memory.rotation JSON`` prints the figures of one run as JSON: each run is a
process of its own.
"""

from __future__ import annotations

import dataclasses
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.memory.engine import Answered, MemoryEngine
from bench.memory.shapes import SCALED_BLOCK_TOKENS, SHAPES, VOCABULARY
from domain.chat.request import ChatRequest, Message
from domain.kv.spec import ModelCacheSpec
from domain.values import SamplingWish
from worker.engine.mlx.kv.probe import probe_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Lengths of the agents' conversations, in tokens.

    Attributes:
        agents: How many agents take turns.
        turns: Answers of each agent.
        system: Tools and system prompt, the same for all agents.
        task: First message of each agent.
        result: Mean length of a tool's result; results have half to one and a half times as many.
        answer: Each answer.
    """

    agents: int
    turns: int = 5
    system: int = 128
    task: int = 256
    result: int = 64
    answer: int = 8


class Agent:
    """One conversation; each agent has other tokens, the same in every run.

    Args:
        workload: Lengths.
    """

    def __init__(self, number: int, workload: Workload) -> None:
        self._workload = workload
        self._draw = random.Random(number)
        self._seed = number
        system = _tokens(random.Random(-1), workload.system)
        self._messages = [system, _tokens(self._draw, workload.task)]
        #: Tokens of the previous prompt and its answer.
        self.known_tokens = 0

    def request(self) -> ChatRequest:
        """Return the next request; its messages spell token ids."""
        return ChatRequest(
            model="any",
            messages=tuple(
                Message(role="user", content=" ".join(map(str, message)))
                for message in self._messages
            ),
            max_tokens=self._workload.answer,
            sampling=SamplingWish(temperature=1.0, seed=self._seed),
        )

    def record(self, answer: Sequence[int]) -> None:
        """Append an answer, and the result of the tool that it calls."""
        self._messages.append(list(answer))
        self.known_tokens = sum(map(len, self._messages))
        mean = self._workload.result
        self._messages.append(_tokens(self._draw, self._draw.randint(mean // 2, mean * 3 // 2)))


def context_tokens(workload: Workload) -> list[int]:
    """Return the tokens of each agent's context after its last answer."""
    lengths = []
    for number in range(workload.agents):
        agent = Agent(number, workload)
        for _ in range(workload.turns):
            agent.record([0] * workload.answer)
        lengths.append(agent.known_tokens)
    return lengths


def _tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(VOCABULARY) for _ in range(count)]


#: Prompt tokens in one piece: 1,024 of the published model.
PREFILL_STEP_TOKENS = 64
UNLIMITED_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer after the first one of an agent."""

    known: int
    restored: int
    first_token_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationFigures:
    """What a run shows. Shares are of the known tokens: the previous prompt and its answer.

    Attributes:
        budget_bytes: KV budget.
        live_bytes: Of all contexts at their ends.
        wanted_tokens: Longest context of the workload.
        longest_tokens: Longest context of the agents: shorter where the engine accepts less within
            the budget.
        reused_median: Share of the known tokens from which a next turn starts.
        recomputed_tokens: Known tokens that were computed again, after preemptions included.
        read_bytes: Bytes of blocks read from the disk.
        written_bytes: Bytes of blocks written.
        stored_bytes: Bytes on disk at the end.
        first_token_s: Median time to the first token of a next turn.
        total_s: Time of all turns.
        cpu_s: Processor time of all turns, which other programs change less.
        peak_bytes: Peak of MLX's memory without the weights.
        step_bytes: Most bytes that one step took beside the contexts.
        agent_s: Time of all turns of each agent.
        answers: A digest of each answer, by agent and turn.
    """

    budget_bytes: int
    live_bytes: int
    wanted_tokens: int
    longest_tokens: int
    reused_median: float
    reused_worst: float
    recomputed_tokens: int
    read_bytes: int
    written_bytes: int
    stored_bytes: int
    first_token_s: float
    total_s: float
    cpu_s: float
    peak_bytes: int
    step_bytes: int
    agent_s: list[float]
    answers: list[list[str]]


def run_agents(
    workload: Workload,
    directory: Path,
    *,
    shape: str,
    budget: str,
    at_once: bool,
    quick: bool,
) -> RotationFigures:
    """Run agents on an engine of their own.

    Args:
        shape: Name of the shape.
        budget: ``1.05x one`` is so many times the longest context, ``0.8x all`` so many times all
            contexts together; or ``unlimited``.
        at_once: Whether all agents ask at once; otherwise one after another.
        quick: Whether the network has a quarter of its layers.
    """
    network = partial(SHAPES[shape]().network, quick=quick)
    lengths = context_tokens(workload)
    spec = probe_spec(network(), SCALED_BLOCK_TOKENS)
    lives = [_in_whole_blocks(spec, tokens) for tokens in lengths]
    budget_bytes = _budget(budget, lives)
    with MemoryEngine(
        network,
        store=directory,
        budget_bytes=budget_bytes,
        block_tokens=SCALED_BLOCK_TOKENS,
        prefill_step_tokens=PREFILL_STEP_TOKENS,
    ) as engine:
        wanted = max(lengths)
        workload = _fitting(workload, engine.context_length)
        lengths = context_tokens(workload)
        started_s, cpu_started_s = time.perf_counter(), time.process_time()
        conversations = _Conversations(engine, workload)
        conversations.run(at_once=at_once)
        seconds = time.perf_counter() - started_s, time.process_time() - cpu_started_s
        live = sum(spec.live_bytes(tokens) for tokens in lengths)
        return _figures(conversations, live, wanted, budget_bytes, seconds)


class _Conversations:
    def __init__(self, engine: MemoryEngine, workload: Workload) -> None:
        self.engine = engine
        self.workload = workload
        self._agents = [Agent(number, workload) for number in range(workload.agents)]
        self._lock = threading.Lock()
        self.turns: list[Turn] = []
        self.recomputed = 0
        self.agent_s = [0.0] * workload.agents
        self.answers: list[list[str]] = [[] for _ in self._agents]

    def run(self, *, at_once: bool) -> None:
        numbers = range(self.workload.agents)
        if at_once:
            with ThreadPoolExecutor(self.workload.agents) as pool:
                list(pool.map(self._converse, numbers))
            return
        for _ in range(self.workload.turns):
            for number in numbers:
                self._take_turn(number)

    def _converse(self, number: int) -> None:
        for _ in range(self.workload.turns):
            self._take_turn(number)

    def _take_turn(self, number: int) -> None:
        agent = self._agents[number]
        known = agent.known_tokens
        answered = self.engine.answer(agent.request(), f"agent-{number}")
        agent.record(answered.outcome.token_ids)
        with self._lock:
            self.agent_s[number] += answered.total_s
            self.answers[number].append(answered.outcome.token_hash)
            self.recomputed += _recomputed(answered, known)
            if known:
                restored = min(known, answered.starts[0].restored_tokens)
                self.turns.append(Turn(known, restored, answered.first_token_s))


def _figures(
    conversations: _Conversations,
    live_bytes: int,
    wanted: int,
    budget_bytes: int,
    seconds: tuple[float, float],
) -> RotationFigures:
    engine, turns = conversations.engine, conversations.turns
    tier, memory = engine.flushed(), engine.memory
    shares = [turn.restored / turn.known for turn in turns]
    return RotationFigures(
        budget_bytes=budget_bytes,
        live_bytes=live_bytes,
        wanted_tokens=wanted,
        longest_tokens=max(context_tokens(conversations.workload)),
        reused_median=statistics.median(shares),
        reused_worst=min(shares),
        recomputed_tokens=conversations.recomputed,
        read_bytes=tier.hit_bytes,
        written_bytes=tier.stored_bytes,
        stored_bytes=tier.size_bytes,
        first_token_s=statistics.median(turn.first_token_s for turn in turns),
        total_s=seconds[0],
        cpu_s=seconds[1],
        peak_bytes=memory.peak,
        step_bytes=memory.step,
        agent_s=conversations.agent_s,
        answers=conversations.answers,
    )


def _fitting(workload: Workload, tokens_max: int) -> Workload:
    """Return the workload with contexts of at most ``tokens_max``, in proportion."""
    fitting = workload
    for percent in range(100, 0, -1):
        fitting = replace(
            workload,
            system=workload.system * percent // 100,
            task=workload.task * percent // 100,
            result=workload.result * percent // 100,
        )
        if max(context_tokens(fitting)) <= tokens_max:
            break
    return fitting


def _recomputed(answered: Answered, known: int) -> int:
    """Return how many known tokens were computed again."""
    first, *again = answered.starts
    # A sequence that was preempted has computed all its tokens but the last one.
    lost = sum(start.prompt_tokens - 1 - start.restored_tokens for start in again)
    return lost + max(0, known - first.restored_tokens)


def _in_whole_blocks(spec: ModelCacheSpec, tokens: int) -> int:
    """Return the bytes of the caches of a context, in whole blocks."""
    return spec.live_bytes(spec.blocks_for(tokens) * spec.block_tokens)


def _budget(budget: str, lives: Sequence[int]) -> int:
    if budget == "unlimited":
        return UNLIMITED_BYTES
    share, of = budget.split("x ")
    return int(float(share) * (max(lives) if of == "one" else sum(lives)))


def main() -> None:
    """Run some agents and print the figures."""
    given = json.loads(sys.argv[1])
    figures = run_agents(
        Workload(**given["workload"]), Path(given["directory"]), **given["options"]
    )
    print(json.dumps(dataclasses.asdict(figures)), flush=True)


if __name__ == "__main__":
    main()
