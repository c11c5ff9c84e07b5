"""Turn a request into a ``PreparedPrompt``, and make the constraint of its answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from domain.chat.generation import NO_CLAIM, Claim, GenerationTask, PreparedPrompt
from domain.chat.request import ChatRequest, images_of
from domain.errors import InvalidRequest, PromptTooLong
from domain.kv.owned_tokens import cache_ids, extended, owned
from domain.values import Owner, PromptEncoding, Sampling
from worker.engine.grammar.ports import Constraint
from worker.engine.ports import Admission, CachedPrefix, LoadedModel, unknown_token

#: Most tokens of a prompt that is scored; 5 alternatives of each take about 4 MB in the log.
SCORED_TOKENS_MAX: Final = 1 << 14


def prepare(
    request: ChatRequest,
    model: LoadedModel,
    encoding: PromptEncoding = PromptEncoding.MARKS_AS_TEXT,
    cache_owner: Owner | None = None,
    claim: Claim = NO_CLAIM,
) -> PreparedPrompt:
    """Render and tokenise a request. Safe to call from any thread.

    Args:
        cache_owner: Only prompts with the same one share cached blocks with it.

    Raises:
        PromptTooLong: The prompt leaves no room for a token of the answer.
        InvalidRequest: The template refuses the request, a bias names a token that the model lacks,
            a strict schema cannot be enforced, or vectors are requested, as by a job whose model
            was registered as another kind since.
        GenerationCancelled: The prompt is no longer wanted.
    """
    if request.embedding is not None:
        raise InvalidRequest(f"{model.card.id} generates text and computes no vectors")
    sampling = _sampling_of(request, model)
    rendered = model.render(request, encoding)
    tokens = owned(rendered.tokens, cache_owner)
    room = _room(request, len(tokens), model)
    # An estimate: the outcome reports how many tokens the cache held at admission.
    cached = CachedPrefix() if request.is_scored else model.cached_prefix(cache_ids(tokens))
    max_tokens = min(request.max_tokens, room)
    prompt = PreparedPrompt(
        tokens=tokens,
        cached_tokens=cached.tokens,
        cache_source=cached.source,
        known_tokens=cached.known,
        max_tokens=max_tokens,
        sampling=sampling,
        opened=rendered.opened,
        tools=request.callable_tools,
        single_call=request.tool_choice.is_single,
        answer_schema=request.answer_schema,
        is_strict=request.is_strict,
        strict_tools=request.strict_tools,
        thinking=request.thinking,
        logprobs=request.logprobs,
        is_scored=request.is_scored,
        is_raw=request.raw is not None,
        echoed=rendered.echoed,
        message_starts=rendered.message_starts,
        last_message=rendered.last_message,
        thinking_limit=request.thinking_limit.within(max_tokens),
        encoding=encoding,
        claim=claim,
        images=model.images(request, rendered.tokens) if images_of(request.messages) else (),
    )
    if prompt.is_strict or prompt.strict_tools:
        # Raises before the first item is emitted; afterwards it is too late.
        model.constraint(prompt)
    return prompt


def _room(request: ChatRequest, tokens: int, model: LoadedModel) -> int:
    """Return the most tokens of an answer to a prompt of ``tokens``."""
    room = model.card.context_length - tokens
    if room < 1:
        raise PromptTooLong(tokens, model.card.context_length - 1)
    if request.is_scored and tokens > SCORED_TOKENS_MAX:
        msg = (
            f"a prompt whose log probabilities are asked for has at most {SCORED_TOKENS_MAX} tokens"
        )
        raise InvalidRequest(msg, field="logprobs")
    return room


def _sampling_of(request: ChatRequest, model: LoadedModel) -> Sampling:
    sampling = request.sampling.resolve(model.sampling)
    largest = max((token for token, _ in sampling.logit_bias), default=0)
    if model.vocabulary is not None and largest >= model.vocabulary:
        raise unknown_token(largest, model.vocabulary)
    return sampling


def constraint_of(
    model: LoadedModel, prompt: PreparedPrompt, answered: Iterable[int]
) -> Constraint | None:
    """Return the constraint of the answer to a prompt, advanced past ``answered`` tokens."""
    constraint = model.constraint(prompt)
    if constraint is not None:
        for token in answered:
            constraint.accept(token)
    return constraint


def admission_of(task: GenerationTask, model: LoadedModel, *, arrival: int) -> Admission:
    """Return the sequence of an attempt, as it is inserted into the batch."""
    prompt = task.prompt
    last = len(prompt.tokens) + len(task.emitted) - 1
    is_scored = prompt.is_scored and not task.emitted  # an earlier attempt emitted the values
    return Admission(
        tokens=extended(prompt.tokens, task.emitted),
        first_index=len(task.emitted),
        # Of a prompt that is only read, the emitter drops this token.
        max_new_tokens=max(prompt.max_tokens, 1) - len(task.emitted),
        sampling=prompt.sampling,
        label=task.job_id,
        arrival=arrival,
        constraint=constraint_of(model, prompt, task.emitted),
        logprobs=prompt.logprobs,
        # Other sequences are likely to continue differently after the system prompt.
        checkpoints=tuple(end for end in prompt.message_starts[:1] if 0 < end < last),
        last_message=prompt.last_message,
        agent=task.agent,
        is_alone=is_scored,
        is_cold=is_scored,
        is_scored=is_scored,
        priority=task.priority,
        images=prompt.images,
    )
