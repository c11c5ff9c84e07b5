"""Parses text completions: the model continues the prompt without a chat template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from api.protocols.openai_completions.choices import TextChoiceRenderer, text_choice
from api.protocols.shared.completion_request import completion_request
from api.protocols.shared.completions import CompletionKind
from api.protocols.shared.parsed_request import (
    ParsedRequest,
    RequestDefaults,
    clamp_max_tokens,
    sampling_of,
    stop_texts,
)
from api.schemas.base import parse_body
from api.schemas.openai_completions import CompletionBody
from domain.chat.request import ChatRequest, RawPrompt
from domain.errors import InvalidRequest

#: Token limit of a request that sets none, as the vendor documents it.
MAX_TOKENS_DEFAULT: Final = 16


def parse(body: bytes, headers: Mapping[str, str], defaults: RequestDefaults) -> ParsedRequest:
    """Parse a body of ``POST /v1/completions``.

    Args:
        body: The body of the request.
        headers: Headers by lower-case name.
        defaults: Values for open fields. The token limit is ``MAX_TOKENS_DEFAULT`` instead, and
            efforts have no effect: a text completion has no reasoning.

    Raises:
        InvalidRequest: The error names the first invalid field.
    """
    wire = parse_body(CompletionBody, body)
    _check(wire)
    sampling = sampling_of(wire, wire.seed, defaults.ids, min_p=wire.min_p)
    prompts = [
        ChatRequest(
            model=wire.model,
            messages=(),
            raw=raw,
            max_tokens=clamp_max_tokens(wire.max_tokens, MAX_TOKENS_DEFAULT),
            sampling=sampling,
            stop=stop_texts(wire.stop),
            logprobs=wire.logprobs,
        )
        for raw in _prompts(wire)
    ]
    return completion_request(wire, prompts, headers)


def _check(wire: CompletionBody) -> None:
    if wire.best_of is not None and wire.best_of != (wire.n or 1):
        msg = "best_of must equal n: the service returns every answer that it generates"
        raise InvalidRequest(msg, field="best_of")
    if wire.echo and wire.suffix is not None:
        msg = "a prompt with a suffix cannot be echoed; leave out echo or suffix"
        raise InvalidRequest(msg, field="echo")
    if wire.echo and wire.logprobs is not None:
        msg = "prompt tokens have no log probabilities; leave out echo or logprobs"
        raise InvalidRequest(msg, field="logprobs")


def _prompts(wire: CompletionBody) -> Iterator[RawPrompt]:
    given = wire.prompt
    several = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
    for one in several:
        text, ids = (one, ()) if isinstance(one, str) else ("", tuple(one))
        yield RawPrompt(text=text, ids=ids, suffix=wire.suffix, is_echoed=bool(wire.echo))


#: ``POST /v1/completions``.
TEXT: Final = CompletionKind(
    protocol="openai-completions",
    id_prefix="cmpl-",
    whole="text_completion",
    chunk="text_completion",
    parse=parse,
    choice_renderer=TextChoiceRenderer,
    choice=text_choice,
)
