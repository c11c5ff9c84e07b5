"""``POST /v1/completions``: the body becomes a request, an answer the choices of a reply."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.dialects.encoding import TextLogprobs, token_text
from api.dialects.generate import generation
from api.dialects.openai_chat.bodies import CompletionParameters, OpenAIUsage, TextTop
from api.dialects.openai_chat.completions import (
    Choice,
    CompletionKind,
    completion_request,
    create_completion,
    finish_reason,
)
from api.dialects.parsing import clamp_max_tokens, sampling_of, stop_texts
from api.generation import AssembledAnswer, ParsedRequest, RequestDefaults
from api.http.bodies import Answers, MaxTokensOrZero, TokenId, parse_body
from domain.chat.items import Body, Finished, Text
from domain.chat.logprobs import TokenLogprob
from domain.chat.request import ChatRequest, RawPrompt
from domain.errors import InvalidRequest

#: Prompts of one request.
PROMPTS_MAX: Final = 64
#: Token ids of one prompt, which a JSON body has room for.
IDS_MAX: Final = 1 << 18

# Validation of each ends at its first error, since a body may have millions of elements.
Texts = Annotated[list[str], Field(min_length=1, max_length=PROMPTS_MAX, fail_fast=True)]
Ids = Annotated[list[TokenId], Field(min_length=1, max_length=IDS_MAX, fail_fast=True)]
ManyIds = Annotated[list[Ids], Field(min_length=1, max_length=PROMPTS_MAX, fail_fast=True)]


def _form(prompt: Any) -> str | None:  # noqa: ANN401 - any JSON value
    """Return the form of a prompt, so that errors are reported for that form alone."""
    if isinstance(prompt, str):
        return "text"
    if not isinstance(prompt, list):
        return None
    if prompt and isinstance(prompt[0], list):
        return "many"
    return "texts" if not prompt or isinstance(prompt[0], str) else "ids"


def by_form(error_type: str) -> Discriminator:
    """Return the discriminator of the forms of a prompt; its errors have the type."""
    return Discriminator(
        _form,
        custom_error_type=error_type,
        custom_error_message="must be a text, token ids, or a list of either",
    )


Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[Texts, Tag("texts")]
    | Annotated[Ids, Tag("ids")]
    | Annotated[ManyIds, Tag("many")],
    by_form("prompt_form"),
]


class CompletionBody(CompletionParameters):
    """The body of ``POST /v1/completions``: texts to continue, without a chat template."""

    prompt: Prompt
    max_tokens: MaxTokensOrZero | None = None
    best_of: Answers | None = None
    logprobs: TextTop | None = None
    echo: bool | None = None
    suffix: str | None = None


class TextChoice(TypedDict):
    """One answer to one prompt."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: str | None


class TextCompletion(TypedDict):
    """The reply of ``POST /v1/completions``."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: OpenAIUsage


class TextLogprobsRenderer:
    """Renders the log probabilities of one choice, chunk by chunk."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        #: Characters of the rendered tokens; ``None`` before the first one.
        self._offset: int | None = None

    def render(self, values: Sequence[TokenLogprob], text: str) -> TextLogprobs | None:
        """Return the member ``logprobs`` of a chunk; ``None`` without values."""
        if not values:
            return None
        # Nothing precedes the first token of a prompt.
        given = int(self._offset is None and values[0].index < 0)
        return {
            "tokens": [_text_token(value.token) for value in values],
            "token_logprobs": [None] * given + [value.logprob for value in values[given:]],
            "top_logprobs": [None] * given + [_by_token(value) for value in values[given:]],
            "text_offset": [self._next_offset(value, text) for value in values],
        }

    def _next_offset(self, value: TokenLogprob, text: str) -> int:
        token = self._decoder.decode(value.token)
        if self._offset is None:
            self._offset = 0
            if value.index < 0 and not text.startswith(token.removeprefix(" ")):
                # The token that begins each prompt of some models is not in the text.
                self._offset = -len(token)
            elif token.startswith(" ") and not text.startswith(" "):
                # Some vocabularies put a space before the first word that the text does not have.
                self._offset = -1
        offset = self._offset
        self._offset += len(token)
        return max(0, offset)


def _text_token(token: bytes) -> str:
    """Return a token in the notation of text completions."""
    text = token_text(token)
    return text if text.encode() == token else f"bytes:{text}"


def _by_token(value: TokenLogprob) -> dict[str, float]:
    """Return the likeliest tokens and the emitted one; of equal texts, the likelier."""
    by_token: dict[str, float] = {}
    for token, logprob in (*value.top, (value.token, value.logprob)):
        by_token.setdefault(_text_token(token), logprob)
    return by_token


#: Token limit of a request that sets none, as the vendor documents it.
MAX_TOKENS_DEFAULT: Final = 16


def parse(body: bytes, headers: Mapping[str, str], defaults: RequestDefaults) -> ParsedRequest:
    """Parse a body of ``POST /v1/completions``.

    Args:
        defaults: Values for open fields. The token limit is ``MAX_TOKENS_DEFAULT`` instead, and
            efforts have no effect: a text completion has no reasoning.
    """
    wire = parse_body(CompletionBody, body)
    _check(wire)
    sampling = sampling_of(wire.sampling, wire.seed, defaults.ids)
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


def _prompts(wire: CompletionBody) -> Iterator[RawPrompt]:
    given = wire.prompt
    several = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
    for one in several:
        text, ids = (one, ()) if isinstance(one, str) else ("", tuple(one))
        yield RawPrompt(text=text, ids=ids, suffix=wire.suffix, is_echoed=bool(wire.echo))


class TextKind(CompletionKind):
    """``POST /v1/completions``."""

    protocol = "openai-completions"
    id_prefix = "cmpl-"
    whole = "text_completion"
    chunk = "text_completion"
    parse = staticmethod(parse)

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._logprobs = TextLogprobsRenderer()

    def render(self, body: Body) -> list[Choice]:
        """See ``CompletionKind``."""
        return [self._choice(body.text, body.logprobs)] if isinstance(body, Text) else []

    def end(self, ending: Finished) -> Choice:
        """See ``CompletionKind``."""
        return self._choice("", (), finish_reason(ending))

    def choice(self, answer: AssembledAnswer) -> Choice:
        """See ``CompletionKind``."""
        reason = finish_reason(answer.finished())
        return self._choice(answer.joined("text"), answer.logprobs, reason)

    def _choice(
        self, text: str, values: Sequence[TokenLogprob], reason: str | None = None
    ) -> Choice:
        logprobs = self._logprobs.render(values, text)
        return {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": reason}


TEXT_OPERATIONS: Final = (
    generation(
        "POST /v1/completions",
        partial(create_completion, kind=TextKind),
        id="createCompletion",
        summary="Continue a text in OpenAI's Completions format",
        body=CompletionBody,
        example={"model": "semantic-demo", "max_tokens": 32, "prompt": "Say hello."},
        reply=TextCompletion,
        is_streamed=True,
    ),
)
