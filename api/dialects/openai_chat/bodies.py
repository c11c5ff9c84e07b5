"""Bodies and replies of OpenAI's chat completions."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.dialects.encoding import ChatLogprobs
from api.http.bodies import (
    NAME_PATTERN,
    Answers,
    Items,
    MaxTokens,
    Name,
    Pairs,
    RequestBody,
    SamplingBody,
    Seed,
    StopText,
    StopTexts,
    Unsupported,
    VendorBody,
    whole,
)
from domain.chat.logprobs import TOP_MAX
from domain.errors import InvalidRequest

COMPLETION_ID_PATTERN = r"^chatcmpl-[0-9a-f]{32}$"
#: Limit of OpenAI's text completions.
TEXT_TOP_MAX: Final = 5

# The validator is last, so that the schema of the number has the limits.
TopLogprobs = Annotated[int, Field(ge=0, le=TOP_MAX), BeforeValidator(whole)]
Verbosity = Literal["low", "medium", "high"]
TextTop = Annotated[int, Field(ge=0, le=TEXT_TOP_MAX), BeforeValidator(whole)]


def logprobs_wanted(*, wanted: bool, top: int | None) -> int | None:
    """Return the number of alternatives for each token of a chat completion.

    Returns:
        ``None`` if the reply has no log probabilities.

    Raises:
        InvalidRequest: The request has ``top_logprobs`` without ``logprobs``.
    """
    if top is not None and not wanted:
        msg = "logprobs must be true where top_logprobs is given"
        raise InvalidRequest(msg, field="top_logprobs")
    return (top or 0) if wanted else None


class ImageUrl(RequestBody):
    """The image of a part."""

    url: str


class ContentPart(RequestBody):
    """A part of any type; only texts, refusals and images are used.

    ``image_url`` is a URL in Responses, and an object with one elsewhere.
    """

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | ImageUrl | None = None

    @property
    def url(self) -> str | None:
        """Return the URL of its image."""
        return self.image_url.url if isinstance(self.image_url, ImageUrl) else self.image_url


class FunctionCall(RequestBody):
    """The function of a tool call; ``arguments`` is JSON in a string."""

    name: str
    arguments: str | None = None


class ToolCallSpec(RequestBody):
    """A tool call of an earlier turn."""

    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall | None = None


class ChatMessage(RequestBody):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Items[ContentPart] | None = None
    reasoning_content: str | None = None
    tool_calls: Items[ToolCallSpec] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    refusal: str | None = None
    audio: Unsupported = None
    function_call: Unsupported = None


class FunctionSpec(RequestBody):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(RequestBody):
    """A tool."""

    type: Literal["function"]
    function: FunctionSpec | None = None


class NamedFunction(RequestBody):
    """The name of a function."""

    name: str


class ChatNamedTool(RequestBody):
    """A function by its name."""

    type: str
    function: NamedFunction | None = None


class AllowedTools(RequestBody):
    """The tools that may be called, or of which one must be called (``required``)."""

    mode: Literal["auto", "required"] | None = None
    tools: Items[ChatNamedTool] | None = None


class ChatToolChoice(ChatNamedTool):
    """A function that must be called, or ``allowed_tools``."""

    type: Literal["function", "allowed_tools"]
    allowed_tools: AllowedTools | None = None


class AnswerSchema(RequestBody):
    """A JSON Schema for the answer; its name has no effect."""

    description: str | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(RequestBody):
    """The format of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: AnswerSchema | None = None


class StreamOptions(RequestBody):
    """Whether the last chunk of a stream has the usage."""

    include_usage: bool | None = None


class CompletionParameters(SamplingBody):
    """The fields of both kinds of completions.

    ``top_k``, ``min_p`` and ``session_id`` are additions that local servers share.
    """

    model: Name
    n: Answers | None = None
    max_tokens: MaxTokens | None = None
    stop: StopText | StopTexts | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: Seed | None = None
    session_id: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    prompt_cache_key: str | None = None


class TemplateOptions(RequestBody):
    """Variables of the chat template; one that has no effect here is refused."""

    model_config = ConfigDict(extra="forbid")

    enable_thinking: bool | None = None


class ReasoningSwitch(RequestBody):
    """Reasoning as clients of OpenRouter switch it; a request to hide it is refused."""

    enabled: bool | None = None
    effort: str | None = None
    max_tokens: MaxTokens | None = None
    exclude: Literal[False] | None = None


class ChatCompletionBody(CompletionParameters):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[Items[ChatMessage], Field(min_length=1)]
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: Items[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    verbosity: Verbosity | None = None
    store: bool | None = None
    metadata: Pairs | None = None
    modalities: Items[Literal["text"]] | None = None
    audio: Unsupported = None
    function_call: Unsupported = None
    functions: Unsupported = None
    moderation: Unsupported = None
    web_search_options: Unsupported = None
    enable_thinking: bool | None = None
    chat_template_kwargs: TemplateOptions | None = None
    reasoning: ReasoningSwitch | None = None
    include_reasoning: Literal[True] | None = None
    think: bool | Literal["low", "medium", "high"] | None = None

    @property
    def effort(self) -> str | None:
        """The effort of the reasoning, by the first of its names that the request has."""
        named = self.reasoning.effort if self.reasoning is not None else None
        return (
            self.reasoning_effort or named or (self.think if isinstance(self.think, str) else None)
        )

    @property
    def reasoning_tokens(self) -> int | None:
        """Most tokens of the reasoning, if the request sets a limit."""
        return self.reasoning.max_tokens if self.reasoning is not None else None

    @property
    def is_forbidden(self) -> bool:
        """Whether reasoning is switched off, apart from the effort."""
        return self._switch is False

    @property
    def is_thinking(self) -> bool:
        """Whether the model is asked to reason."""
        if self._switch is not None:
            return self._switch
        if self.effort is not None:
            return self.effort != "none"
        return self.reasoning_tokens is not None

    @property
    def _switch(self) -> bool | None:
        kwargs, routed = self.chat_template_kwargs, self.reasoning
        switches = (
            kwargs.enable_thinking if kwargs is not None else None,
            self.enable_thinking,
            routed.enabled if routed is not None else None,
            self.think if isinstance(self.think, bool) else None,
        )
        return next((one for one in switches if one is not None), None)


class CachedTokens(TypedDict):
    """Details of the prompt tokens."""

    cached_tokens: int


class ReasoningTokens(TypedDict):
    """Details of the generated tokens."""

    reasoning_tokens: int


class OpenAIUsage(TypedDict):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class OpenAIFunction(TypedDict):
    """The name of a function and its arguments as JSON in a string."""

    name: str
    arguments: str


class OpenAIToolCall(TypedDict):
    """A tool call."""

    id: str
    type: Literal["function"]
    function: OpenAIFunction


class OpenAIMessage(TypedDict):
    """The message of a choice."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[OpenAIToolCall]]


class OpenAIChoice(TypedDict):
    """One answer."""

    index: int
    message: OpenAIMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(TypedDict):
    """The reply of ``POST /v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[OpenAIChoice]
    usage: OpenAIUsage


class CompletionChangeBody(VendorBody):
    """The body of ``POST /v1/chat/completions/{completion_id}``."""

    metadata: Pairs | None


class StoredCompletion(ChatCompletion):
    """A stored completion."""

    metadata: dict[str, str]
