"""Rows with known answers that are decoded on a fake clock, as ``DecodeRows`` does it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from worker.engine.mlx.drafting.pass_times import PassTimes
from worker.engine.mlx.drafting.speculation import SpeculatedRow, Speculation


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Costs:
    """What passes take, in seconds: the review's figures for SmolLM2-135M on two cores.

    A drafted token is a row of its own.
    """

    start_s: float = 0.030
    token_s: float = 0.0055

    def plain(self, rows: int) -> float:
        return 0.085 + 0.0085 * rows

    def drafted(self, rows: int, tokens: int) -> float:
        return self.plain(rows) + self.start_s + self.token_s * tokens


@dataclass
class Row:
    uid: int
    tokens: list[int]
    answer: list[int]


@dataclass
class Guesser:
    """A drafter that knows the answers.

    Args:
        errors: Share of its tokens that are wrong.
        step_s: Seconds for a token of all rows.
    """

    errors: float
    step_s: float = 0.012
    clock: Clock = field(default_factory=Clock)
    rng: random.Random = field(default_factory=lambda: random.Random(4))

    def propose(
        self, rows: Sequence[SpeculatedRow], drawn: Sequence[int], count: int
    ) -> list[list[int]]:
        self.clock.now += self.step_s * count
        drafts = []
        for row, token in zip(rows, drawn, strict=True):
            assert isinstance(row, Row)
            assert token == row.answer[0]
            known = [*row.answer, *[-2] * count][1 : count + 1]
            drafts.append([-3 if self.rng.random() < self.errors else one for one in known])
        return drafts

    def observe(self, *_: object) -> None:
        """It needs no states."""

    def drop(self, uids: Iterable[int]) -> None:
        """Nothing is kept."""


@dataclass(frozen=True)
class Pass:
    """A pass with drafts, with what was known before it."""

    seconds: float
    rows: int
    drafted: int
    accepted: int
    plain_s: float | None
    expected_s: float | None
    credit_s: float


@dataclass
class Batch:
    """Decodes ``answers`` after ``prompts``.

    Args:
        noise: Factor of each pass; 1 after its end.
    """

    prompts: Sequence[Sequence[int]]
    answers: Sequence[Sequence[int]]
    costs: Costs = field(default_factory=Costs)
    noise: Iterator[float] = field(default_factory=lambda: iter(()))
    read_between: Callable[[int], bool] = lambda _: False
    speculates: bool = True
    drafter: Guesser | None = None

    def __post_init__(self) -> None:
        self.clock, self.drawn = Clock(), 0
        self.times = PassTimes(self.clock)
        if self.drafter is not None:
            self.drafter.clock = self.clock
        self.passes: list[Pass] = []
        self.steps = 0
        self.speculation = Speculation(
            lambda *_: 100, lambda *_: None, frozenset(), lambda *_: None, self.times, self.drafter
        )
        self.rows = [
            Row(uid, list(prompt), list(answer))
            for uid, (prompt, answer) in enumerate(zip(self.prompts, self.answers, strict=True))
        ]

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.drawn / self.clock.now

    def run(self, tokens: int | None = None) -> Batch:
        """Decode until all rows end, or until so many tokens are drawn."""
        while self.rows and (tokens is None or self.drawn < tokens):
            self.step()
        return self

    def step(self) -> None:
        self.steps += 1
        if self.read_between(self.steps):
            self.times.interrupt()
            self.clock.now += 0.3
        guesses = self.speculation.guess(self.rows) if self.speculates else {}
        drafts: list[list[int]] = []
        if guesses:
            present = [row.answer[0] for row in self.rows]
            drafts = self.speculation.confirm(self.rows, present, guesses)
        accepted = self._verify(drafts) if any(drafts) else self._plain()
        for row, count in zip(self.rows, accepted, strict=True):
            row.tokens += row.answer[: 1 + count]
            del row.answer[: 1 + count]
            self.drawn += 1 + count
        self.speculation.drop([row.uid for row in self.rows if not row.answer])
        self.rows = [row for row in self.rows if row.answer]

    def _plain(self) -> list[int]:
        rows = len(self.rows)
        self.clock.now += self.costs.plain(rows) * next(self.noise, 1.0)
        self.times.record_plain(rows)
        return [0] * rows

    def _verify(self, drafts: list[list[int]]) -> list[int]:
        rows, drafted = len(self.rows), sum(map(len, drafts))
        plain_s, expected_s = self.times.plain_s(rows), self.times.expected_s(rows, drafted)
        credit_s, since = self.times.credit_s, self.clock.now
        self.clock.now += self.costs.drafted(rows, drafted) * next(self.noise, 1.0)
        draws: list[int] = []
        for row, draft in zip(self.rows, drafts, strict=True):
            # Nothing is accepted beyond the answer.
            draws += [*row.answer, *[-1] * 9][1 : len(draft) + 2]
        accepted = self.speculation.settle(self.rows, drafts, draws)
        self.passes.append(
            Pass(
                self.clock.now - since,
                rows,
                drafted,
                sum(accepted),
                plain_s,
                expected_s,
                credit_s,
            )
        )
        return accepted


def prose(seed: int, tokens: int = 400) -> tuple[list[int], list[int]]:
    """Return a prompt and an answer in which phrases come back, and often go on otherwise."""
    rng = random.Random(seed)
    text = [rng.randrange(4000) for _ in range(110)]
    while len(text) < 110 + tokens:
        if rng.random() < 0.05:
            start = rng.randrange(len(text) - 8)
            text += text[start : start + rng.randrange(3, 8)]
        text.append(rng.randrange(4000))
    return text[:110], text[110 : 110 + tokens]


def edit(seed: int, tokens: int = 400) -> tuple[list[int], list[int]]:
    """Return a prompt and an answer that copies it with an edit in about twenty tokens."""
    rng = random.Random(seed)
    prompt = [rng.randrange(4000) for _ in range(tokens)]
    return prompt, [one if rng.random() > 0.05 else rng.randrange(4000) for one in prompt]


def batch_of(
    make: Callable[[int], tuple[list[int], list[int]]],
    rows: int = 8,
    *,
    costs: Costs | None = None,
    noise: Iterable[float] = (),
    speculates: bool = True,
    drafter: Guesser | None = None,
) -> Batch:
    texts = [make(seed) for seed in range(rows)]
    prompts, answers = zip(*texts, strict=True)
    return Batch(
        prompts, answers, costs or Costs(), iter(noise), speculates=speculates, drafter=drafter
    )
