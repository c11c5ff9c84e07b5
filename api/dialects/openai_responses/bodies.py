"""The body of ``POST /v1/responses``, and the replies of ``/v1/responses``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.dialects.openai_chat.bodies import ContentPart, ReasoningTokens, TopLogprobs, Verbosity
from api.http.bodies import (
    INT64_MAX,
    NAME_PATTERN,
    Items,
    MaxTokens,
    Name,
    Pairs,
    RequestBody,
    SamplingBody,
    Seed,
    Unsupported,
    VendorBody,
)

CONVERSATION_ID_PATTERN = r"^conv_[0-9a-f]{32}$"
#: Items of one request to a conversation.
CONVERSATION_ITEMS_MAX: Final = 20
RESPONSE_ID_PATTERN = r"^resp_[0-9a-f]{32}$"
METADATA_MAX = 16
#: Completion windows of a response in the background, in seconds.
_WINDOWS_S: Final[Mapping[str, float | None]] = MappingProxyType(
    {"soonest": None, "2h": 7_200.0, "8h": 28_800.0}
)
#: Types of tools that the parser uses.
_TOOL_TYPES: Final = frozenset(
    {
        "function",
        "custom",
        "namespace",
        "tool_search",
        "shell",
        "local_shell",
        "apply_patch",
        "computer",
        "computer_use_preview",
    }
)
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
        "shell_call",
        "shell_call_output",
        "local_shell_call",
        "local_shell_call_output",
        "apply_patch_call",
        "apply_patch_call_output",
        "computer_call",
        "computer_call_output",
        "additional_tools",
        "compaction",
        "compaction_trigger",
    }
)


def _own_tool(kind: str) -> str:
    if kind not in _TOOL_TYPES:
        words = "the service does not have the vendor's tool {kind}"
        raise PydanticCustomError("unsupported", words, {"kind": kind})
    return kind


def _known_item(kind: str | None) -> str | None:
    if kind is not None and kind not in _ITEM_TYPES:
        words = "the service has no items of type {kind}"
        raise PydanticCustomError("unsupported", words, {"kind": kind})
    return kind


class ToolInputFormat(RequestBody):
    """The format of the input of a custom tool."""

    type: Literal["text", "grammar"]
    syntax: str | None = None
    definition: str | None = None


class Skill(RequestBody):
    """A folder of instructions that the client's shell can read."""

    name: str
    description: str
    path: str


class ShellEnvironment(RequestBody):
    """Where commands of a shell run: at the client; no containers are here."""

    type: Literal["local"]
    skills: Items[Skill] | None = None


class ResponseTool(RequestBody):
    """A tool that the client runs, a ``namespace`` of such, or the client's ``tool_search``."""

    type: Annotated[str, AfterValidator(_own_tool)]
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: ToolInputFormat | None = None
    tools: Items[ResponseTool] | None = None
    execution: str | None = None
    defer_loading: bool | None = None
    #: The answer calls tools; programs that do, run on the vendor's machines.
    allowed_callers: Items[Literal["direct"]] | None = None
    #: Of a ``computer_use_preview``, the name of its system.
    environment: ShellEnvironment | str | None = None
    display_width: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    display_height: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    waits_for_none: Annotated[Literal[False] | None, Field(alias="async")] = None

    @model_validator(mode="after")
    def _refuse_vendors_search(self) -> ResponseTool:
        if self.type == "tool_search" and self.execution != "client":
            raise PydanticCustomError(
                "unsupported", "execution must be client: no search runs here"
            )
        return self


class ShellOutput(RequestBody):
    """What one command printed, and how it ended."""

    stdout: str
    stderr: str
    outcome: dict[str, Any]


class InputItem(RequestBody):
    """An item: a message, reasoning, a reference, further tools, or a client's call or result."""

    type: Annotated[str | None, AfterValidator(_known_item)] = None
    id: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | Items[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    output: str | Items[ContentPart] | Items[ShellOutput] | dict[str, Any] | None = None
    action: dict[str, Any] | None = None
    actions: Items[dict[str, Any]] | None = None
    operation: dict[str, Any] | None = None
    status: str | None = None
    tools: Items[ResponseTool] | None = None
    execution: str | None = None
    encrypted_content: str | None = None


class ResponseNamedTool(RequestBody):
    """A tool by its type and name."""

    type: str
    name: str | None = None


class ResponseToolChoice(ResponseNamedTool):
    """A tool that must be called, or ``allowed_tools``."""

    type: Literal[
        "function",
        "custom",
        "tool_search",
        "shell",
        "local_shell",
        "apply_patch",
        "computer",
        "computer_use",
        "computer_use_preview",
        "allowed_tools",
    ]
    mode: Literal["auto", "required"] | None = None
    tools: Items[ResponseNamedTool] | None = None


class TextFormat(RequestBody):
    """The format of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextOptions(RequestBody):
    """Options of the text of the answer."""

    format: TextFormat | None = None
    verbosity: Verbosity | None = None


class ReasoningOptions(RequestBody):
    """The effort of the reasoning."""

    effort: str | None = None
    mode: Literal["standard"] | None = None


class CacheOptions(RequestBody):
    """Options of the vendor's cache; those of its life have no effect, since all is kept."""

    prewarm: bool | None = None
    comparison_response_id: Annotated[str, Field(max_length=64)] | None = None


class BackgroundOptions(RequestBody):
    """Options of a response in the background.

    Responses of one ``continuation_id`` are of one agent, unless the request names another.
    """

    completion_window: Literal["soonest", "2h", "8h"] | None = None
    continuation_id: str | None = None


class ConversationRef(RequestBody):
    """A conversation by its id."""

    id: Annotated[str, Field(max_length=64)]


class ConversationChangeBody(VendorBody):
    """The body of ``POST /v1/conversations/{conversation_id}``."""

    metadata: Pairs | None


class ConversationItemsBody(VendorBody):
    """The body of ``POST /v1/conversations/{conversation_id}/items``."""

    items: Annotated[Items[InputItem], Field(max_length=CONVERSATION_ITEMS_MAX)]


class ConversationBody(VendorBody):
    """The body of ``POST /v1/conversations``."""

    items: Annotated[Items[InputItem], Field(max_length=CONVERSATION_ITEMS_MAX)] | None = None
    metadata: Pairs | None = None


class CompactionRule(RequestBody):
    """When the conversation before a response is compacted, in tokens of its prompt."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Field(ge=1, le=INT64_MAX)] | None = None


class ResponsesBody(SamplingBody):
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
    seed: Seed | None = None
    tools: Items[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice | None = None
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
    conversation: str | ConversationRef | None = None
    prompt: dict[str, Any] | None = None
    session_id: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: CacheOptions | None = None
    background_options: BackgroundOptions | None = None
    context_management: Annotated[Items[CompactionRule], Field(max_length=1)] | None = None
    moderation: Unsupported = None

    @property
    def window_s(self) -> float | None:
        """Seconds within which the response is to be completed; ``None`` for soonest."""
        chosen = self.background_options.completion_window if self.background_options else None
        return None if chosen is None else _WINDOWS_S[chosen]

    @property
    def is_prewarm(self) -> bool:
        """Whether only the prompt is read into the cache."""
        return bool(self.prompt_cache_options and self.prompt_cache_options.prewarm)


def _empty_if_null(value: object) -> object:
    return "" if value is None else value


class InputTokensBody(ResponsesBody):
    """The body of ``POST /v1/responses/input_tokens``; fields of the answer have no effect."""

    model: Annotated[Name | Literal[""], BeforeValidator(_empty_if_null)] = ""
    personality: Unsupported = None


class CompactBody(ResponsesBody):
    """The body of ``POST /v1/responses/compact``.

    Codex sends the tools of the conversation too, so that the beginning of the prompt stays.
    """

    model: Annotated[Name | Literal[""], BeforeValidator(_empty_if_null)] = ""
    input: Annotated[str | Items[InputItem], BeforeValidator(_empty_if_null)] = ""
    stream: Literal[False] | None = None
    background: Literal[False] | None = None
    context_management: Unsupported = None


class InputTokenCount(TypedDict):
    """The length of a prompt in tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class CachedInput(TypedDict):
    """Details of the input tokens."""

    cached_tokens: int
    cache_write_tokens: int


class ResponseUsage(TypedDict):
    """Token counts."""

    input_tokens: int
    input_tokens_details: CachedInput
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ResponseFault(TypedDict):
    """The failure of a response."""

    code: str
    message: str


CacheMiss = Literal["model_changed", "tools_changed", "reasoning_effort_changed", "input_changed"]


class CacheDiagnostics(TypedDict):
    """What the cache had of the prompt, compared with another response; a miss has the rest."""

    type: Literal["cache_miss", "cache_hit", "comparison_response_not_found", "unavailable"]
    reason: NotRequired[CacheMiss]
    cache_missed_tokens: NotRequired[int]


class ResponseObject(TypedDict):
    """A response as it is now."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    conversation: NotRequired[dict[str, str]]
    error: ResponseFault | None
    frequency_penalty: float
    incomplete_details: dict[str, str] | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_diagnostics: NotRequired[CacheDiagnostics | None]
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: NotRequired[int]
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    user: str | None


class CompactedResponse(TypedDict):
    """A conversation that was compacted: the messages of the user, and the compaction."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage


class ConversationObject(TypedDict):
    """A conversation."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]
