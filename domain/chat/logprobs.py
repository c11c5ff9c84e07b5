"""How likely a model thought the tokens of an answer, and what it might have said in their place.

A value is the natural logarithm of the likelihood that the network itself gave a token: before
temperature, ``top_p`` and the like, and before anything that holds an answer to a form. It is
therefore a function of the tokens before it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

#: Most alternatives that are told of one token.
TOP_MAX: Final = 20
#: Stands for a token that the network rules out, since JSON has no infinity; OpenAI's own value.
UNLIKELY: Final = -9999.0


class Alternative(NamedTuple):
    """A token that might have been said.

    Attributes:
        token: Its bytes, which need not be whole characters.
        logprob: Natural logarithm of its likelihood.
    """

    token: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of an answer.

    Attributes:
        index: Its place among all tokens of the generation, from 0.
        token: Its bytes, which need not be whole characters.
        logprob: Natural logarithm of its likelihood.
        top: The likeliest tokens at its place, likeliest first; it is among them if it is one.
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
    """Return what ``to_json`` wrote.

    Raises:
        ValueError: It is something else.
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
