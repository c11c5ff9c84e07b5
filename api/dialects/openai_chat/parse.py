"""OpenAI chat completions: the body becomes a request, an answer the choices of a reply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from api.dialects.encoding import chat_logprobs
from api.dialects.generate import USER_TURN, generation
from api.dialects.openai_chat.bodies import (
    ChatCompletion,
    ChatCompletionBody,
    ChatMessage,
    ChatToolChoice,
    ContentPart,
    FunctionTool,
    OpenAIMessage,
    ResponseFormat,
    ToolCallSpec,
    logprobs_wanted,
)
from api.dialects.openai_chat.completions import (
    Choice,
    CompletionKind,
    completion_request,
    create_completion,
    finish_reason,
)
from api.dialects.parsing import (
    IMAGE_TYPES,
    IMAGE_UNSENT,
    PART_BREAK,
    ImageCollector,
    Mode,
    arguments_of,
    choice_of,
    clamp_max_tokens,
    described,
    effort_of,
    function_tool,
    merge_turns,
    newest_of_user,
    refuse_unread,
    sampling_of,
    stop_texts,
    with_verbosity,
)
from api.generation import AssembledAnswer, ParsedRequest, RequestDefaults, origin_of
from api.http.bodies import parse_body
from domain.chat.images import unmarked
from domain.chat.items import Body, Finished, Text, Thinking, ToolInput, ToolStart
from domain.chat.logprobs import TokenLogprob
from domain.chat.request import (
    ChatRequest,
    Message,
    Role,
    ToolCall,
    ToolChoice,
    canonical_json,
)
from domain.errors import InvalidRequest


def _message(answer: AssembledAnswer) -> OpenAIMessage:
    message: OpenAIMessage = {
        "role": "assistant",
        "content": answer.joined("text"),
        "refusal": None,
    }
    reasoning = answer.joined("thinking")
    if reasoning:
        message["reasoning_content"] = reasoning
    if answer.tools:
        message["content"] = message["content"] or None
        message["tool_calls"] = [
            {
                "id": block.id,
                "type": "function",
                "function": {"name": block.name, "arguments": block.text or "{}"},
            }
            for block in answer.tools
        ]
    return message


_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def turns_of(messages: Sequence[ChatMessage]) -> Iterator[Message]:
    """Yield chat messages as domain messages.

    Raises:
        InvalidRequest: The newest user message has an image without its data, or a file.
    """
    newest = newest_of_user(message.role for message in messages)
    for number, message in enumerate(messages):
        if number == newest:
            refuse_unread(message.content, f"messages.{number}")
        collector = ImageCollector(f"messages.{number}.content", is_question=number == newest)
        yield _turn(message, collector)


def _turn(message: ChatMessage, collector: ImageCollector) -> Message:
    role = _ROLES[message.role]
    shown = collector if role in ("user", "tool") else None
    text = text_of(message.content, shown) or message.refusal or ""
    # A name separates the people who share the role.
    speaker = f"{message.name}: " if role == "user" and message.name else ""
    return Message(
        role=role,
        content=speaker + text,
        reasoning=(message.reasoning_content or "") if role == "assistant" else "",
        tool_calls=_calls(message.tool_calls) if role == "assistant" else (),
        tool_call_id=message.tool_call_id if role == "tool" else None,
        origin=origin_of(call.id for call in message.tool_calls or ()),
        images=tuple(collector.images),
    )


def text_of(
    content: str | Sequence[ContentPart] | None, collector: ImageCollector | None = None
) -> str:
    """Return the text of a content; a note replaces each part that is not text.

    Args:
        collector: Takes the images; ``None`` for a note in the place of each.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return PART_BREAK.join(_part_text(*one, collector) for one in enumerate(content))


def _part_text(place: int, part: ContentPart, collector: ImageCollector | None) -> str:
    if part.text is not None:
        return part.text if collector is None else unmarked(part.text)
    if part.refusal is not None:
        return part.refusal
    if part.type not in IMAGE_TYPES:
        return f"[{part.type} left out]"
    if collector is None:
        return IMAGE_UNSENT
    collector.place = place
    return collector.of_url(part.url)


def _calls(calls: Sequence[ToolCallSpec] | None) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(
            id=call.id or "",
            name=call.function.name,
            arguments=arguments_of(call.function.arguments or "{}"),
        )
        for call in calls or ()
        if call.function is not None
    )


_MODES: Final[Mapping[str, Mode]] = {"none": "none", "required": "any"}


def tools_of(tools: Sequence[FunctionTool] | None) -> tuple[Mapping[str, Any], ...]:
    """Return the functions among the tools, in function format."""
    return tuple(
        function_tool(tool.function.name, tool.function.description, tool.function.parameters)
        for tool in tools or ()
        if tool.function is not None
    )


def tool_choice_of(
    spec: str | ChatToolChoice | None, tools: Sequence[Mapping[str, Any]], *, parallel: bool
) -> ToolChoice:
    """Return the tool choice of a request.

    Args:
        spec: ``none``, ``auto``, ``required``, a function or ``allowed_tools``.
        tools: The tools of the request, in function format.
        parallel: Whether one answer may contain several calls.

    Raises:
        InvalidRequest: The request demands a call that no tool can answer.
    """
    mode, name = _MODES.get(spec, "auto") if isinstance(spec, str) else "auto", None
    allowed: tuple[str, ...] | None = None
    if isinstance(spec, ChatToolChoice) and spec.function is not None:
        mode, name = "tool", spec.function.name
    elif isinstance(spec, ChatToolChoice) and spec.allowed_tools is not None:
        mode = _MODES.get(spec.allowed_tools.mode or "", "auto")
        chosen = {one.function.name for one in spec.allowed_tools.tools or () if one.function}
        names = [tool["function"]["name"] for tool in tools]
        allowed = tuple(one for one in names if one in chosen)
    return choice_of(
        mode, name, parallel=parallel, tools=tools, allowed=allowed, field="tool_choice"
    )


def strict_among(tools: Sequence[FunctionTool] | None) -> tuple[str, ...]:
    """Return the names of the tools whose schema the service must enforce."""
    functions = [tool.function for tool in tools or () if tool.function is not None]
    return tuple(function.name for function in functions if function.strict)


def parse(body: bytes, headers: Mapping[str, str], defaults: RequestDefaults) -> ParsedRequest:
    """Parse a body of ``POST /v1/chat/completions``."""
    wire = parse_body(ChatCompletionBody, body)
    tools = tools_of(wire.tools)
    choice = tool_choice_of(wire.tool_choice, tools, parallel=wire.parallel_tool_calls is not False)
    wanted = wire.max_completion_tokens or wire.max_tokens
    named = wire.response_format.json_schema if wire.response_format is not None else None
    chat = ChatRequest(
        model=wire.model,
        messages=merge_turns((), with_verbosity(turns_of(wire.messages), wire.verbosity)),
        max_tokens=clamp_max_tokens(wanted, defaults.max_tokens),
        sampling=sampling_of(wire.sampling, wire.seed, defaults.ids),
        tools=tools,
        tool_choice=choice,
        answer_schema=_answer_schema(wire.response_format),
        is_strict=bool(named is not None and named.strict),
        strict_tools=strict_among(wire.tools),
        stop=stop_texts(wire.stop),
        logprobs=logprobs_wanted(wanted=bool(wire.logprobs), top=wire.top_logprobs),
        thinking=wire.is_thinking and choice.mode not in ("any", "tool"),
        effort=effort_of(wire.effort),
        thinking_limit=defaults.efforts.limit(
            wire.effort, budget=wire.reasoning_tokens, forbidden=wire.is_forbidden
        ),
    )
    return replace(completion_request(wire, [chat], headers), wire=_wire_of(wire))


def _wire_of(wire: ChatCompletionBody) -> bytes | None:
    """Return what a stored completion shows of its request; ``None`` where none is stored.

    Raises:
        InvalidRequest: Several answers were to be stored.
    """
    if not wire.store:
        return None
    if (wire.n or 1) > 1:
        raise InvalidRequest("a stored completion has one answer", field="store")
    messages = [one.model_dump(mode="json", exclude_none=True) for one in wire.messages]
    return stored_form(messages, wire.metadata or {})


def stored_form(messages: Sequence[Mapping[str, Any]], metadata: Mapping[str, str]) -> bytes:
    """Return the text of a stored completion: the messages of its request, and its metadata."""
    return canonical_json({"messages": list(messages), "metadata": dict(metadata)})


def _answer_schema(wanted: ResponseFormat | None) -> Mapping[str, Any] | None:
    """Return the schema of the answer, an empty one for any object."""
    if wanted is None or wanted.type not in ("json_object", "json_schema"):
        return None
    named = wanted.json_schema
    if wanted.type != "json_schema" or named is None:
        return {}
    return described(named.json_schema, named.description)


class ChatKind(CompletionKind):
    """``POST /v1/chat/completions``."""

    protocol = "openai-chat"
    id_prefix = "chatcmpl-"
    whole = "chat.completion"
    chunk = "chat.completion.chunk"
    parse = staticmethod(parse)

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._tools = 0

    def open(self) -> list[Choice]:
        """See ``CompletionKind``."""
        return [self._choice({"role": "assistant", "content": ""})]

    def render(self, body: Body) -> list[Choice]:
        """See ``CompletionKind``."""
        match body:
            case Text():
                return [self._choice({"content": body.text}, logprobs=body.logprobs)]
            case Thinking():
                return [self._choice({"reasoning_content": body.text})]
            case ToolStart():
                return [self._choice({"tool_calls": [self._call(body)]})]
            case ToolInput():
                call = {"index": self._tools - 1, "function": {"arguments": body.fragment}}
                return [self._choice({"tool_calls": [call]})]
            case _:
                return []  # the start, progress and the end of a call have no chunk

    def end(self, ending: Finished) -> Choice:
        """See ``CompletionKind``."""
        return self._choice({}, finish_reason(ending, called=bool(self._tools)))

    def _call(self, body: ToolStart) -> dict[str, Any]:
        self._tools += 1
        return {
            "index": self._tools - 1,
            "id": body.id,
            "type": "function",
            "function": {"name": body.name, "arguments": ""},
        }

    def _choice(
        self,
        delta: Mapping[str, Any],
        reason: str | None = None,
        logprobs: Sequence[TokenLogprob] = (),
    ) -> Choice:
        return {
            "index": self._index,
            "delta": delta,
            "logprobs": chat_logprobs(logprobs),
            "finish_reason": reason,
        }

    def choice(self, answer: AssembledAnswer) -> Choice:
        """See ``CompletionKind``."""
        return {
            "index": self._index,
            "message": _message(answer),
            "logprobs": chat_logprobs(answer.logprobs),
            "finish_reason": finish_reason(answer.finished(), called=bool(answer.tools)),
        }


CHAT_OPERATIONS: Final = (
    generation(
        "POST /v1/chat/completions",
        partial(create_completion, kind=ChatKind),
        id="createChatCompletion",
        summary="Generate an answer in OpenAI's Chat Completions format",
        body=ChatCompletionBody,
        example={"model": "semantic-demo", "max_tokens": 32, "messages": [USER_TURN]},
        reply=ChatCompletion,
        is_streamed=True,
    ),
)
