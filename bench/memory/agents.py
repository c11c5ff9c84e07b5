"""Agents that take turns: a prompt, an answer, the result of a tool, the next answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from bench.memory.shapes import VOCABULARY
from domain.chat.request import ChatRequest, Message
from domain.values import SamplingWish


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
        reminder: At the end of the last message; it changes, and earlier messages have none.
    """

    agents: int
    turns: int = 5
    system: int = 128
    task: int = 256
    result: int = 64
    answer: int = 8
    reminder: int = 0


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
        #: Tokens of the previous prompt and its answer; with a reminder, those before it.
        self.known_tokens = 0

    def request(self) -> ChatRequest:
        """Return the next request; its messages spell token ids."""
        *before, last = self._messages
        last = [*last, *_tokens(self._draw, self._workload.reminder)]
        return ChatRequest(
            model="any",
            messages=tuple(
                Message(role="user", content=" ".join(map(str, message)))
                for message in (*before, last)
            ),
            max_tokens=self._workload.answer,
            sampling=SamplingWish(temperature=1.0, seed=self._seed),
        )

    def record(self, answer: Sequence[int]) -> None:
        """Append an answer, and the result of the tool that it calls."""
        self.known_tokens = sum(map(len, self._messages))
        self._messages.append(list(answer))
        if not self._workload.reminder:
            self.known_tokens += len(answer)
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
