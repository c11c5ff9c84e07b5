"""One conversation answered in several ways, token for token and number for number the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import numpy as np

from domain.values import Sampling
from tests.support.builders.conversations import (
    ANSWER_TOKENS_MAX,
    GREEDY,
    PROMPT_TOKENS_MAX,
    Ask,
    Turn,
    asks_of,
)
from tests.support.models.engine_probe import finished
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.recorded_engine import BLOCK_TOKENS, Answer, RecordedEngine
from tests.support.models.tiny_architectures import ARCHITECTURES, LLAMA, QWEN2, QWEN3, Architecture

#: Networks whose numbers do not depend on the pieces in which a prompt is computed.
EXACT = frozenset({LLAMA.name, QWEN2.name, QWEN3.name})
#: Largest difference of log-probabilities for the others, in fp32.
BOUND = 5e-5
ROOMY_BLOCKS = 256
#: Room for the longest request alone: what others left is evicted all the time.
TIGHT_BLOCKS = -(-(PROMPT_TOKENS_MAX + ANSWER_TOKENS_MAX) // BLOCK_TOKENS)


class Way(Protocol):
    """Answers what is asked, one answer for each request; may use a directory for a store."""

    __name__: str

    def __call__(
        self, architecture: Architecture, asks: Sequence[Ask], store: Path, /
    ) -> list[Answer]: ...


@dataclass(slots=True)
class Tally:
    """What comparing a way with the cold one showed.

    Attributes:
        requests: How many were answered.
        prompt_tokens: Of all requests.
        cached_tokens: Of these, how many the way did not compute.
        tokens: Of all answers.
        near_ties: Answers that part at a token where the numbers agree within the bound: two
            tokens are equally likely within the precision.
        worst: Largest difference of a log-probability.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    near_ties: int = 0
    worst: float = 0.0

    def add(self, architecture: Architecture, ask: Ask, expected: Answer, got: Answer) -> None:
        """Compare an answer with the cold one.

        Raises:
            AssertionError: It is another answer, or the numbers are too far apart.
        """
        alike = _agreeing(expected.tokens, got.tokens)
        # What a token is drawn from counts as long as all tokens before it are the same.
        rows = min(alike + 1, len(expected.rows), len(got.rows))
        apart = float(np.abs(expected.rows[:rows] - got.rows[:rows]).max())
        bound = 0.0 if architecture.name in EXACT else BOUND
        assert apart <= bound, f"{architecture.name}: numbers differ by {apart} for {ask}"
        self.requests += 1
        self.prompt_tokens += len(ask.prompt)
        self.cached_tokens += got.cached_tokens
        self.tokens += len(expected.tokens)
        self.worst = max(self.worst, apart)
        if expected.tokens != got.tokens:
            assert apart > 0, f"{architecture.name}: {got.tokens}, not {expected.tokens} for {ask}"
            self.near_ties += 1

    def merge(self, other: Tally) -> None:
        """Add what another comparison showed."""
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.tokens += other.tokens
        self.near_ties += other.near_ties
        self.worst = max(self.worst, other.worst)


def cold(architecture: Architecture, turns: Sequence[Turn]) -> tuple[list[Ask], list[Answer]]:
    """Return what a conversation asks and the answers, each prompt computed whole and alone."""
    answers: dict[Ask, Answer] = {}
    with closing(RecordedEngine(architecture, budget_blocks=None, batch=1)) as engine:

        def answer(ask: Ask) -> tuple[int, ...]:
            if ask not in answers:
                answers[ask] = engine.answer(ask)
            return answers[ask].tokens

        asks = asks_of(turns, answer)
    return asks, [answers[ask] for ask in asks]


def from_memory(architecture: Architecture, asks: Sequence[Ask], store: Path) -> list[Answer]:
    """Answer out of memory, one request after another."""
    del store
    with closing(RecordedEngine(architecture, budget_blocks=ROOMY_BLOCKS)) as engine:
        return [engine.answer(ask) for ask in asks]


def from_little_memory(
    architecture: Architecture, asks: Sequence[Ask], store: Path
) -> list[Answer]:
    """Answer out of a memory that loses most of what it had."""
    del store
    with closing(RecordedEngine(architecture, budget_blocks=TIGHT_BLOCKS)) as engine:
        return [engine.answer(ask) for ask in asks]


def from_disk(architecture: Architecture, asks: Sequence[Ask], store: Path) -> list[Answer]:
    """Answer out of the disk what others have driven out of memory, and leave it all there."""
    answers = []
    engine = RecordedEngine(architecture, budget_blocks=2 * TIGHT_BLOCKS, store=store)
    with closing(engine):
        for number, ask in enumerate(asks):
            # Two of these fill the memory.
            for seed in (2 * number, 2 * number + 1):
                engine.answer(Ask(tuple(random_tokens(PROMPT_TOKENS_MAX, seed)), 1, GREEDY))
            answers.append(engine.answer(ask))
            engine.settle()
    return answers


def after_restart(architecture: Architecture, asks: Sequence[Ask], store: Path) -> list[Answer]:
    """Answer with an empty memory, out of the disk that another engine left."""
    engine = RecordedEngine(architecture, budget_blocks=ROOMY_BLOCKS, store=store)
    with closing(engine):
        return [engine.answer(ask) for ask in asks]


class InOtherProcess:
    """Answers as ``after_restart``, in a process that has computed nothing of it; close it."""

    __name__ = "in another process"

    def __init__(self) -> None:
        self._process = ProcessPoolExecutor(1, get_context("spawn"))

    def __call__(
        self, architecture: Architecture, asks: Sequence[Ask], store: Path
    ) -> list[Answer]:
        # Networks are closures, which do not travel, so the architecture goes by its name.
        return self._process.submit(_after_restart_of, architecture.name, asks, store).result()

    def close(self) -> None:
        """End the process."""
        self._process.shutdown()


def among_strangers(architecture: Architecture, asks: Sequence[Ask], store: Path) -> list[Answer]:
    """Answer a few at a time, beside others that come, finish and are cancelled."""
    del store
    with closing(RecordedEngine(architecture, budget_blocks=ROOMY_BLOCKS)) as engine:
        return _among_strangers(engine, asks)


def after_restart_among_strangers(
    architecture: Architecture, asks: Sequence[Ask], store: Path
) -> list[Answer]:
    """Answer as ``among_strangers``, out of the disk that another engine left."""
    engine = RecordedEngine(architecture, budget_blocks=ROOMY_BLOCKS, store=store)
    with closing(engine):
        return _among_strangers(engine, asks)


def _after_restart_of(name: str, asks: Sequence[Ask], store: Path) -> list[Answer]:
    architecture = next(each for each in ARCHITECTURES if each.name == name)
    return after_restart(architecture, asks, store)


def _among_strangers(engine: RecordedEngine, asks: Sequence[Ask]) -> list[Answer]:
    rng = random.Random(sum(sum(ask.prompt) for ask in asks))
    answers: list[Answer] = []
    while len(answers) < len(asks):
        group = asks[len(answers) : len(answers) + rng.randint(1, 4)]
        handles, strangers = [], []
        for ask in group:
            strangers.append(engine.submit(_stranger(rng)))
            handles.append(engine.submit(ask))
        if rng.random() < 0.5:
            strangers[0].cancel()
        answers += [engine.wait(ask, handle) for ask, handle in zip(group, handles, strict=True)]
        for stranger in strangers:
            finished(stranger)
    return answers


def compare(
    architecture: Architecture, turns: Sequence[Turn], ways: Sequence[Way]
) -> dict[str, Tally]:
    """Answer a conversation in several ways and hold the answers against the cold ones.

    The ways share a store, so one that reads it comes after one that fills it.

    Returns:
        What was compared, by the name of the way.

    Raises:
        AssertionError: An answer is different.
    """
    asks, expected = cold(architecture, turns)
    tallies: dict[str, Tally] = {}
    with TemporaryDirectory() as directory:
        for way in ways:
            tally = tallies[way.__name__] = Tally()
            got = way(architecture, asks, Path(directory))
            for ask, cold_answer, answer in zip(asks, expected, got, strict=True):
                tally.add(architecture, ask, cold_answer, answer)
    return tallies


def _stranger(rng: random.Random) -> Ask:
    prompt = random_tokens(rng.randint(1, 70), rng.getrandbits(31))
    sampling = rng.choice([GREEDY, Sampling(temperature=1.0, top_p=0.9, seed=rng.getrandbits(31))])
    return Ask(tuple(prompt), rng.randint(1, 25), sampling)


def _agreeing(one: Sequence[int], other: Sequence[int]) -> int:
    """Return with how many equal tokens both start."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
