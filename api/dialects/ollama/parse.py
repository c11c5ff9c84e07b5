"""Ollama's generations: the body becomes a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from api.dialects.ollama.bodies import (
    OllamaCall,
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaGenerationBody,
    OllamaMessage,
    OllamaOptions,
)
from api.dialects.openai_chat.bodies import logprobs_wanted
from api.dialects.openai_chat.parse import strict_among, tools_of
from api.dialects.parsing import (
    PART_BREAK,
    ImageCollector,
    agent_of,
    clamp_max_tokens,
    effort_of,
    merge_turns,
    newest_of_user,
    sampling_of,
    stop_texts,
)
from api.generation import ParsedRequest, RequestDefaults, origin_of
from api.http.bodies import MAX_TOKENS_CEILING, parse_body
from domain.chat.images import unmarked
from domain.chat.request import ChatRequest, Message, RawPrompt, ToolCall
from domain.errors import InvalidRequest
from domain.model.registry import ModelRegistry

#: The tag that clients add to the name of a model without one.
TAG: Final = ":latest"
#: ``seed`` of a request that wants a random one.
_RANDOM_SEED: Final = -1


def parse_chat(body: bytes, headers: Mapping[str, str], defaults: RequestDefaults) -> ParsedRequest:
    """Parse a body of ``POST /api/chat``; see ``RequestParser``."""
    wire = parse_body(OllamaChatBody, body)
    tools = tools_of(wire.tools)
    chat = {"tools": tools, "strict_tools": strict_among(wire.tools)}
    return _parsed(wire, list(_turns(wire.messages or ())), headers, defaults, chat)


def parse_generate(
    body: bytes, headers: Mapping[str, str], defaults: RequestDefaults
) -> ParsedRequest:
    """Parse a body of ``POST /api/generate``; see ``RequestParser``."""
    wire = parse_body(OllamaGenerateBody, body)
    _refuse_unread(wire)
    if not wire.prompt and not wire.suffix and not wire.images:
        return _parsed(wire, [], headers, defaults)
    if wire.raw or wire.suffix:
        _refuse_beside_raw(wire)
        raw = RawPrompt(text=wire.prompt or "", suffix=wire.suffix or None)
        return _parsed(wire, None, headers, defaults, {"raw": raw})
    collector = ImageCollector("images", is_question=True)
    content = _content(wire.prompt, wire.images, collector)
    turns = [Message(role="user", content=content, images=tuple(collector.images))]
    if wire.system:
        turns.insert(0, Message(role="system", content=wire.system))
    return _parsed(wire, turns, headers, defaults)


def _parsed(
    wire: OllamaGenerationBody,
    turns: Sequence[Message] | None,
    headers: Mapping[str, str],
    defaults: RequestDefaults,
    more: Mapping[str, Any] | None = None,
) -> ParsedRequest:
    """Return the request.

    Args:
        turns: The conversation; none for a request that loads the model, ``None`` for a raw prompt.
    """
    options = wire.options or OllamaOptions()
    seed = None if options.seed == _RANDOM_SEED else options.seed
    is_load = turns is not None and not turns
    if is_load and wire.is_unload:
        raise InvalidRequest(UNLOAD_REFUSED, field="keep_alive")
    effort = wire.think if isinstance(wire.think, str) else None
    schemas: Mapping[str, Mapping[str, Any]] = {"json": {}}
    most = clamp_max_tokens(options.num_predict, defaults.max_tokens)
    if options.num_predict is not None and options.num_predict < 1:
        most = MAX_TOKENS_CEILING
    chat = ChatRequest(
        model=wire.model,
        messages=() if turns is None else merge_turns((), turns),
        max_tokens=0 if is_load else most,
        sampling=sampling_of(options.sampling, seed, defaults.ids),
        answer_schema=schemas.get(wire.format) if isinstance(wire.format, str) else wire.format,
        stop=stop_texts(options.stop),
        logprobs=logprobs_wanted(wanted=bool(wire.logprobs), top=wire.top_logprobs),
        thinking=bool(wire.think),
        effort=effort_of(effort),
        thinking_limit=defaults.efforts.limit(effort, forbidden=wire.think is False),
        **(more or {}),
    )
    return ParsedRequest(
        chat=chat,
        stream=wire.stream is not False and not is_load,
        agent=agent_of(headers),
        seeded=seed is not None,
        unknown=wire.unknown,
    )


UNLOAD_REFUSED: Final = (
    "a client cannot unload a model; another one takes its place by a request, or by"
    " semantic models swap NAME"
)


def _turns(messages: Sequence[OllamaMessage]) -> Iterator[Message]:
    """Yield messages as domain messages; calls without an id get one by their place.

    Raises:
        InvalidRequest: An image of the newest message of the user cannot be read.
    """
    newest = newest_of_user(message.role for message in messages)
    #: Calls without a result, as name and id.
    waiting: list[tuple[str, str]] = []
    for number, message in enumerate(messages):
        collector = ImageCollector(f"messages.{number}.images", is_question=number == newest)
        content = _content(message.content, message.images, collector)
        calls = _calls(message, number)
        waiting += [(call.name, call.id) for call in calls]
        is_answer = message.role == "assistant"
        yield Message(
            role=message.role,
            content=content,
            reasoning=(message.thinking or "") if is_answer else "",
            tool_calls=calls,
            tool_call_id=_answered(message, waiting) if message.role == "tool" else None,
            origin=origin_of(call.id for call in message.tool_calls or ()) if is_answer else "",
            images=tuple(collector.images),
        )


def _content(text: str | None, images: Sequence[Any] | None, collector: ImageCollector) -> str:
    marks = [collector.of_base64(one if isinstance(one, str) else None) for one in images or ()]
    return PART_BREAK.join([unmarked(text), *marks] if text else marks)


def _calls(message: OllamaMessage, number: int) -> tuple[ToolCall, ...]:
    given: Sequence[OllamaCall] = message.tool_calls or ()
    if message.role != "assistant":
        return ()
    return tuple(
        ToolCall(
            id=call.id or f"call_{number}_{place}",
            name=call.function.name,
            arguments=call.function.arguments or {},
        )
        for place, call in enumerate(given)
    )


def _answered(message: OllamaMessage, waiting: list[tuple[str, str]]) -> str | None:
    """Return the call that a result answers, which then waits no longer.

    A result without an id answers the first waiting call of its tool, or of any tool.
    """
    wanted, name = message.tool_call_id, message.tool_name
    for call in waiting:
        if (call[1] == wanted) if wanted else (name in (None, "", call[0])):
            waiting.remove(call)
            return call[1]
    return wanted


def _refuse_unread(wire: OllamaGenerateBody) -> None:
    if wire.template:
        msg = "the model's own template renders the prompt; send a rendered one with raw"
        raise InvalidRequest(msg, field="template")
    if wire.context:
        msg = "no reply has a context to send back; send the conversation to /api/chat"
        raise InvalidRequest(msg, field="context")


def _refuse_beside_raw(wire: OllamaGenerateBody) -> None:
    """Refuse what has no effect beside a prompt without a chat template."""
    for name in ("system", "format", "think", "images"):
        if getattr(wire, name):
            msg = "has no effect beside raw or suffix, which use no chat template"
            raise InvalidRequest(msg, field=name)


def of_model(parsed: ParsedRequest, registry: ModelRegistry) -> ParsedRequest:
    """Return a request without the tag of its model, unless a model has the name with the tag."""
    name = parsed.chat.model
    if registry.get(name) is not None:
        return parsed
    return replace(parsed, chat=replace(parsed.chat, model=name.removesuffix(TAG)))
