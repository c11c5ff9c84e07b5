"""Bodies and replies of ``/v1/messages``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.http.bodies import (
    Budget,
    Items,
    MaxTokensOrZero,
    Name,
    RequestBody,
    Seed,
    StopTexts,
    TopK,
    TopP,
)


class ContentBlock(RequestBody):
    """A block of any type; each type uses some of the fields. Unknown types are accepted."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    tool_name: str | None = None
    is_error: bool | None = None
    title: str | None = None
    content: Any = None
    source: Any = None
    cache_control: Any = None


class InputMessage(RequestBody):
    """One turn; ``system`` is allowed anywhere in a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Items[ContentBlock]


class AnthropicTool(RequestBody):
    """A tool of the client, or the name of one that the vendor's servers run."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    defer_loading: bool | None = None
    cache_control: Any = None
    strict: bool | None = None


class ThinkingSpec(RequestBody):
    """Whether the model reasons, and its largest number of reasoning tokens."""

    type: str
    display: str | None = None
    budget_tokens: Budget | None = None


class AnthropicToolChoice(RequestBody):
    """Whether a tool may, must or must not be called; other types mean ``auto``."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(RequestBody):
    """The format of the answer; types other than ``json_schema`` have no effect."""

    type: str
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class OutputConfig(RequestBody):
    """The effort, which limits the reasoning, and the format; models with levels get the effort."""

    effort: str | None = None
    format: OutputFormat | None = None


class Metadata(RequestBody):
    """The client; Claude Code puts its session into ``user_id``."""

    user_id: str | None = None


class CountBody(RequestBody):
    """The fields of a request that its prompt depends on; ``seed`` is an addition."""

    model: Name
    messages: Annotated[Items[InputMessage], Field(min_length=1)]
    system: str | Items[ContentBlock] | None = None
    stop_sequences: StopTexts | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    tools: Items[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: ThinkingSpec | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    seed: Seed | None = None
    metadata: Metadata | None = None
    cache_control: Any = None

    @property
    def user_id(self) -> str | None:
        """Return ``metadata.user_id``."""
        return self.metadata.user_id if self.metadata is not None else None


class MessagesBody(CountBody):
    """The body of ``POST /v1/messages``."""

    max_tokens: MaxTokensOrZero
    stream: bool | None = None


# --- Anthropic -----------------------------------------------------------------------------


class ThoughtTokens(TypedDict):
    """Details of the output tokens."""

    thinking_tokens: int


class AnthropicUsage(TypedDict):
    """Token counts; the prompt has the sum of the three input counts."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThoughtTokens


class TokenCount(TypedDict):
    """The reply of ``POST /v1/messages/count_tokens``."""

    input_tokens: int


class AnthropicBlock(TypedDict):
    """A content block; its type decides which of the other keys it has."""

    type: Literal["text", "thinking", "tool_use"]
    text: NotRequired[str]
    thinking: NotRequired[str]
    signature: NotRequired[str]
    id: NotRequired[str]
    name: NotRequired[str]
    input: NotRequired[dict[str, Any]]


class AnthropicMessage(TypedDict):
    """The reply of ``POST /v1/messages``."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnthropicBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: AnthropicUsage
