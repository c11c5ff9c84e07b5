"""From a request to what the engine is handed."""

from __future__ import annotations

from domain.chat import ChatRequest
from domain.errors import PromptTooLong
from domain.generation import PreparedPrompt
from worker.engine.runner_port import LoadedModel


def prepare(request: ChatRequest, model: LoadedModel) -> PreparedPrompt:
    """Render and tokenise a request; safe to call from many threads at once.

    Raises:
        PromptTooLong: The prompt leaves no room for one token.
        InvalidRequest: The chat template refuses the messages.
    """
    rendered = model.render(request)
    tokens = rendered.tokens
    room = model.card.context_length - len(tokens)
    if room < 1:
        raise PromptTooLong(len(tokens), model.card.context_length - 1)
    # As things stand; what is true in the end is known at admission and goes into the outcome.
    known = model.known(tokens)
    return PreparedPrompt(
        tokens=tokens,
        cached_tokens=known.tokens,
        cache_source=known.source,
        max_tokens=min(request.max_tokens, room),
        sampling=request.sampling.resolve(model.sampling),
        opened=rendered.opened,
        tools=request.callable_tools,
        single_call=request.tool_choice.is_single,
    )
