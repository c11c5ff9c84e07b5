"""OpenAI's completions of texts: what stands there is gone on from, without a chat template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from api.protocols.openai_completions.choices import TextChoiceRenderer, text_choice
from api.protocols.shared.completion_request import completion_request, sampling_wish
from api.protocols.shared.completions import CompletionKind
from api.protocols.shared.efforts import EFFORTS, Efforts
from api.protocols.shared.parsed_request import ParsedRequest, clamp_max_tokens, stop_texts
from api.schemas.base import parse_body
from api.schemas.openai_completions import CompletionBody
from domain.chat.request import ChatRequest, RawPrompt
from domain.errors import InvalidRequest
from domain.ports import IdSource

#: Tokens of an answer where the request sets no limit, as the vendor has it.
MAX_TOKENS_DEFAULT: Final = 16


def parse(
    body: bytes,
    headers: Mapping[str, str],
    *,
    ids: IdSource,
    max_tokens_default: int,
    efforts: Efforts = EFFORTS,
) -> ParsedRequest:
    """Translate a body of ``POST /v1/completions``.

    Args:
        body: As it came.
        headers: By lower-case name.
        ids: Draws the seed if the caller gave none.
        max_tokens_default: Where the caller sets no limit.
        efforts: Not looked at: nothing in such an answer is read as reasoning.

    Raises:
        InvalidRequest: Naming the first field that does not fit.
    """
    del efforts
    wire = parse_body(CompletionBody, body)
    if wire.best_of is not None and wire.best_of != (wire.n or 1):
        msg = "all answers are returned: none are computed to be thrown away, so it must equal n"
        raise InvalidRequest(msg, field="best_of")
    if wire.echo and wire.suffix is not None:
        msg = "a prompt with a gap is not told again; leave one of echo and suffix out"
        raise InvalidRequest(msg, field="echo")
    if wire.echo and wire.logprobs is not None:
        msg = "nothing is known of the tokens of a prompt; leave one of echo and logprobs out"
        raise InvalidRequest(msg, field="logprobs")
    sampling = sampling_wish(wire, ids)
    prompts = [
        ChatRequest(
            model=wire.model,
            messages=(),
            raw=raw,
            max_tokens=clamp_max_tokens(wire.max_tokens, max_tokens_default),
            sampling=sampling,
            stop=stop_texts(wire.stop),
            logprobs=wire.logprobs,
        )
        for raw in _prompts(wire)
    ]
    return completion_request(wire, prompts, headers)


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
    max_tokens_default=MAX_TOKENS_DEFAULT,
)
