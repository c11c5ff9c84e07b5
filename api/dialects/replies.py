"""Types of replies; presenters and encoders build them, and OpenAPI gets its schemas from them."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.dialects.openai_chat.bodies import ChatLogprobs, ResponseLogprob
from api.operate.engine_bodies import WebhookObject

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


# --- OpenAI --------------------------------------------------------------------------------


class CachedTokens(TypedDict):
    """Details of the prompt tokens."""

    cached_tokens: int


class ReasoningTokens(TypedDict):
    """Details of the completion tokens."""

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


# --- shared --------------------------------------------------------------------------------


class ModelObject(TypedDict):
    """A model, with the fields of both Anthropic and OpenAI."""

    id: str
    object: Literal["model"]
    type: Literal["model"]
    display_name: str
    created: int
    created_at: str
    owned_by: str
    lifecycle: Literal["active"]
    description: str
    context_length: int | None
    max_input_tokens: int | None
    state: Literal["loaded", "available", "missing", "failed"]
    size_bytes: int | None
    digest: str | None


class ModelList(TypedDict):
    """The registered models, the loaded one first."""

    object: Literal["list"]
    data: list[ModelObject]
    has_more: bool
    first_id: str | None
    last_id: str | None


# --- native --------------------------------------------------------------------------------


class JobUsage(TypedDict):
    """Token counts of a job."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    total_tokens: int


class JobTimings(TypedDict):
    """Durations of the phases of a job; ``restore_ms`` is a part of ``prefill_ms``."""

    queued_ms: float
    admission_ms: float
    restore_ms: float
    prefill_ms: float
    first_token_ms: float
    decode_ms: float


class JobError(TypedDict):
    """The failure of the latest attempt."""

    code: str
    message: str


class JobToolCall(TypedDict):
    """A tool call; if it is not complete, its arguments are truncated JSON."""

    id: str
    name: str
    arguments: str
    is_complete: bool


class JobOutput(TypedDict):
    """The answer; ``tool_calls`` only if it has any, the others only if requested.

    Each of ``embeddings`` is a vector in base64: little-endian floats of 32 bits.
    """

    text: str
    thinking: str
    tool_calls: NotRequired[list[JobToolCall]]
    logprobs: NotRequired[list[ResponseLogprob]]
    embeddings: NotRequired[list[str]]


class JobLinks(TypedDict):
    """Paths of the operations on a job."""

    self: str
    stream: str
    cancel: str
    retry: str


class JobEstimate(TypedDict):
    """Seconds from now until an open job begins and ends; ``null`` where it is unknown."""

    starts_in_s: float | None
    finishes_in_s: float | None


class JobDivergence(TypedDict):
    """The first difference of a prompt from the most similar earlier one."""

    at_token: int
    cause: str
    place: str
    before: str
    now: str


class JobCache(TypedDict):
    """The part of a prompt that was cached when its job began."""

    prompt_tokens: int
    cached_tokens: int
    source: str
    known_tokens: int
    missed_tokens: int
    compared_with: str | None
    divergence: JobDivergence | None


WaitingName = Literal["place", "memory", "prefix", "model", "paused"]


class JobObject(TypedDict):
    """A job; lists leave out the optional keys.

    ``queue_position`` counts the waiting jobs that will begin before this one, in the queue and in
    the workers. ``waiting_for`` is what a waiting job needs before it runs; if it is ``model``,
    that is ``bound_model``: the registered model that must answer the job, ``null`` if it follows
    the loaded model. ``answered_by`` is the model of its latest attempt.
    """

    id: str
    object: Literal["job"]
    status: Literal["queued", "running", "completed", "failed", "cancelled", "expired"]
    kind: Literal["generation", "embedding"]
    protocol: str
    model: str
    bound_model: str | None
    answered_by: str | None
    priority: Literal["interactive", "batch"]
    agent_id: str | None
    start_by: str | None
    finish_by: str | None
    request_id: str
    trace_id: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    attempt: int
    cancel_requested: bool
    stop_reason: str | None
    stop_sequence: str | None
    usage: JobUsage
    timings: JobTimings
    error: JobError | None
    links: JobLinks
    queue_position: int | None
    waiting_for: WaitingName | None
    estimate: JobEstimate | None
    output: NotRequired[JobOutput | None]
    cache: NotRequired[JobCache | None]
    webhooks: NotRequired[list[WebhookObject]]


class JobList(TypedDict):
    """A page, newest first; ``before=<next_before>`` returns the next one."""

    object: Literal["list"]
    data: list[JobObject]
    has_more: bool
    next_before: str | None


class Health(TypedDict):
    """The state of the service.

    ``checks`` has ``ok``, a state or the problem of each part; ``reasons`` has the problems.
    """

    status: Literal["ok", "degraded", "unavailable"]
    checks: dict[str, str]
    reasons: list[str]


class Root(TypedDict):
    """The service and its links."""

    name: str
    version: str
    model: str
    links: dict[str, str]


# --- errors --------------------------------------------------------------------------------


class AnthropicErrorDetail(TypedDict):
    """The type and the message of an error."""

    type: str
    message: str


class AnthropicError(TypedDict):
    """An error in Anthropic's format."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


class OpenAIErrorDetail(TypedDict):
    """The message of an error, its type, and the field that caused it."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(TypedDict):
    """An error in OpenAI's format."""

    error: OpenAIErrorDetail


class Problem(TypedDict):
    """An error as RFC 9457 problem details.

    A conflict with the turn of an agent has the number of its ``turn`` and its open ``job``.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    field: NotRequired[str]
    turn: NotRequired[int]
    job: NotRequired[str | None]
