"""Parses requests of OpenAI Responses, and the fields of a request that the log stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar

from api.dialects.compaction import COMPACT_INSTRUCTION, summary_turn
from api.dialects.encoding import signed_reasoning
from api.dialects.openai_chat.bodies import ContentPart
from api.dialects.openai_chat.parse import text_of
from api.dialects.openai_responses.bodies import (
    InputItem,
    ResponsesBody,
    TextFormat,
    TextOptions,
)
from api.dialects.openai_responses.client_tools import (
    CLIENT_CALLS,
    CLIENT_RESULTS,
    called,
    output_text,
    stored_call,
    stored_output,
    stored_parts,
)
from api.dialects.openai_responses.compaction import SUMMARY
from api.dialects.openai_responses.requested import Item, RequestedFields, encode_fields
from api.dialects.openai_responses.tools import (
    INPUT,
    ResponseTools,
    echoed_choice,
    echoed_tool,
    found_tools_text,
    is_callable,
    tool_choice_of,
    toolbox_of,
)
from api.dialects.parsing import (
    IMAGE_TYPES,
    PART_BREAK,
    ImageCollector,
    agent_of,
    arguments_of,
    clamp_max_tokens,
    described,
    effort_of,
    merge_turns,
    model_tool_name,
    newest_of_user,
    refuse_unread,
    sampling_of,
    with_verbosity,
)
from api.generation import (
    ParsedRequest,
    RequestDefaults,
    origin_of,
)
from api.http.bodies import parse_body
from domain.chat.images import unmarked
from domain.chat.request import ChatRequest, Message, Role, ToolCall, ToolChoice
from domain.errors import (
    InvalidRequest,
)
from domain.values import Priority

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
#: Types of items that an assistant emits.
_CALLS: Final = frozenset({"function_call", "custom_tool_call", "tool_search_call", *CLIENT_CALLS})
_ASSISTANT_TYPES: Final = frozenset({"reasoning", *_CALLS})
_RESULTS: Final = frozenset(
    {"function_call_output", "custom_tool_call_output", "tool_search_output", *CLIENT_RESULTS}
)
_ADDED: Final = "additional_tools"
#: Types of items that make further tools callable.
_TOOL_LISTS: Final = frozenset({"tool_search_output", _ADDED})


def stored_items(items: str | Sequence[InputItem], field: str = "input") -> list[dict[str, Any]]:
    """Return an input, the value of ``field``, as stored items; references stay unresolved.

    Raises:
        InvalidRequest: An item lacks a field that its type requires, or the newest user message
            has an image without its data, or a file.
    """
    if isinstance(items, str):
        return [_stored_message("user", items)]
    newest = newest_of_user(item.role for item in items)
    if newest >= 0:
        refuse_unread(items[newest].content, f"{field}.{newest}")
        question = ImageCollector(f"{field}.{newest}.content", is_question=True)
        text_of(items[newest].content, question)
    stored = (_stored_item(item, f"{field}.{index}") for index, item in enumerate(items))
    return [one for one in stored if one is not None]


def item_turns(items: Iterable[Item]) -> list[Message]:
    """Return items as domain messages; adjacent items of one answer become one message."""
    turns: list[Message] = []
    assistant = _AssistantTurn()
    for item in items:
        if _is_from_assistant(item):
            if assistant.is_of_another(item):
                turns.extend(assistant.turn())
                assistant = _AssistantTurn()
            assistant.add(item)
            continue
        turns.extend(assistant.turn())
        assistant = _AssistantTurn()
        if item["type"] in _RESULTS:
            turns.append(_result_turn(item))
        elif item["type"] == "compaction":
            turns.append(summary_turn(item[SUMMARY]))
        elif item["type"] == "compaction_trigger":
            continue
        elif item["type"] == _ADDED:
            text = f"Further tools:\n{found_tools_text(item['tools'])}"
            turns.append(Message(role="system", content=text))
        else:
            collector = ImageCollector()
            text = _joined(item, collector)
            images = tuple(collector.images)
            turns.append(Message(role=_ROLES[item["role"]], content=text, images=images))
    turns.extend(assistant.turn())
    return turns


def found_tools(items: Iterable[Item]) -> list[Mapping[str, Any]]:
    """Return the definitions of the tools that the items of a conversation add."""
    return [tool for item in items if item["type"] in _TOOL_LISTS for tool in item["tools"]]


def listed_items(items: Sequence[Item], names: str) -> list[dict[str, Any]]:
    """Return items as a reply lists them; an item without an id gets one.

    Args:
        names: Text that makes the ids unique, e.g. the hexadecimal part of a job's id.
    """
    return [_with_own_id(item, names, index) for index, item in enumerate(items)]


@dataclass(slots=True)
class _AssistantTurn:
    """A message of the assistant under construction."""

    origin: str = ""
    ids: list[str | None] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def is_of_another(self, item: Item) -> bool:
        """Whether an item comes from another answer than the items before it."""
        origin = origin_of(_ids(item))
        return bool(origin and self.origin and origin != self.origin)

    def add(self, item: Item) -> None:
        """Append an item."""
        self.ids.extend(_ids(item))
        self.origin = self.origin or origin_of(_ids(item))
        if item["type"] == "reasoning":
            self.reasoning.append(_joined(item) or signed_reasoning(item.get("encrypted_content")))
        elif item["type"] in _CALLS:
            self.calls.append(_tool_call(item))
        else:
            self.texts.append(_joined(item))

    def turn(self) -> list[Message]:
        """Return the message, none without items."""
        if not self.ids:
            return []
        turn = Message(
            role="assistant",
            content=PART_BREAK.join(filter(None, self.texts)),
            reasoning=PART_BREAK.join(filter(None, self.reasoning)),
            tool_calls=tuple(self.calls),
            origin=origin_of(self.ids),
        )
        return [turn]


def _tool_call(item: Item) -> ToolCall:
    kind = item["type"]
    if kind in CLIENT_CALLS:
        name, arguments = called(item)
        return ToolCall(id=item["call_id"], name=name, arguments=arguments)
    if kind == "function_call":
        arguments = arguments_of(item["arguments"] or "{}")
    else:
        arguments = item["arguments"] if kind == "tool_search_call" else {INPUT: item["input"]}
    name = model_tool_name(item.get("namespace"), item.get("name") or "tool_search")
    return ToolCall(id=item["call_id"], name=name, arguments=arguments)


def _is_from_assistant(item: Item) -> bool:
    return item["type"] in _ASSISTANT_TYPES or item.get("role") == "assistant"


def _ids(item: Item) -> tuple[str | None, ...]:
    return item.get("id"), item.get("call_id"), item.get("encrypted_content")


def _result_turn(item: Item) -> Message:
    collector = ImageCollector()
    if "tools" in item:
        text = found_tools_text(item["tools"])
    elif item["type"] in CLIENT_RESULTS:
        text = output_text(item, collector)
    else:
        parts = item["output"]
        text = parts if isinstance(parts, str) else _joined({"content": parts}, collector)
    images = tuple(collector.images)
    return Message(role="tool", content=text, tool_call_id=item["call_id"], images=images)


def _joined(item: Item, collector: ImageCollector | None = None) -> str:
    """Return the text of an item."""
    if collector is None or not any("image_url" in part for part in item["content"]):
        return PART_BREAK.join(part["text"] for part in item["content"])
    return PART_BREAK.join(
        collector.of_url(part["image_url"]) if "image_url" in part else unmarked(part["text"])
        for part in item["content"]
    )


def _stored_item(item: InputItem, where: str) -> dict[str, Any] | None:
    kind = item.type or ("message" if item.role else "item_reference")
    if kind == "item_reference":
        return {"type": kind, "id": _required(item.id, where, "id")}
    stored = _stored_fields(item, kind, where)
    return None if stored is None else _with_id(stored, item)


def _stored_fields(item: InputItem, kind: str, where: str) -> dict[str, Any] | None:
    if kind == "message":
        role = _required(item.role, where, "role")
        parts = stored_parts(item.content) if role == "user" else None
        return _stored_message(role, text_of(item.content), parts)
    if kind in _CALLS:
        return _stored_call(item, kind, where)
    if kind in _RESULTS:
        return _stored_result(item, kind, where)
    return _stored_other(item, kind, where)


def _stored_other(item: InputItem, kind: str, where: str) -> dict[str, Any] | None:
    if kind == "compaction":
        content = _required(item.encrypted_content, where, "encrypted_content")
        return {"type": kind, "encrypted_content": content}
    if kind == "compaction_trigger":
        return {"type": kind}
    if kind == "reasoning":
        content = text_of(item.content if isinstance(item.content, list) else None)
        reasoning: dict[str, Any] = {
            "type": kind,
            "summary": [],
            "content": [{"type": "reasoning_text", "text": content}] if content else [],
        }
        if item.encrypted_content:
            reasoning["encrypted_content"] = item.encrypted_content
        return reasoning
    if kind == _ADDED and (tools := _callable(item)):
        return {"type": kind, "role": item.role or "developer", "tools": tools}
    return None


def _stored_message(
    role: str, text: str, parts: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return a message; ``parts`` replace its text."""
    if role == "assistant":
        part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
    else:
        part = {"type": "input_text", "text": text}
    return {"type": "message", "role": role, "status": "completed", "content": parts or [part]}


def _stored_call(item: InputItem, kind: str, where: str) -> dict[str, Any]:
    call_id = _required(item.call_id, where, "call_id")
    call: dict[str, Any] = {"type": kind, "call_id": call_id, "status": "completed"}
    if kind in CLIENT_CALLS:
        members = stored_call(item, kind)
        field = "operation" if kind == "apply_patch_call" else "action"
        return call | (members or _lacks(where, field))
    if kind == "tool_search_call":
        arguments = item.arguments if isinstance(item.arguments, dict) else {}
        return call | {"execution": "client", "arguments": arguments}
    call["name"] = _required(item.name, where, "name")
    if item.namespace:
        call["namespace"] = item.namespace
    if kind == "custom_tool_call":
        return call | {"input": item.input or ""}
    return call | {"arguments": item.arguments if isinstance(item.arguments, str) else ""}


def _stored_result(item: InputItem, kind: str, where: str) -> dict[str, Any]:
    # The id of a local shell's result is the id of its call.
    call_id = item.id if kind == "local_shell_call_output" and not item.call_id else item.call_id
    call_id = _required(call_id, where, "call_id")
    result: dict[str, Any] = {"type": kind, "call_id": call_id, "status": "completed"}
    if kind == "tool_search_output":
        return result | {"execution": "client", "tools": _callable(item)}
    if kind in CLIENT_RESULTS:
        failed = {"status": "failed"} if item.status == "failed" else {}
        return result | {"output": stored_output(item)} | failed
    parts = item.output if isinstance(item.output, list) else ()
    whole = [part for part in parts if isinstance(part, ContentPart)]
    if any(part.type in IMAGE_TYPES for part in whole):
        return result | {"output": stored_parts(whole)}
    return result | {"output": text_of(item.output if isinstance(item.output, str) else whole)}


def _callable(item: InputItem) -> list[dict[str, Any]]:
    return [echoed_tool(tool) for tool in item.tools or () if is_callable(tool)]


def _with_id(stored: dict[str, Any], item: InputItem) -> dict[str, Any]:
    return stored | {"id": item.id} if item.id else stored


def _required(value: str | None, where: str, name: str) -> str:
    return value or _lacks(where, name)


def _lacks(where: str, name: str) -> NoReturn:
    raise InvalidRequest("an item of this type needs this field", field=f"{where}.{name}")


_PREFIXES: Final[Mapping[str, str]] = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    **CLIENT_CALLS,
    **CLIENT_RESULTS,
    _ADDED: "at",
    "reasoning": "rs",
    "compaction": "cmp",
    "compaction_trigger": "cmt",
}


def _with_own_id(item: Item, names: str, index: int) -> dict[str, Any]:
    # The letter i separates these ids from the ids of answers.
    return {"id": f"{_PREFIXES[item['type']]}_{names}_i{index}", **item}


_ENCRYPTED: Final = "reasoning.encrypted_content"
_LOGPROBS: Final = "message.output_text.logprobs"


BodyT = TypeVar("BodyT", bound=ResponsesBody)


def read_body(body: bytes) -> ResponsesBody:
    """Return a validated body of ``POST /v1/responses``."""
    return checked(parse_body(ResponsesBody, body))


def checked(wire: BodyT) -> BodyT:
    """Return a body if its fields fit each other; see ``read_body``."""
    if wire.conversation is not None and wire.previous_response_id is not None:
        msg = "a conversation has its previous responses; leave one of the two out"
        raise InvalidRequest(msg, field="previous_response_id")
    if wire.prompt is not None:
        msg = "the service has no prompt templates; send instructions and input"
        raise InvalidRequest(msg, field="prompt")
    if wire.background and wire.store is False:
        raise InvalidRequest("a response in the background must be stored", field="background")
    if wire.window_s is not None and (wire.stream or not wire.background):
        msg = "a completion window needs background: true and no stream"
        raise InvalidRequest(msg, field="background_options.completion_window")
    return wire


def requested_fields(
    wire: ResponsesBody, items: Sequence[Item], before: Sequence[Item] = ()
) -> RequestedFields:
    """Return the fields of a request that the log stores.

    Args:
        before: Items of the previous responses, oldest first.
    """
    return RequestedFields(
        items=tuple(items),
        previous=wire.previous_response_id,
        is_stored=wire.store is not False,
        is_background=bool(wire.background),
        is_prewarm=wire.is_prewarm,
        is_compaction=bool(items) and items[-1]["type"] == "compaction_trigger",
        is_signed=_ENCRYPTED in (wire.include or ()),
        kinds=toolbox_of(wire.tools, found_tools((*before, *items))).kinds,
        echo=_echo(wire),
    )


def input_items(wire: ResponsesBody) -> list[dict[str, Any]]:
    """Return the input as stored items, with unresolved references.

    Raises:
        InvalidRequest: An item lacks a field that its type requires.
    """
    return stored_items(wire.input)


def parse_request(
    wire: ResponsesBody,
    requested: RequestedFields,
    items: Sequence[Item],
    headers: Mapping[str, str],
    defaults: RequestDefaults,
) -> ParsedRequest:
    """Parse a request.

    Args:
        items: The conversation with the input, oldest first; compactions have their ``SUMMARY``.
    """
    box = toolbox_of(wire.tools, found_tools(items))
    choice = _choice_of(wire, box, requested)
    continuation = wire.background_options.continuation_id if wire.background_options else None
    effort = wire.reasoning.effort if wire.reasoning is not None else None
    wanted = wire.text.format if wire.text is not None and not requested.is_compaction else None
    chat = ChatRequest(
        model=wire.model or defaults.model,
        messages=merge_turns(
            [wire.instructions] if wire.instructions else (),
            _asked_turns(wire, requested, items),
        ),
        max_tokens=0
        if wire.is_prewarm
        else clamp_max_tokens(wire.max_output_tokens, defaults.max_tokens),
        sampling=sampling_of(wire.sampling, wire.seed, defaults.ids),
        tools=tuple(offer.function for offer in box.loaded.values()),
        deferred_tools=tuple(offer.function for offer in box.found.values()),
        narrowed=box.narrowed,
        tool_choice=choice,
        answer_schema=_schema(wanted),
        is_strict=wanted is not None and wanted.type == "json_schema" and bool(wanted.strict),
        strict_tools=box.strict,
        thinking=effort not in (None, "none") and choice.mode not in ("any", "tool"),
        effort=effort_of(effort),
        logprobs=(wire.top_logprobs or 0) if _LOGPROBS in (wire.include or ()) else None,
        thinking_limit=defaults.efforts.limit(effort),
    )
    return ParsedRequest(
        chat=chat,
        stream=bool(wire.stream),
        priority=Priority.INTERACTIVE if wire.window_s is None else Priority.BATCH,
        finish_within_s=wire.window_s,
        agent=agent_of(
            headers, session=wire.session_id, cache_key=wire.prompt_cache_key or continuation
        ),
        names_model=bool(wire.model),
        seeded=wire.seed is not None,
        unknown=wire.unknown,
        wire=encode_fields(requested),
    )


def _choice_of(wire: ResponsesBody, box: ResponseTools, requested: RequestedFields) -> ToolChoice:
    if requested.is_compaction:
        return ToolChoice(mode="none")
    return tool_choice_of(wire.tool_choice, box, parallel=wire.parallel_tool_calls is not False)


def _asked_turns(
    wire: ResponsesBody, requested: RequestedFields, items: Sequence[Item]
) -> Sequence[Message]:
    turns = item_turns(items)
    if requested.is_compaction:
        turns.append(Message(role="user", content=COMPACT_INSTRUCTION))
    return with_verbosity(turns, wire.text.verbosity if wire.text else None)


def conversation_of(wire: ResponsesBody) -> str | None:
    """Return the id of the conversation of a request."""
    named = wire.conversation
    return named if named is None or isinstance(named, str) else named.id


def _echo(wire: ResponsesBody) -> dict[str, Any]:
    conversation = conversation_of(wire)
    return ({} if conversation is None else {"conversation": {"id": conversation}}) | {
        "instructions": wire.instructions,
        "max_output_tokens": wire.max_output_tokens,
        "max_tool_calls": wire.max_tool_calls,
        "metadata": wire.metadata or {},
        "model": wire.model,
        "parallel_tool_calls": wire.parallel_tool_calls is not False,
        "prompt_cache_key": wire.prompt_cache_key,
        "reasoning": {
            "effort": wire.reasoning.effort if wire.reasoning is not None else None,
            "summary": None,
        },
        "frequency_penalty": wire.frequency_penalty,
        "presence_penalty": wire.presence_penalty,
        "safety_identifier": wire.safety_identifier,
        "service_tier": "default",
        "temperature": wire.temperature,
        "text": _shown_text(wire.text),
        "tool_choice": echoed_choice(wire.tool_choice),
        "top_logprobs": wire.top_logprobs or 0,
        "tools": [echoed_tool(tool) for tool in wire.tools or () if is_callable(tool)],
        "top_p": wire.top_p,
        "truncation": "disabled",
        "user": wire.user,
    }


def _schema(wanted: TextFormat | None) -> Mapping[str, Any] | None:
    if wanted is None or wanted.type not in ("json_object", "json_schema"):
        return None
    if wanted.type == "json_object":
        return {}
    return described(wanted.json_schema, wanted.description)


def _shown_text(wanted: TextOptions | None) -> dict[str, Any]:
    shown: dict[str, Any] = {"format": _shown_format(wanted.format if wanted else None)}
    return shown | ({"verbosity": wanted.verbosity} if wanted and wanted.verbosity else {})


def _shown_format(wanted: TextFormat | None) -> dict[str, Any]:
    if wanted is None or wanted.type not in ("json_object", "json_schema"):
        return {"type": "text"}
    if wanted.type == "json_object":
        return {"type": "json_object"}
    schema = wanted.json_schema or {}
    return {
        "type": "json_schema",
        "name": wanted.name or "answer",
        "schema": schema,
        "strict": bool(wanted.strict),
    } | ({"description": wanted.description} if wanted.description else {})
