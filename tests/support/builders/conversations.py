"""Random conversations: turns appended, forked, truncated and repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hypothesis import strategies as st

from domain.values import Sampling
from tests.support.day_and_night import by_day
from tests.support.models.kv_sequences import random_tokens

PROMPT_TOKENS_MAX = by_day(80, night=112)
ANSWER_TOKENS_MAX = 20
GREEDY = Sampling(temperature=0)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for an answer.

    Attributes:
        prompt: At least one token.
        max_tokens: At least one.
        sampling: How to draw.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling


class Move(StrEnum):
    """The relation of a turn to an earlier context, which is a prompt and its answer."""

    NEW = "new"
    APPEND = "append"
    BRANCH = "branch"
    TRUNCATE = "truncate"
    RESEND = "resend"


@dataclass(frozen=True, slots=True)
class Turn:
    """A step of a conversation whose tokens depend on answers that do not exist yet.

    Attributes:
        move: What happens.
        of: Which earlier context, the last one at 0.
        share: How much of it stays, for a branch and for a truncation.
        added: Tokens that are new.
        seed: Of the new tokens.
        max_tokens: Of the answer.
        sampling: Of the answer.
    """

    move: Move
    of: int
    share: float
    added: int
    seed: int
    max_tokens: int
    sampling: Sampling

    def ask(self, contexts: Sequence[tuple[Ask, tuple[int, ...]]]) -> Ask:
        """Return the request that follows ``contexts``, each a request and its answer."""
        prompt = self._prompt(contexts)[:PROMPT_TOKENS_MAX]
        return Ask(tuple(prompt), self.max_tokens, self.sampling)

    def _prompt(self, contexts: Sequence[tuple[Ask, tuple[int, ...]]]) -> list[int]:
        added = random_tokens(self.added, self.seed)
        if not contexts or self.move is Move.NEW:
            return added
        asked, answer = contexts[-1 - self.of % len(contexts)]
        whole = [*asked.prompt, *answer]
        kept = max(1, round(self.share * len(whole)))
        match self.move:
            case Move.APPEND:
                return whole + added
            case Move.BRANCH:
                return whole[:kept] + added
            case Move.TRUNCATE:
                return whole[:kept]
            case Move.RESEND:
                return list(asked.prompt)


def asks_of(turns: Sequence[Turn], answer: Callable[[Ask], tuple[int, ...]]) -> list[Ask]:
    """Return the requests of a conversation that ``answer`` answers."""
    contexts: list[tuple[Ask, tuple[int, ...]]] = []
    for turn in turns:
        ask = turn.ask(contexts)
        contexts.append((ask, answer(ask)))
    return [ask for ask, _ in contexts]


def samplings() -> st.SearchStrategy[Sampling]:
    """Return greedy and seeded samplings."""
    drawn = st.builds(
        Sampling,
        temperature=st.sampled_from([0.7, 1.0]),
        top_p=st.sampled_from([0.9, 1.0]),
        top_k=st.sampled_from([0, 20]),
        seed=st.integers(0, 2**31),
    )
    return st.just(GREEDY) | drawn


def conversations(turns: int) -> st.SearchStrategy[list[Turn]]:
    """Return conversations of ``turns`` turns; the simplest only appends questions."""
    turn = st.builds(
        Turn,
        move=st.sampled_from([Move.APPEND, Move.RESEND, Move.BRANCH, Move.TRUNCATE, Move.NEW]),
        of=st.integers(0, 3),
        share=st.floats(0, 1),
        added=st.just(24) | st.integers(1, 45),
        seed=st.integers(0, 2**31),
        max_tokens=st.just(6) | st.integers(1, ANSWER_TOKENS_MAX),
        sampling=samplings(),
    )
    return st.lists(turn, min_size=turns, max_size=turns)
