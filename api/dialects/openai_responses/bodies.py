"""The body of ``POST /v1/responses``, and the replies of ``/v1/responses``."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import Field, model_validator
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.dialects.openai_chat.bodies import ContentPart, TopLogprobs
from api.http.bodies import (
    INT64_MAX,
    NAME_PATTERN,
    Items,
    MaxTokens,
    MinP,
    Name,
    RequestBody,
    Seed,
    TopK,
    TopP,
)

RESPONSE_ID_PATTERN = r"^resp_[0-9a-f]{32}$"
METADATA_MAX = 16
#: Types of input items that the parser uses.
_ITEM_TYPES: Final = frozenset(
    {
        "message",
        "reasoning",
        "item_reference",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "tool_search_call",
        "tool_search_output",
        "additional_tools",
    }
)


class ToolInputFormat(RequestBody):
    """The format of the input of a custom tool: ``text`` or ``grammar``."""

    type: str
    syntax: str | None = None
    definition: str | None = None


class ResponseTool(RequestBody):
    """A tool: ``function``, ``custom``, a ``namespace`` of them, or the client's ``tool_search``.

    Types that run on the vendor's servers are ignored.
    """

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: ToolInputFormat | None = None
    tools: Items[ResponseTool] | None = None
    execution: str | None = None
    defer_loading: bool | None = None


class InputItem(RequestBody):
    """An item of any type.

    The parser uses messages, reasoning, references, additional tools, and calls and results of
    functions, of custom tools and of the client's tool search. It ignores other items, whose
    fields may have any form.
    """

    type: str | None = None
    id: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | Items[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    output: str | Items[ContentPart] | dict[str, Any] | None = None
    tools: Items[ResponseTool] | None = None
    execution: str | None = None
    encrypted_content: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _reduce_ignored(cls, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        """Return an item that the parser ignores as its type alone."""
        if not isinstance(value, dict) or not isinstance(kind := value.get("type"), str):
            return value
        runs_here = value.get("execution") == "client" or value.get("call_id") is not None
        is_search = kind in ("tool_search_call", "tool_search_output")
        is_used = kind in _ITEM_TYPES and (runs_here or not is_search)
        return value if is_used else {"type": "ignored"}


class ResponseNamedTool(RequestBody):
    """A tool by its type and name."""

    type: str
    name: str | None = None


class ResponseToolChoice(ResponseNamedTool):
    """A tool that must be called, or ``allowed_tools``; other types mean ``auto``."""

    mode: str | None = None
    tools: Items[ResponseNamedTool] | None = None


class TextFormat(RequestBody):
    """The format of the answer: ``text``, ``json_object`` or ``json_schema``."""

    type: str
    name: str | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextOptions(RequestBody):
    """Options of the text of the answer."""

    format: TextFormat | None = None


class ReasoningOptions(RequestBody):
    """The effort of the reasoning."""

    effort: str | None = None


class ResponsesBody(RequestBody):
    """The body of ``POST /v1/responses``.

    ``seed``, ``top_k``, ``min_p`` and ``session_id`` are additions.
    """

    model: Name
    input: str | Items[InputItem] = ""
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(max_length=64)] | None = None
    stream: bool | None = None
    background: bool | None = None
    store: bool | None = None
    max_output_tokens: MaxTokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Seed | None = None
    tools: Items[ResponseTool] | None = None
    tool_choice: str | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: Items[str] | None = None
    top_logprobs: TopLogprobs | None = None
    metadata: Annotated[dict[str, str], Field(max_length=METADATA_MAX)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_tool_calls: Annotated[int, Field(ge=1, le=INT64_MAX)] | None = None
    safety_identifier: str | None = None
    user: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    session_id: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    prompt_cache_key: str | None = None


class CachedInput(TypedDict):
    """Details of the input tokens."""

    cached_tokens: int
    cache_write_tokens: int


class ReasonedOutput(TypedDict):
    """Details of the output tokens."""

    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """Token counts."""

    input_tokens: int
    input_tokens_details: CachedInput
    output_tokens: int
    output_tokens_details: ReasonedOutput
    total_tokens: int


class ResponseFault(TypedDict):
    """The failure of a response."""

    code: str
    message: str


class ResponseObject(TypedDict):
    """A response as it is now."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    error: ResponseFault | None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: NotRequired[int]
    top_p: float | None
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    user: str | None


class ResponseItems(TypedDict):
    """A page of the input items of a response."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    has_more: bool
    first_id: str | None
    last_id: str | None


class ResponseDeleted(TypedDict):
    """The reply to the deletion of a response."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]
