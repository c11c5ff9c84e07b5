"""Parameters that chat completions and text completions share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from api.dialects.agent_hints import agent_of
from api.dialects.openai_chat.bodies import CompletionParameters
from api.parsed_request import ParsedRequest, repeat_for_answers
from domain.chat.request import ChatRequest
from domain.errors import InvalidRequest

#: Most answers of one request, over all of its prompts; each is a job.
CHOICES_MAX: Final = 128


def completion_request(
    wire: CompletionParameters, prompts: Sequence[ChatRequest], headers: Mapping[str, str]
) -> ParsedRequest:
    """Return a request for ``n`` answers to each prompt.

    Args:
        wire: The body.
        prompts: One generation for each prompt, in order.
        headers: Headers by lower-case name.

    Raises:
        InvalidRequest: The request asks for more than ``CHOICES_MAX`` answers.
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
