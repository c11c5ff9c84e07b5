"""The next turn after SIGKILL of the process, beside the next turn in a process that lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.memory.agents import Agent, Workload
from bench.memory.engine import EngineOptions, MemoryEngine
from bench.memory.rotation import PREFILL_STEP_TOKENS, UNLIMITED_BYTES
from bench.memory.shapes import SCALED_BLOCK_TOKENS, SHAPES


@dataclass(frozen=True, slots=True)
class LastTurns:
    """The last turns of some agents.

    Attributes:
        first_token_s: Seconds from each request to its first token.
        reused: Share of the known tokens from which the turn starts that starts from fewest.
        started_s: Seconds until the engine accepted requests, the network excluded.
        answers: Token ids by agent and turn, of the agents whose last turn is to come.
    """

    first_token_s: list[float]
    reused: float
    started_s: float
    answers: list[list[tuple[int, ...]]]


def turns_in_memory(shape: str, workload: Workload, directory: Path, *, quick: bool) -> LastTurns:
    """Run half of the agents to their ends, and the others up to their last turn."""
    with _started(shape, directory, quick=quick) as engine:
        started_s = engine.started_s
        half = workload.agents // 2
        first_token_s, shares = [], []
        for number in range(half):
            agent = Agent(number, workload)
            _converse(engine, agent, workload.turns - 1)
            seconds, share = _last_turn(engine, agent)
            first_token_s.append(seconds)
            shares.append(share)
        answers = [
            _converse(engine, Agent(number, workload), workload.turns - 1)
            for number in range(half, workload.agents)
        ]
        engine.flushed()
        return LastTurns(first_token_s, min(shares), started_s, answers)


def turns_after_kill(
    shape: str,
    workload: Workload,
    directory: Path,
    answers: Sequence[Sequence[Sequence[int]]],
    *,
    quick: bool,
) -> LastTurns:
    """Run the last turn of the agents that a killed process left; see ``turns_in_memory``."""
    with _started(shape, directory, quick=quick) as engine:
        first_token_s, shares = [], []
        for number, given in enumerate(answers, workload.agents // 2):
            agent = Agent(number, workload)
            for answer in given:
                agent.record(answer)
            seconds, share = _last_turn(engine, agent)
            first_token_s.append(seconds)
            shares.append(share)
        return LastTurns(first_token_s, min(shares), engine.started_s, [])


def _started(shape: str, directory: Path, *, quick: bool) -> MemoryEngine:
    options = EngineOptions(
        store=directory,
        budget_bytes=UNLIMITED_BYTES,
        block_tokens=SCALED_BLOCK_TOKENS,
        prefill_step_tokens=PREFILL_STEP_TOKENS,
    )
    return MemoryEngine(partial(SHAPES[shape]().network, quick=quick), options)


def _converse(engine: MemoryEngine, agent: Agent, turns: int) -> list[tuple[int, ...]]:
    answers = []
    for _ in range(turns):
        answer = engine.answer(agent.request()).outcome.token_ids
        agent.record(answer)
        answers.append(answer)
    return answers


def _last_turn(engine: MemoryEngine, agent: Agent) -> tuple[float, float]:
    """Return the seconds to the first token, and the share of known tokens that is restored."""
    answered = engine.answer(agent.request())
    share = min(1.0, answered.starts[0].restored_tokens / agent.known_tokens)
    return answered.first_token_s, share
