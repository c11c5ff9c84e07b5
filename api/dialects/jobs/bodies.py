"""Bodies and replies of ``/v1/jobs`` and ``/v1/webhooks``."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.dialects.encoding import ResponseLogprob
from api.dialects.openai_chat.bodies import ChatMessage, FunctionTool
from api.http.bodies import (
    JOB_ID_PATTERN,
    MAX_TOKENS_CEILING,
    NAME_PATTERN,
    PAIRS_MAX,
    VALUE_CHARS_MAX,
    Items,
    MaxTokens,
    Name,
    NativeBody,
    SamplingBody,
    Seed,
    StartAfter,
    StopText,
    StopTexts,
    WebhookBody,
    whole,
)
from domain.job.cancel import BulkResult
from domain.job.submit import Unique

#: Longest deadline: thirty days.
WITHIN_MAX_S = 30 * 24 * 3600
WithinS = Annotated[float, Field(gt=0, le=WITHIN_MAX_S)]

#: Most urgent of the waiting jobs of a line.
URGENCY_MAX = 9
#: A period of at most thirty days: a number of seconds, minutes, hours or days.
PERIOD_PATTERN = (
    r"^(?:[1-9][0-9]{0,5}s|[1-9][0-9]{0,3}m|[1-9][0-9]?h|[1-6][0-9][0-9]h|[1-9]d|[12][0-9]d|30d)$"
)
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
UniqueFact = Literal["prompt", "model", "agent_id", "tags", "metadata"]

#: Tags of a job, and the keys of its metadata.
TAGS_MAX = 16
TAG_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,63}$"
Tag = Annotated[str, Field(pattern=TAG_PATTERN)]
Tags = Annotated[Items[Tag], Field(max_length=TAGS_MAX)]
Metadata = Annotated[
    dict[Tag, Annotated[str, Field(max_length=VALUE_CHARS_MAX)]], Field(max_length=PAIRS_MAX)
]
Urgency = Annotated[int, Field(ge=0, le=URGENCY_MAX), BeforeValidator(whole)]

_ONE_OF_BOTH: JsonDict = {
    "oneOf": [
        {
            "required": ["prompt"],
            "properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}},
        },
        {
            "required": ["messages"],
            "properties": {"messages": {"type": "array"}, "prompt": {"type": "null"}},
        },
    ]
}


class OptionsBody(SamplingBody, NativeBody):
    """Options of a generation."""

    model: Name | None = None
    max_tokens: MaxTokens | None = None
    stop: StopText | StopTexts | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    thinking: bool | None = None


class PromptBody(OptionsBody):
    """A generation to enqueue: either a ``prompt`` or ``messages``."""

    model_config = ConfigDict(json_schema_extra=_ONE_OF_BOTH)

    prompt: str | None = None
    messages: Annotated[Items[ChatMessage], Field(min_length=1)] | None = None
    seed: Seed | None = None
    priority: Literal["interactive", "batch"] | None = None
    start_after: StartAfter | None = None
    start_within_s: WithinS | None = None
    finish_within_s: WithinS | None = None
    webhook: WebhookBody | None = None
    tags: Tags | None = None
    metadata: Metadata | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            code = "prompt_or_messages"
            raise PydanticCustomError(code, "give either prompt or messages")
        return self


class UniqueBody(NativeBody):
    """What makes a job the only one of its kind; ``for`` is seconds or a text such as ``1h``."""

    by: Annotated[Items[UniqueFact], Field(min_length=1, max_length=8)]
    period: Annotated[WithinS | Annotated[str, Field(pattern=PERIOD_PATTERN)], Field(alias="for")]

    @property
    def unique(self) -> Unique:
        """Return it in the terms of the domain."""
        period = self.period
        if isinstance(period, str):
            period = int(period[:-1]) * _UNITS_S[period[-1]]
        return Unique(by=tuple(sorted(set(self.by))), seconds=float(period))


JobName = Annotated[str, Field(pattern=JOB_ID_PATTERN)]
#: A name by which a prompt refers to an earlier job.
AfterName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
#: Jobs that a job may wait for.
AFTER_MAX = 100


class AfterBody(NativeBody):
    """An earlier job, and how it must have ended."""

    job: JobName
    condition: Literal["completed", "ended"] = "completed"


AfterJob = JobName | AfterBody


class JobBody(PromptBody):
    """The body of ``POST /v1/jobs``: a generation from either a ``prompt`` or ``messages``.

    ``reject_after`` is another name of ``start_within_s``; the shorter of the two counts.
    ``after`` names earlier jobs that it waits for. ``{{after.NAME.text}}``, or the index in a list
    instead of the name, stands for the text of an answer. ``otherwise`` is how it ends if one of
    them ended otherwise: as failed, or skipped as cancelled.
    """

    unique: UniqueBody | None = None
    urgency: Urgency | None = None
    reject_after: WithinS | None = None

    after: (
        Annotated[Items[AfterJob], Field(min_length=1, max_length=AFTER_MAX)]
        | Annotated[dict[AfterName, AfterJob], Field(min_length=1, max_length=AFTER_MAX)]
        | None
    ) = None
    otherwise: Literal["fail", "skip"] = "fail"

    system: str | None = None
    tools: Items[FunctionTool] | None = None
    agent_id: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None


class ForkSampling(SamplingBody, NativeBody):
    """How the tokens after the fork are drawn, where that differs from the parent."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: Seed | None = None


class JobForkBody(NativeBody):
    """The body of ``POST /v1/jobs/{job_id}/fork``: the answer goes on after ``at`` tokens.

    ``max_tokens`` counts the whole answer. ``model`` can only be another one where ``at`` is 0.
    """

    at: Annotated[int, Field(ge=0, le=MAX_TOKENS_CEILING), BeforeValidator(whole)]
    model: Name | None = None
    max_tokens: MaxTokens | None = None
    sampling: ForkSampling | None = None


#: Jobs that one request may cancel or retry.
BULK_MAX = 500


class JobFilterBody(NativeBody):
    """Which jobs are meant; at least one field. The words are those of the filters of the list."""

    status: Literal["held", "queued", "running", "failed", "cancelled", "expired"] | None = None
    agent_id: Name | None = None
    model: Name | None = None
    priority: Literal["interactive", "batch"] | None = None
    tags: Tags | None = None
    metadata: Metadata | None = None
    since: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None

    @model_validator(mode="after")
    def _names_jobs(self) -> Self:
        if not any(value for _, value in self):
            code, msg = "empty_filter", "a filter needs at least one field"
            raise PydanticCustomError(code, msg)
        return self


class BulkBody(NativeBody):
    """The body of ``POST /v1/jobs:cancel`` and ``POST /v1/jobs:retry``."""

    filter: JobFilterBody
    dry_run: bool = False
    limit: Annotated[int, Field(ge=1, le=BULK_MAX), BeforeValidator(whole)] = BULK_MAX


class WebhookObject(TypedDict):
    """A message to one receiver about the end of a job or a batch, and its delivery.

    ``error`` and ``status`` belong to the last attempt. During an attempt, ``next_attempt_at`` is
    the time at which the service considers it lost.
    """

    id: str
    object: Literal["webhook"]
    type: str
    subject: str
    url: str
    state: Literal["pending", "delivered", "failed"]
    attempts: int
    created_at: str
    last_attempt_at: str | None
    next_attempt_at: str | None
    status: int | None
    error: str | None


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


WaitingName = Literal["place", "memory", "prefix", "model", "paused", "time", "jobs"]


class AfterObject(TypedDict):
    """An earlier job that a job waits for."""

    name: str
    job: str
    condition: Literal["completed", "ended"]


class JobParent(TypedDict):
    """The job whose answer a fork continues after the first ``at`` tokens."""

    id: str
    at: int


class JobObject(TypedDict):
    """A job; lists leave out the optional keys.

    ``queue_position`` counts the waiting jobs that will begin before this one, in the queue and in
    the workers. ``waiting_for`` is what a waiting job needs before it runs. If it is ``time`` or
    ``jobs``, the job is held until ``start_after``, and until those of ``after`` have ended. If it
    is ``model``, that is ``bound_model``: the registered model that must answer the job, ``null``
    if it follows the loaded model. ``answered_by`` is the model of its latest attempt. ``warning``
    names what of the request has no effect.
    """

    id: str
    object: Literal["job"]
    status: Literal["held", "queued", "running", "completed", "failed", "cancelled", "expired"]
    kind: Literal["generation", "embedding"]
    protocol: str
    model: str
    bound_model: str | None
    answered_by: str | None
    priority: Literal["interactive", "batch"]
    urgency: int
    agent_id: str | None
    tags: list[str]
    metadata: dict[str, str]
    start_after: str | None
    forked_from: JobParent | None
    after: list[AfterObject]
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
    warning: NotRequired[str | None]


class BulkRow(TypedDict):
    """What became of one job; ``status`` is the one after it.

    ``matched`` in a dry run. ``requested``: its worker ends it. ``unchanged``: it had ended.
    """

    id: str
    status: str
    result: BulkResult
    error: JobError | None


class BulkReport(TypedDict):
    """The jobs of a filter; ``has_more``: the same request again finds others."""

    object: Literal["list"]
    dry_run: bool
    data: list[BulkRow]
    has_more: bool


class DurableMessage(TypedDict):
    """A part of an answer or the end of its job; the kind decides what else it has."""

    kind: Literal["thinking", "text", "tool_start", "tool_input", "tool_end", "finished", "failed"]


class JobStep(TypedDict):
    """A step of a job; ``position`` is ``null`` for what a worker measured between two events.

    ``after_ms`` counts from the acceptance, ``took_ms`` is the duration where it is known.
    """

    what: str
    at: str
    after_ms: float
    text: str
    took_ms: float | None
    attempt: int | None
    position: int | None


class JobBar(TypedDict):
    """A stretch of time of an attempt, in milliseconds since the acceptance.

    ``to_ms`` is ``null`` while it lasts. ``run`` stands for phases that are not recorded, because
    the attempt runs or ended without an answer, ``lost`` for an attempt whose worker died.
    """

    kind: Literal["held", "queued", "restore", "prefill", "decode", "run", "lost"]
    attempt: int
    from_ms: float
    to_ms: float | None


class JobEdge(AfterObject):
    """A job before or behind another one with its present status; ``null`` if it is not known.

    ``name`` and ``condition`` are those that the later of the two gave.
    """

    status: str | None


class JobTimeline(TypedDict):
    """Where the time of a job went; ``at`` is the instant of this reply.

    ``after`` are the jobs that it waited for, ``successors`` those that wait for it or did, the
    newest 100.
    """

    object: Literal["job.timeline"]
    job: str
    at: str
    ended: bool
    total_ms: float
    queued_ms: float
    attempts: int
    after: list[JobEdge]
    successors: list[JobEdge]
    steps: list[JobStep]
    bars: list[JobBar]
