"""From a request to what the engine computes, and what holds the answer to its form."""

from __future__ import annotations

from domain.chat.generation import GenerationTask, PreparedPrompt
from domain.chat.request import ChatRequest
from domain.errors import PromptTooLong
from worker.engine.grammar.ports import Constraint
from worker.engine.ports import LoadedModel


def prepare(request: ChatRequest, model: LoadedModel) -> PreparedPrompt:
    """Render and tokenise a request; safe to call from many threads at once.

    Raises:
        PromptTooLong: The prompt leaves no room for one token.
        InvalidRequest: The template refuses it, or its answer cannot be held to its schema and the
            caller would rather know.
    """
    rendered = model.render(request)
    tokens = rendered.tokens
    room = model.card.context_length - len(tokens)
    if room < 1:
        raise PromptTooLong(len(tokens), model.card.context_length - 1)
    # As things stand; what is true in the end is known at admission and goes into the outcome.
    known = model.cached_prefix(tokens)
    max_tokens = min(request.max_tokens, room)
    prompt = PreparedPrompt(
        tokens=tokens,
        cached_tokens=known.tokens,
        cache_source=known.source,
        max_tokens=max_tokens,
        sampling=request.sampling.resolve(model.sampling),
        opened=rendered.opened,
        tools=request.callable_tools,
        single_call=request.tool_choice.is_single,
        answer_schema=request.answer_schema,
        is_strict=request.is_strict,
        strict_tools=request.strict_tools,
        thinking=request.thinking,
        logprobs=request.logprobs,
        is_raw=request.raw is not None,
        echoed=rendered.echoed,
        thinking_limit=request.thinking_limit.within(max_tokens),
    )
    if prompt.is_strict or prompt.strict_tools:
        # Refused now, before anything is said, or not at all.
        model.constraint(prompt)
    return prompt


def constraint_of(model: LoadedModel, task: GenerationTask) -> Constraint | None:
    """Return what the answer is held to, standing behind what earlier attempts said."""
    constraint = model.constraint(task.prompt)
    if constraint is not None:
        for token in task.emitted:
            constraint.accept(token)
    return constraint
