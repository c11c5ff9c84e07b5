"""Anthropic Messages: the body becomes a request."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from api.dialects.anthropic.bodies import (
    COMPACTION,
    ClearEdit,
    Compact,
    ContentBlock,
    ContextEdit,
    CountBody,
    InputMessage,
    MessagesBody,
    OutputConfig,
    ThinkingSpec,
)
from api.dialects.anthropic.context import behind_summary, has_older_turns, may_edit
from api.dialects.anthropic.encode import MessageForm
from api.dialects.anthropic.tools import AnthropicTools, tool_choice_of
from api.dialects.encoding import signed_reasoning
from api.dialects.parsing import (
    IMAGE_UNSENT,
    PART_BREAK,
    ImageCollector,
    agent_of,
    clamp_max_tokens,
    effort_of,
    merge_turns,
    model_tool_name,
    newest_of_user,
    sampling_of,
    stop_texts,
)
from api.generation import ParsedRequest, RequestDefaults, ThinkingShown, origin_of
from api.http.bodies import MAX_TOKENS_CEILING, parse_body
from domain.chat.images import unmarked
from domain.chat.request import ChatRequest, Message, ToolCall
from domain.errors import InvalidRequest

#: First line of Claude Code's system prompt. It changes with every request, so the cache could not
#: reuse any prefix of the prompt.
BILLING_PREFIX: Final = "x-anthropic-billing-header:"
#: Claude Code appends a line of this shape with its remaining budget to every request.
_COUNTER_TAG: Final = "<total_tokens>"
_COUNTER: Final = re.compile(r"\s*<total_tokens>[\d,]+ tokens left</total_tokens>\s*")
#: Type of the block with the result of a search for tools, which the service made.
_SEARCH_RESULT: Final = "tool_search_tool_result"
DOCUMENT_REFUSED: Final = "this service reads documents of plain text only"
#: Beginnings of tool results that already report an error.
_ERROR_PREFIXES: Final = ("error", "<error", "<tool_use_error")


def system_texts(system: str | Sequence[ContentBlock] | None) -> list[str]:
    """Return the texts of the system prompt without billing lines and counters."""
    if system is None:
        return []
    texts = [system] if isinstance(system, str) else [block_text(block) for block in system]
    return [kept for kept in map(_without_volatile_lines, texts) if kept]


def message_turns(
    messages: Sequence[InputMessage], toolbox: AnthropicTools, before: Iterable[Message] = ()
) -> list[Message]:
    """Return the messages as domain messages; each tool result is a message of its own.

    A summary takes the place of everything before it, except instructions and the newest question.

    Args:
        toolbox: Describes the tools that results refer to.
        before: The conversation that the messages continue.

    Raises:
        InvalidRequest: The newest user message has an image without its data. A note replaces one
            in an earlier message or in a tool result, so that the conversation can go on.
    """
    turns = list(before)
    newest = newest_of_user(message.role for message in messages)
    for number, message in enumerate(messages):
        where, is_question = f"messages.{number}", number == newest
        if is_question:
            _refuse_unread(message.content, where)
        summary, rest = _summarized(message)
        if summary is not None:
            turns = behind_summary(turns, summary)
        if rest is not message and not rest.content:
            continue
        collector = partial(ImageCollector, f"{where}.content", is_question=is_question)
        turns += _turns(rest, toolbox, collector)
    return turns


def _summarized(message: InputMessage) -> tuple[str | None, InputMessage]:
    """Return the last summary in a message, if it has one, and the message without what it covers.

    A compaction without a summary has failed, and stands for nothing.
    """
    summary, rest = None, []
    for block in () if isinstance(message.content, str) else message.content:
        if block.type != COMPACTION:
            rest.append(block)
        elif block.content is not None:
            summary, rest = block.content, []
    if isinstance(message.content, str) or len(rest) == len(message.content):
        return None, message
    return summary, message.model_copy(update={"content": rest})


def _refuse_unread(content: str | Sequence[ContentBlock], where: str) -> None:
    """Refuse a question with a document that is no text.

    Raises:
        InvalidRequest: The error names the block.
    """
    for place, block in enumerate(() if isinstance(content, str) else content):
        if block.type == "document" and _document_text(block) == f"[{_label(block)} left out]":
            raise InvalidRequest(DOCUMENT_REFUSED, field=f"{where}.content.{place}.source")


def block_text(block: ContentBlock, collector: ImageCollector | None = None) -> str:
    """Return the text of a block; a note replaces a block without text.

    Args:
        collector: Takes the images; ``None`` for a note in the place of each.
    """
    if block.type in ("text", "thinking"):
        text = (block.text if block.type == "text" else block.thinking) or ""
        return text if collector is None else unmarked(text)
    if block.type == "image":
        return _image(block.source, collector)
    if block.type == "document":
        return _document_text(block)
    if block.type == "redacted_thinking":
        return ""
    found = block.text or _text_in(block.content)
    if block.type == "search_result" and found:
        source = block.source if isinstance(block.source, str) else None
        return PART_BREAK.join(filter(None, (block.title, source, found)))
    return found or f"[{_label(block)} left out]"


def _image(source: Any, collector: ImageCollector | None) -> str:  # noqa: ANN401 - any JSON value
    """Return what stands for an image in the text."""
    if collector is None or not isinstance(source, Mapping):
        return IMAGE_UNSENT
    if source.get("type") == "base64":
        return collector.of_base64(_string(source.get("data")))
    return collector.of_url(_string(source.get("url")))


def _string(value: Any) -> str | None:  # noqa: ANN401 - any JSON value
    return value if isinstance(value, str) else None


def _turns(
    message: InputMessage, toolbox: AnthropicTools, collector: Callable[..., ImageCollector]
) -> Iterator[Message]:
    content = message.content
    if message.role == "system":
        if text := PART_BREAK.join(system_texts(content)):
            yield Message(role="system", content=text)
    elif isinstance(content, str):
        yield Message(role=message.role, content=content)
    elif message.role == "assistant":
        yield from _assistant_turns(content, toolbox)
    else:
        yield from _user_turns(content, toolbox, collector)


def _assistant_turns(blocks: Sequence[ContentBlock], toolbox: AnthropicTools) -> Iterator[Message]:
    """Yield the turns of an answer: the result of each search for tools parts it."""
    turn: list[ContentBlock] = []
    for block in blocks:
        if block.type != _SEARCH_RESULT:
            turn.append(block)
            continue
        if turn:
            yield _assistant_turn(turn)
            turn = []
        found = block.content.get("tool_references") if isinstance(block.content, dict) else None
        text = _text_in(found, toolbox) if found else "No tools were found."
        yield Message(role="tool", content=text, tool_call_id=_call_id(block.tool_use_id))
    if turn or not blocks:
        yield _assistant_turn(turn)


def _assistant_turn(blocks: Sequence[ContentBlock]) -> Message:
    return Message(
        role="assistant",
        content=PART_BREAK.join(
            block_text(block)
            for block in blocks
            if not _is_call(block) and block.type not in ("thinking", "redacted_thinking")
        ),
        reasoning=PART_BREAK.join(filter(None, map(_reasoning, blocks))),
        tool_calls=tuple(
            ToolCall(
                id=_call_id(block.id),
                name=model_tool_name(block.toolset_name, block.name or ""),
                arguments=block.input or {},
            )
            for block in blocks
            if _is_call(block)
        ),
        origin=origin_of(
            one for block in blocks for one in (_call_id(block.id), block.signature, block.data)
        ),
    )


def _is_call(block: ContentBlock) -> bool:
    """Whether a block is a call by the model; those of the vendor's other tools become notes."""
    is_search = (block.name or "").startswith("tool_search_tool_")
    return block.type == "tool_use" or (block.type == "server_tool_use" and is_search)


def _call_id(shown: str | None) -> str:
    """Return the id that the model's call had; that of a search has another prefix."""
    return (shown or "").removeprefix("srv")


def _reasoning(block: ContentBlock) -> str:
    """Return the reasoning of a block, also if the client received it in a signature only."""
    if block.type == "thinking":
        return block.thinking or signed_reasoning(block.signature)
    return signed_reasoning(block.data) if block.type == "redacted_thinking" else ""


def _user_turns(
    blocks: Sequence[ContentBlock],
    toolbox: AnthropicTools,
    new_collector: Callable[..., ImageCollector],
) -> Iterator[Message]:
    texts: list[str] = []
    collector = new_collector()
    yielded = False
    for place, block in enumerate(blocks):
        collector.place = place
        if block.type != "tool_result":
            texts.append(block_text(block, collector))
            continue
        if texts:
            yield _user_turn(texts, collector)
            texts, collector = [], new_collector()
        yielded = True
        of_result = new_collector(is_question=False)
        result = _text_in(block.content, toolbox, of_result)
        if block.is_error and not result.lower().startswith(_ERROR_PREFIXES):
            result = f"Error: {result}"
        yield Message(
            role="tool",
            content=result,
            tool_call_id=block.tool_use_id,
            images=tuple(of_result.images),
        )
    if texts or not yielded:
        yield _user_turn(texts, collector)


def _user_turn(texts: Sequence[str], collector: ImageCollector) -> Message:
    return Message(role="user", content=PART_BREAK.join(texts), images=tuple(collector.images))


def _text_in(
    content: Any,  # noqa: ANN401 - any JSON value
    toolbox: AnthropicTools | None = None,
    collector: ImageCollector | None = None,
) -> str:
    """Return the text of a block's content: a text, a block or a list of either."""
    if isinstance(content, str):
        return content if collector is None else unmarked(content)
    if isinstance(content, Mapping):
        return _member_text(content, toolbox, collector)
    if isinstance(content, list):
        return PART_BREAK.join(_text_in(member, toolbox, collector) for member in content)
    return ""


def _member_text(
    member: Mapping[str, Any], toolbox: AnthropicTools | None, collector: ImageCollector | None
) -> str:
    if member.get("type") == "image":
        return _image(member.get("source"), collector)
    if member.get("type") == "tool_reference" and toolbox is not None:
        return toolbox.description(member.get("tool_name"))
    for key in ("text", "tool_name", "data", "content", "title"):
        value = member.get(key)
        if isinstance(value, str | list):
            return _text_in(value, toolbox, collector)
    return f"[{member.get('type', 'content')} left out]"


def _document_text(block: ContentBlock) -> str:
    source = block.source if isinstance(block.source, Mapping) else {}
    text = source.get("data") if source.get("type") == "text" else _text_in(source.get("content"))
    if not isinstance(text, str) or not text:
        return f"[{_label(block)} left out]"
    return PART_BREAK.join(filter(None, (block.title, block.context, text)))


def _label(block: ContentBlock) -> str:
    return " ".join(part for part in (block.type, block.name or block.title) if part)


def _without_volatile_lines(text: str) -> str:
    """Return a system text without the lines that change with every request."""
    if BILLING_PREFIX not in text and _COUNTER_TAG not in text:
        return text
    kept = "\n".join(
        line
        for line in text.split("\n")
        if not line.startswith(BILLING_PREFIX) and not _COUNTER.fullmatch(line)
    )
    return kept if kept.strip() else ""


def has_cache_control(wire: CountBody) -> bool:
    """Whether a request contains ``cache_control``.

    It does not change the prefix cache, which stores the whole blocks of every prompt. It decides
    whether the usage reports written cache tokens, since only clients that send it read them.
    """
    return any(mark is not None for mark in _marks(wire))


def _marks(wire: CountBody) -> Iterator[Any]:
    yield wire.cache_control
    yield from (tool.cache_control for tool in wire.tools or ())
    for content in (wire.system, *(message.content for message in wire.messages)):
        for block in () if content is None or isinstance(content, str) else content:
            yield block.cache_control
            # A tool result contains blocks of its own.
            inner = block.content if isinstance(block.content, list) else ()
            yield from (part.get("cache_control") for part in inner if isinstance(part, dict))


#: Returns the conversation up to a message of this service, that message included.
Earlier = Callable[[str], Sequence[Message]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesRequest(ParsedRequest):
    """A request of Messages.

    Attributes:
        previous_message: Id of the message with which its cache diagnosis compares, if it asks.
    """

    form: MessageForm
    previous_message: str | None = None


def parse(
    body: bytes,
    headers: Mapping[str, str],
    defaults: RequestDefaults,
    earlier: Earlier | None = None,
) -> MessagesRequest:
    """Parse a body of ``POST /v1/messages`` whose prompt needs no count.

    Raises:
        InvalidRequest: The error names the first invalid field, also where an edit of the prompt
            depends on its length.
    """
    wire = parse_body(MessagesBody, body)
    parsed = request_of(wire, headers, defaults, earlier)
    compacts = compact_of(wire) is not None and has_older_turns(parsed.chat)
    if compacts or may_edit(parsed.chat, clear_edits_of(wire)):
        msg = "a line of a batch is not counted before it runs, so its prompt cannot be edited"
        raise InvalidRequest(msg, field="context_management")
    if wire.compaction is not None:
        raise InvalidRequest("a line of a batch is not compacted", field=COMPACTION)
    return parsed


def with_summary(wire: MessagesBody, summary: str) -> MessagesBody:
    """Return a request behind its compaction, as its client sends it back."""
    block = ContentBlock(type=COMPACTION, content=summary)
    compaction = InputMessage(role="assistant", content=[block])
    return wire.model_copy(update={"messages": [*wire.messages, compaction]})


def compact_of(wire: CountBody) -> Compact | None:
    """Return the edit that compacts the conversation, if a request wants it."""
    return next((edit for edit in edits_of(wire) if isinstance(edit, Compact)), None)


def clear_edits_of(wire: CountBody) -> list[ClearEdit]:
    """Return the other edits, in order."""
    return [edit for edit in edits_of(wire) if not isinstance(edit, Compact)]


def edits_of(wire: CountBody) -> Sequence[ContextEdit]:
    """Return the edits of the prompt that a request wants, in order."""
    return wire.context_management.edits or () if wire.context_management is not None else ()


def request_of(
    wire: MessagesBody,
    headers: Mapping[str, str],
    defaults: RequestDefaults,
    earlier: Earlier | None = None,
) -> MessagesRequest:
    """Return the request of a body of ``POST /v1/messages`` before the edits of its prompt.

    Args:
        defaults: Values for open fields; the token limit is required in this dialect.
        earlier: Finds what a ``thread`` continues; ``None`` where no request continues any.
    """
    toolbox = AnthropicTools(wire.tools)
    return MessagesRequest(
        chat=_chat(wire, wire.max_tokens, defaults, toolbox, earlier),
        form=form_of(wire, toolbox),
        stream=bool(wire.stream),
        agent=agent_of(headers, user_id=wire.user_id),
        seeded=wire.seed is not None,
        unknown=wire.unknown,
        previous_message=wire.diagnostics.previous_message_id if wire.diagnostics else None,
    )


def form_of(wire: CountBody, toolbox: AnthropicTools) -> MessageForm:
    """Return the form of the reply to a request without edits of its prompt."""
    return MessageForm(
        model=wire.model,
        tools=toolbox,
        thinking=_thinking_of(wire.thinking),
        has_cache_control=has_cache_control(wire),
        applied_edits=() if edits_of(wire) else None,
    )


def counted_request_of(
    wire: CountBody,
    headers: Mapping[str, str],
    defaults: RequestDefaults,
    earlier: Earlier | None = None,
) -> ParsedRequest:
    """Return the request of a body of ``POST /v1/messages/count_tokens``; see ``request_of``."""
    chat = _chat(wire, 1, defaults, AnthropicTools(wire.tools), earlier)
    return ParsedRequest(chat=chat, agent=agent_of(headers, user_id=wire.user_id))


def _messages(
    wire: CountBody, toolbox: AnthropicTools, earlier: Earlier | None
) -> tuple[Message, ...]:
    before: Sequence[Message] = ()
    if wire.thread is not None and wire.thread.previous_message_id is not None:
        if earlier is None:
            msg = "a line of a batch stands by itself; send the conversation before it as messages"
            raise InvalidRequest(msg, field="thread")
        before = earlier(wire.thread.previous_message_id)
    system = system_texts(wire.system)
    if wire.system is None:
        system = [turn.content for turn in before if turn.role == "system"]
    history = (turn for turn in before if turn.role != "system")
    return merge_turns(system, message_turns(wire.messages, toolbox, history))


def _chat(
    wire: CountBody,
    max_tokens: int,
    defaults: RequestDefaults,
    toolbox: AnthropicTools,
    earlier: Earlier | None,
) -> ChatRequest:
    choice = tool_choice_of(wire.tool_choice, toolbox)
    config, spec = wire.output_config or OutputConfig(), wire.thinking
    wanted = config.format or wire.output_format
    # A request that demands a call must not reason first.
    is_thinking = _thinking_of(wire.thinking) != "none" and choice.mode not in ("any", "tool")
    return ChatRequest(
        model=wire.model,
        messages=_messages(wire, toolbox, earlier),
        max_tokens=clamp_max_tokens(max_tokens, MAX_TOKENS_CEILING),
        sampling=sampling_of(wire.sampling, wire.seed, defaults.ids),
        tools=toolbox.loaded,
        deferred_tools=toolbox.referred,
        tool_choice=choice,
        narrowed=toolbox.narrowed,
        answer_schema=None if wanted is None else wanted.json_schema or {},
        # As at the vendor, a schema that cannot be enforced is a 400.
        is_strict=wanted is not None,
        strict_tools=toolbox.strict,
        stop=stop_texts(wire.stop_sequences),
        thinking=is_thinking,
        effort=effort_of(config.effort),
        thinking_limit=defaults.efforts.limit(
            config.effort,
            budget=spec.budget_tokens if spec is not None and spec.type == "enabled" else None,
            forbidden=spec is not None and spec.type == "disabled",
        ),
    )


def _thinking_of(spec: ThinkingSpec | None) -> ThinkingShown:
    if spec is None or spec.type not in ("enabled", "adaptive"):
        return "none"
    return "omitted" if spec.display == "omitted" else "whole"
