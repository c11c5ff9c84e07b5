"""What requests for completions of chats and of texts have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from api.protocols.shared.parsed_request import (
    ParsedRequest,
    agent_of,
    repeat_for_answers,
    sampling_of,
)
from api.schemas.openai_chat import CompletionParameters
from domain.chat.request import ChatRequest
from domain.errors import InvalidRequest
from domain.ports import IdSource
from domain.values import SamplingWish

#: Answers of one request, over all of its prompts; each is a job.
CHOICES_MAX: Final = 128


def sampling_wish(wire: CompletionParameters, ids: IdSource) -> SamplingWish:
    """Return how the first answer is drawn."""
    return sampling_of(
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=wire.top_k,
        min_p=wire.min_p,
        seed=wire.seed,
        ids=ids,
    )


def completion_request(
    wire: CompletionParameters, prompts: Sequence[ChatRequest], headers: Mapping[str, str]
) -> ParsedRequest:
    """Return a request for as many answers to each prompt as are wanted.

    Args:
        wire: The body.
        prompts: One answer to each, in order.
        headers: By lower-case name.

    Raises:
        InvalidRequest: The answers are too many together.
    """
    answers = wire.n or 1
    if len(prompts) * answers > CHOICES_MAX:
        msg = f"{len(prompts)} prompts with {answers} answers each; {CHOICES_MAX} answers at most"
        raise InvalidRequest(msg, field="n")
    chat, *more = (one for prompt in prompts for one in repeat_for_answers(prompt, answers))
    return ParsedRequest(
        chat=chat,
        more=tuple(more),
        answers_each=answers,
        stream=bool(wire.stream),
        include_usage=bool(wire.stream_options and wire.stream_options.include_usage),
        agent=agent_of(headers, session=wire.session_id, cache_key=wire.prompt_cache_key),
        seeded=wire.seed is not None,
    )
