"""How much of a multi-turn trace is not computed?  ``python -m bench.experiments.multi_turn``.

Agents with one system prompt take turns on the demo model. Most requests continue the conversation;
some are repeated, some replace the last question. In the end the engine is stopped, and another one
answers each agent's next turn from the disk. The hit rate is the share of all prompt tokens that
were not computed. Its upper bound ``at most`` is the longest common prefix with any earlier prompt
and its answer.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.experiments.demo_engine import DemoEngine, outcome_of
from bench.experiments.report import print_conditions, print_table, print_verdict
from domain.chat.request import Message
from domain.values import StopReason
from ops.setting_groups.models import DEMO_MODEL
from worker.engine.mlx.model.loader import find_model

AGENTS, TURNS = 5, 8
MAX_TOKENS = 40
RESENT, TAKEN_BACK = 0.1, 0.1
HIT_RATE_MIN = 0.8
RULES = 24
SUBJECTS = ("the sky", "a dog", "the sea", "a clock", "an apple", "the moon", "a train", "a book")
WISHES = (
    "What colour is {}? Say it in one word and then tell me why you think so.",
    "Tell me something about {}, please, in a few short sentences.",
    "What is the opposite of what you said about {}? Explain it for a child.",
    "Make a list of three words that go with {} and say which you like best.",
)


@dataclass(slots=True)
class Sums:
    """The totals of requests of one kind."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    known_tokens: int = 0

    def add(self, other: Sums) -> None:
        """Add another's counts."""
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.known_tokens += other.known_tokens

    def row(self, kind: str) -> tuple[object, ...]:
        """Return a row of the table."""
        return (
            kind,
            self.requests,
            self.prompt_tokens,
            self.cached_tokens,
            f"{self.cached_tokens / self.prompt_tokens:.1%}",
            f"{self.known_tokens / self.prompt_tokens:.1%}",
        )


@dataclass(slots=True)
class Trace:
    """The requests and answers so far.

    Attributes:
        sums: Totals by kind of request.
        contexts: Prompts with their answers.
        end_id: The token that ends a turn; the next prompt contains it.
    """

    end_id: int
    sums: defaultdict[str, Sums] = field(default_factory=lambda: defaultdict(Sums))
    contexts: list[tuple[int, ...]] = field(default_factory=list)

    def ask(self, engine: DemoEngine, kind: str, messages: Sequence[Message]) -> str:
        """Send a request, count its tokens and return the answer."""
        prompt = engine.prepare(messages, MAX_TOKENS)
        outcome = outcome_of(engine.submit(prompt))
        # The last token of a prompt is always computed.
        known = max((_shared(prompt.tokens[:-1], each) for each in self.contexts), default=0)
        one = Sums(1, len(prompt.tokens), outcome.usage.cached_tokens, known)
        self.sums[kind].add(one)
        ended = outcome.stop_reason is StopReason.END_TURN
        end = (self.end_id,) if ended else ()
        self.contexts.append((*prompt.tokens, *outcome.token_ids, *end))
        return outcome.text


def main() -> None:
    """Run the trace and print the table."""
    started_s = time.monotonic()
    config = json.loads((find_model(DEMO_MODEL) / "config.json").read_text())
    trace, rng = Trace(config["eos_token_id"]), random.Random(8)
    agents = [[_system(number)] for number in range(AGENTS)]
    with tempfile.TemporaryDirectory() as directory:
        with DemoEngine(batch=1, store=Path(directory)) as engine:
            for turn in range(TURNS):
                for messages in agents:
                    _take_turn(trace, engine, messages, rng, first=turn == 0)
        with DemoEngine(batch=1, store=Path(directory)) as engine:
            for messages in agents:
                messages.append(_question(rng))
                trace.ask(engine, "next turn after a restart", messages)
    total = Sums()
    for sums in trace.sums.values():
        total.add(sums)
    rows = [sums.row(kind) for kind, sums in trace.sums.items()]
    print_table(
        ("request", ">requests", ">prompt tokens", ">not computed", ">hit rate", ">at most"),
        [*rows, replace(total).row("**all**")],
    )
    rate = total.cached_tokens / total.prompt_tokens
    print_verdict(
        reached=rate > HIT_RATE_MIN,
        why=f"the hit rate is {rate:.1%} (goal: more than {HIT_RATE_MIN:.0%}), which is"
        f" {total.cached_tokens / total.known_tokens:.1%} of the upper bound.",
    )
    print_conditions(started_s)


def _take_turn(
    trace: Trace, engine: DemoEngine, messages: list[Message], rng: random.Random, *, first: bool
) -> None:
    messages.append(_question(rng))
    answer = trace.ask(engine, "first turn" if first else "next turn", messages)
    what = rng.random()
    if what < RESENT:
        answer = trace.ask(engine, "sent again", messages)
    elif what < RESENT + TAKEN_BACK:
        messages[-1] = _question(rng)
        answer = trace.ask(engine, "last question replaced", messages)
    messages.append(Message(role="assistant", content=answer))


def _system(number: int) -> Message:
    """Return rules that all agents share, with a name at their end."""
    rng = random.Random(1)
    rules = [
        f"{at}. When somebody asks about {rng.choice(SUBJECTS)}, answer in {rng.randint(1, 5)}"
        " short sentences and never invent anything."
        for at in range(1, RULES + 1)
    ]
    return Message(role="system", content="\n".join([*rules, f"You are agent {number}."]))


def _question(rng: random.Random) -> Message:
    return Message(role="user", content=rng.choice(WISHES).format(rng.choice(SUBJECTS)))


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


if __name__ == "__main__":
    main()
