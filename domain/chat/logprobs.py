"""Log-probabilities of the tokens of an answer, and of their alternatives.

A value is the natural logarithm of the probability that the network gave a token: before
temperature, ``top_p`` and the like, and before any constraint on the form of the answer. It is
therefore a function of the tokens before it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

#: Most alternatives per token.
TOP_MAX: Final = 20
#: Value of a token with probability 0, since JSON has no infinity; OpenAI uses the same.
UNLIKELY: Final = -9999.0


class Alternative(NamedTuple):
    """A token that the model could have generated instead.

    Attributes:
        token: Its bytes, which need not be whole characters.
        logprob: Natural logarithm of its probability.
    """

    token: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of an answer.

    Attributes:
        index: Its index among all tokens of the generation, from 0. Tokens of an echoed prompt
            have those below 0, in order; the first one's ``logprob`` is 0.0, as it is given.
        token: Its bytes, which need not be whole characters.
        logprob: Natural logarithm of its probability.
        top: The most probable tokens at its index, in descending order; may include the token.
    """

    index: int
    token: bytes
    logprob: float
    top: tuple[Alternative, ...] = ()


def to_json(values: Sequence[TokenLogprob]) -> list[Any]:
    """Return ``[[index, token, logprob, [[token, logprob], …]], …]``.

    A token is a text, or a list of its bytes if they are not UTF-8.
    """
    return [
        [
            value.index,
            _token_to_json(value.token),
            value.logprob,
            [[_token_to_json(token), logprob] for token, logprob in value.top],
        ]
        for value in values
    ]


def from_json(values: Sequence[Any]) -> tuple[TokenLogprob, ...]:
    """Return the values that ``to_json`` encoded.

    Raises:
        ValueError: The form is another one.
    """
    try:
        return tuple(
            TokenLogprob(
                index,
                _token_from_json(token),
                logprob,
                tuple(Alternative(_token_from_json(one), value) for one, value in top),
            )
            for index, token, logprob, top in values
        )
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error


def _token_to_json(token: bytes) -> str | list[int]:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return list(token)


def _token_from_json(token: str | list[int]) -> bytes:
    return token.encode() if isinstance(token, str) else bytes(token)
