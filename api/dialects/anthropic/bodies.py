"""Bodies and replies of ``/v1/messages``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.dialects.anthropic.client_tools import CLIENT_TOOLS
from api.http.bodies import (
    INT64_MAX,
    NAME_CHARS_MAX,
    Budget,
    Items,
    MaxTokensOrZero,
    Name,
    RequestBody,
    SamplingBody,
    Seed,
    StopTexts,
    Unsupported,
    whole,
)

#: Of ``clear_tool_uses``, as at the vendor: tokens behind which it clears, and uses that it keeps.
CLEARED_BEHIND: Final = 100_000
TOOL_USES_KEPT: Final = 3
#: Of ``compact``, as at the vendor: tokens at which it compacts, if the model's context has room.
COMPACTED_AT: Final = 150_000
#: Type of the block with the summary of the conversation before it.
COMPACTION: Final = "compaction"
#: Blocks that change the tools in the middle of a conversation, or need the vendor's machines.
_REFUSED_BLOCKS: Final = frozenset({"tool_addition", "tool_removal", "container_upload"})


def _known_block(kind: str) -> str:
    if kind in _REFUSED_BLOCKS:
        words = "the service has no blocks of type {kind}"
        raise PydanticCustomError("unsupported", words, {"kind": kind})
    return kind


class CitationsConfig(RequestBody):
    """Whether the answer cites a document; this service makes no citations."""

    enabled: Literal[False] | None = None


class ContentBlock(RequestBody):
    """A block; each type uses some of the fields. A note replaces one of an unknown type."""

    type: Annotated[str, AfterValidator(_known_block)]
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    toolset_name: str | None = None
    tool_use_id: str | None = None
    tool_name: str | None = None
    is_error: bool | None = None
    title: str | None = None
    context: str | None = None
    #: Of a text, the citations of an earlier answer.
    citations: CitationsConfig | Items[Any] | None = None
    content: Any = None
    source: Any = None
    cache_control: Any = None
    #: Of a compaction; no conversation here changes its tools on the way.
    tool_changes: Annotated[list[Any], Field(max_length=0)] | None = None

    @model_validator(mode="after")
    def _check_summary(self) -> ContentBlock:
        if self.type != COMPACTION or self.content is None:
            return self
        if not isinstance(self.content, str) or not self.content.strip():
            words = "content of a compaction must be its summary, or null for none"
            raise PydanticCustomError("summary", words)
        return self


class InputMessage(RequestBody):
    """One turn; ``system`` is allowed anywhere in a conversation."""

    role: Literal["user", "assistant", "system"]
    clear_at: Unsupported = None
    output_config: Unsupported = None
    content: str | Items[ContentBlock]


_TOOLSETS: Final[list[JsonValue]] = [
    kind for kind, known in CLIENT_TOOLS.items() if known.is_toolset
]
#: Most pixels or characters that a tool's settings name.
_LENGTH_MAX: Final = 2**31 - 1
Length = Annotated[int, Field(ge=0, le=_LENGTH_MAX)]
#: The searches for tools that run here, by type: the fixed names of the tools.
_SEARCHES: Final = {
    f"{name}{date}": name
    for name in ("tool_search_tool_bm25", "tool_search_tool_regex")
    for date in ("", "_20251119")
}


def _own_tool(kind: str | None) -> str | None:
    if kind not in (None, "custom") and kind not in CLIENT_TOOLS and kind not in _SEARCHES:
        words = "the service does not have the vendor's tool {kind}"
        raise PydanticCustomError("unsupported", words, {"kind": kind})
    return kind


class ToolsetMember(RequestBody):
    """Whether a member of a toolset is offered, and whether only from a search on."""

    enabled: bool | None = None
    defer_loading: bool | None = None


class AnthropicTool(RequestBody):
    """A tool or a toolset that the client runs, or a search for deferred tools, which runs here."""

    # Only a toolset has no name.
    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["name"], "properties": {"name": {"minLength": 1}}},
                {"required": ["type"], "properties": {"type": {"enum": _TOOLSETS}}},
            ]
        }
    )

    name: str = ""
    type: Annotated[str | None, AfterValidator(_own_tool)] = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    defer_loading: bool | None = None
    cache_control: Any = None
    strict: bool | None = None
    input_examples: Items[dict[str, Any]] | None = None
    #: The answer calls tools; programs that do, run on the vendor's machines.
    allowed_callers: Items[Literal["direct"]] | None = None
    display_width_px: Length | None = None
    display_height_px: Length | None = None
    display_number: Length | None = None
    enable_zoom: bool | None = None
    max_characters: Length | None = None
    configs: dict[str, ToolsetMember | None] | None = None

    @model_validator(mode="after")
    def _check_name(self) -> AnthropicTool:
        known = CLIENT_TOOLS.get(self.type or "")
        fixed = known.name if known is not None else self.search
        if known is not None and known.is_toolset:
            if not (self.configs or {}).keys() <= known.members.keys():
                words = "configs has a name that is no member of {kind}"
                raise PydanticCustomError("unsupported", words, {"kind": self.type})
        elif not self.name or (fixed and self.name != fixed):
            words = f"name must be {fixed}" if fixed else "name is required"
            raise PydanticCustomError("tool_name", words)
        return self

    @property
    def search(self) -> str:
        """The fixed name of a search for tools, "" for other tools."""
        return _SEARCHES.get(self.type or "", "")

    def member(self, name: str) -> ToolsetMember:
        """Return the settings of a member of a toolset."""
        return (self.configs or {}).get(name) or ToolsetMember()


class ThinkingSpec(RequestBody):
    """Whether the model reasons, and its largest number of reasoning tokens."""

    type: Literal["enabled", "adaptive", "disabled"]
    display: str | None = None
    budget_tokens: Budget | None = None


class AnthropicToolChoice(RequestBody):
    """Whether a tool may, must or must not be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(RequestBody):
    """The format of the answer."""

    type: Literal["json_schema"]
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class OutputConfig(RequestBody):
    """The effort, which limits the reasoning, and the format; models with levels get the effort."""

    effort: str | None = None
    format: OutputFormat | None = None
    task_budget: Unsupported = None


_Amount = Annotated[int, Field(ge=0, le=INT64_MAX), BeforeValidator(whole)]


class InputTokens(RequestBody):
    """A number of tokens."""

    type: Literal["input_tokens"]
    value: _Amount


class ToolUses(RequestBody):
    """A number of tool uses."""

    type: Literal["tool_uses"]
    value: _Amount


class ThinkingTurns(RequestBody):
    """How many of the latest turns keep their reasoning."""

    type: Literal["thinking_turns", "all"]
    value: _Amount = 0


class ClearThinking(RequestBody):
    """Takes the reasoning out of all turns but the latest ones; Claude Code keeps everything."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"] | ThinkingTurns | None = None

    @property
    def kept_turns(self) -> int | None:
        """How many of the latest turns keep their reasoning; ``None`` for all."""
        if self.keep is None:
            return 1
        return None if self.keep == "all" or self.keep.type == "all" else self.keep.value


class ClearToolUses(RequestBody):
    """Takes the results of older tool uses out of a prompt that is too long."""

    type: Literal["clear_tool_uses_20250919"]
    trigger: InputTokens | ToolUses = InputTokens(type="input_tokens", value=CLEARED_BEHIND)
    keep: ToolUses = ToolUses(type="tool_uses", value=TOOL_USES_KEPT)
    clear_at_least: InputTokens | None = None
    exclude_tools: Items[str] | None = None
    clear_tool_inputs: bool | Items[str] | None = None

    @property
    def kept_uses(self) -> int:
        """How many of the latest tool uses keep their results."""
        return self.keep.value

    def clears_input(self, tool: str) -> bool:
        """Whether the arguments of the cleared calls of a tool go too."""
        wanted = self.clear_tool_inputs
        return tool in wanted if isinstance(wanted, list) else bool(wanted)


class Compact(RequestBody):
    """Puts a summary in the place of the conversation before the newest question.

    Attributes:
        trigger: Tokens of the prompt at which it does so.
        instructions: Added to those of this service for the summary.
        pause_after_compaction: Whether the message has the compaction alone.
    """

    type: Literal["compact_20260112"]
    trigger: InputTokens | None = None
    instructions: str | None = None
    pause_after_compaction: bool | None = None


ClearEdit = ClearThinking | ClearToolUses
ContextEdit = Annotated[ClearEdit | Compact, Field(discriminator="type")]


class ContextManagement(RequestBody):
    """Edits of the prompt, applied in order."""

    edits: Items[ContextEdit] | None = None

    @model_validator(mode="after")
    def _compacts_once(self) -> ContextManagement:
        if sum(isinstance(edit, Compact) for edit in self.edits or ()) > 1:
            raise PydanticCustomError("edits", "edits may compact the conversation only once")
        return self


class Summarize(RequestBody):
    """Makes the message the summary of the conversation, and nothing else.

    Attributes:
        instructions: Replace those of this service; blank ones count as absent.
    """

    type: Literal["summarize"]
    instructions: str | None = None


class ThreadRef(RequestBody):
    """Whether the messages begin a conversation that the service holds, or continue one."""

    type: Literal["create", "continue"]
    previous_message_id: Annotated[str, Field(max_length=NAME_CHARS_MAX)] | None = None

    @model_validator(mode="after")
    def _names_its_message(self) -> ThreadRef:
        if (self.type == "continue") == (self.previous_message_id is None):
            words = "previous_message_id belongs to continue, and to nothing else"
            raise PydanticCustomError("previous_message", words)
        return self


class Metadata(RequestBody):
    """The client; Claude Code puts its session into ``user_id``."""

    user_id: str | None = None


class CountBody(SamplingBody):
    """The fields of a request that its prompt depends on; ``seed`` is an addition."""

    model: Name
    messages: Annotated[Items[InputMessage], Field(min_length=1)]
    system: str | Items[ContentBlock] | None = None
    stop_sequences: StopTexts | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    tools: Items[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: ThinkingSpec | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    seed: Seed | None = None
    metadata: Metadata | None = None
    cache_control: Any = None
    context_management: ContextManagement | None = None
    compaction: Summarize | None = None
    container: Unsupported = None
    mcp_servers: Annotated[list[Any], Field(max_length=0)] | None = None
    thread: ThreadRef | None = None

    @property
    def user_id(self) -> str | None:
        """Return ``metadata.user_id``."""
        return self.metadata.user_id if self.metadata is not None else None


class DiagnosticsSpec(RequestBody):
    """The earlier message with whose prompt the cache diagnosis compares."""

    previous_message_id: Annotated[str, Field(max_length=NAME_CHARS_MAX)] | None = None


class MessagesBody(CountBody):
    """The body of ``POST /v1/messages``."""

    max_tokens: MaxTokensOrZero
    stream: bool | None = None
    diagnostics: DiagnosticsSpec | None = None

    @model_validator(mode="after")
    def _compacts_alone(self) -> MessagesBody:
        if self.compaction is None:
            return self
        config, choice = self.output_config, self.tool_choice
        unfit = {
            "context_management": self.context_management is not None,
            "stop_sequences": bool(self.stop_sequences),
            "output_format": self.output_format is not None,
            "output_config.format": config is not None and config.format is not None,
            "tool_choice": choice is not None and choice.type in ("any", "tool"),
        }
        for name in (name for name, is_set in unfit.items() if is_set):
            words = "{name} has no meaning for compaction, whose message is a summary"
            raise PydanticCustomError("unsupported", words, {"name": name})
        return self


# --- Anthropic -----------------------------------------------------------------------------


class ThoughtTokens(TypedDict):
    """Details of the output tokens."""

    thinking_tokens: int


class IterationUsage(TypedDict):
    """Token counts of one of the jobs of a message."""

    type: Literal["compaction", "message"]
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnthropicUsage(TypedDict):
    """Token counts; the prompt has the sum of the three input counts.

    Those of a compaction are in ``iterations`` alone.
    """

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThoughtTokens
    iterations: NotRequired[list[IterationUsage]]


class OriginalCount(TypedDict):
    """The length of the prompt before its edits."""

    original_input_tokens: int


class AppliedContextEdit(TypedDict):
    """An edit that changed the prompt; its type decides which count it has."""

    type: Literal["clear_thinking_20251015", "clear_tool_uses_20250919"]
    cleared_input_tokens: int
    cleared_thinking_turns: NotRequired[int]
    cleared_tool_uses: NotRequired[int]


class AppliedEdits(TypedDict):
    """The edits that changed the prompt, in order."""

    applied_edits: list[AppliedContextEdit]


class TokenCount(TypedDict):
    """The reply of ``POST /v1/messages/count_tokens``."""

    input_tokens: int
    context_management: NotRequired[OriginalCount]


class AnthropicBlock(TypedDict):
    """A content block; its type decides which of the other keys it has."""

    type: Literal[
        "text",
        "thinking",
        "tool_use",
        "server_tool_use",
        "tool_search_tool_result",
        "compaction",
    ]
    text: NotRequired[str]
    thinking: NotRequired[str]
    signature: NotRequired[str]
    id: NotRequired[str]
    name: NotRequired[str]
    toolset_name: NotRequired[str]
    input: NotRequired[dict[str, Any]]
    tool_use_id: NotRequired[str]
    content: NotRequired[Mapping[str, Any] | str | None]


CacheMiss = Literal["model_changed", "system_changed", "tools_changed", "messages_changed"]


class CacheMissReason(TypedDict):
    """Why the cache could not reuse the whole prompt of the earlier message."""

    type: CacheMiss | Literal["previous_message_not_found", "unavailable"]
    cache_missed_input_tokens: NotRequired[int]


class MessageDiagnostics(TypedDict):
    """The reason, ``None`` where the prompt was not known in time."""

    cache_miss_reason: CacheMissReason | None


class AnthropicMessage(TypedDict):
    """The reply of ``POST /v1/messages``."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnthropicBlock]
    stop_reason: str | None
    stop_sequence: str | None
    diagnostics: NotRequired[MessageDiagnostics | None]
    context_management: NotRequired[AppliedEdits]
    usage: AnthropicUsage
