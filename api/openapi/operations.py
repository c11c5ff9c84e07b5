"""What each route takes and gives; a test holds this against the table of routes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from api.http.messages import Dialect
from api.http.request_headers import KEY_CHARS_MAX, KEY_PATTERN
from api.openapi.parameters import header, limit, path, query
from api.protocols.native.stream import CURSOR_PATTERN
from api.schemas.anthropic import CountBody, MessagesBody
from api.schemas.base import INT64_MAX, JOB_ID_PATTERN, NAME_PATTERN, WEBHOOK_ID_PATTERN
from api.schemas.jobs import JobBody
from api.schemas.openai_chat import ChatCompletionBody
from api.schemas.replies import (
    AnthropicMessage,
    ChatCompletion,
    EventList,
    Health,
    JobList,
    JobObject,
    ModelList,
    ModelObject,
    Root,
    TokenCount,
)
from api.schemas.webhooks import WebhookList, WebhookObject
from domain.values import JobStatus, Priority
from domain.webhook.delivery import WebhookState


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One route.

    Attributes:
        id: ``operationId``.
        summary: One line.
        reply: Shape of the JSON answer; ``None`` where there is none.
        dialects: Whose errors it gives; more than one where a header decides.
        status: Of the answer that is hoped for.
        body: Shape of the JSON body.
        example: A body that works.
        parameters: As OpenAPI spells them.
        streams: Whether the answer may be a stream of events.
        missing: Whether what the path names may not exist.
        extra: Further responses by status.
        links: From a fresh job to the routes that take its id.
        media: Type of an answer that is not JSON.
        body_media: Type of the body.
        body_required: Whether a request without a body is refused.
        ended: Whether 200 with the same shape says that what was begun has ended already.
    """

    id: str
    summary: str
    reply: Any = None
    dialects: tuple[Dialect, ...] = (Dialect.NATIVE,)
    status: int = 200
    body: Any = None
    example: Mapping[str, Any] | None = None
    parameters: tuple[Mapping[str, Any], ...] = ()
    streams: bool = False
    missing: bool = False
    extra: Mapping[int, str] = field(default_factory=dict)
    links: bool = False
    media: str | None = None
    body_media: str = "application/json"
    body_required: bool = True
    ended: bool = False


_USER_TURN: Final = {"role": "user", "content": "Say hello."}
_JOB_ID_TEXT: Final = {"type": "string", "pattern": JOB_ID_PATTERN}
_JOB_ID: Final = path("job_id", _JOB_ID_TEXT, "job-" + "0" * 32)
_WEBHOOK_ID: Final = path(
    "webhook_id", {"type": "string", "pattern": WEBHOOK_ID_PATTERN}, "webhook-" + "0" * 32
)
_INSTANT: Final = {"type": "string", "format": "date-time"}
_AGENT: Final = {"type": "string", "pattern": NAME_PATTERN}


IDEMPOTENCY_KEY: Final = header(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": KEY_CHARS_MAX, "pattern": KEY_PATTERN},
    "requests of one key are one job; with another request it is refused",
)
KEY_REFUSED: Final = "The idempotency key came before with another request"
QUEUE_FULL: Final = "Too many jobs are waiting; Retry-After says when to try again"
#: By method and pattern.
OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    ("POST", "/v1/messages"): Operation(
        id="createMessage",
        summary="Answer a turn in Anthropic's Messages format",
        dialects=(Dialect.ANTHROPIC,),
        body=MessagesBody,
        example={"model": "semantic-demo", "max_tokens": 32, "messages": [_USER_TURN]},
        reply=AnthropicMessage,
        streams=True,
        parameters=(IDEMPOTENCY_KEY,),
        extra={409: f"The job was cancelled. {KEY_REFUSED}", 429: QUEUE_FULL},
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        id="countTokens",
        summary="Say how many tokens the prompt of a request has",
        dialects=(Dialect.ANTHROPIC,),
        body=CountBody,
        example={"model": "semantic-demo", "messages": [_USER_TURN]},
        reply=TokenCount,
        extra={429: "Too many prompts wait to be counted"},
    ),
    ("POST", "/v1/chat/completions"): Operation(
        id="createChatCompletion",
        summary="Answer a turn in OpenAI's chat format",
        dialects=(Dialect.OPENAI,),
        body=ChatCompletionBody,
        example={"model": "semantic-demo", "max_tokens": 32, "messages": [_USER_TURN]},
        reply=ChatCompletion,
        streams=True,
        parameters=(IDEMPOTENCY_KEY,),
        extra={409: f"The job was cancelled. {KEY_REFUSED}", 429: QUEUE_FULL},
    ),
    ("GET", "/v1/models"): Operation(
        id="listModels",
        summary="List the names under which the loaded model is served",
        dialects=(Dialect.OPENAI, Dialect.ANTHROPIC),
        reply=ModelList,
    ),
    ("GET", "/v1/models/{model_id}"): Operation(
        id="getModel",
        summary="Show one model",
        dialects=(Dialect.OPENAI, Dialect.ANTHROPIC),
        reply=ModelObject,
        missing=True,
        parameters=(
            {
                "name": "model_id",
                "in": "path",
                "required": True,
                "schema": {"type": "string", "minLength": 1},
                "example": "semantic-demo",
            },
        ),
    ),
    ("POST", "/v1/jobs"): Operation(
        id="createJob",
        summary="Queue a generation",
        status=202,
        body=JobBody,
        example={"prompt": "Say hello.", "max_tokens": 32},
        reply=JobObject,
        links=True,
        parameters=(
            IDEMPOTENCY_KEY,
            header(
                "Prefer",
                {"type": "string", "example": "wait=30"},
                "wait=n holds the answer back until the job has ended, n seconds at most",
            ),
        ),
        extra={409: KEY_REFUSED, 429: QUEUE_FULL},
        ended=True,
    ),
    ("GET", "/v1/jobs"): Operation(
        id="listJobs",
        summary="List jobs, newest first",
        reply=JobList,
        parameters=(
            limit(20, 100),
            query("before", _JOB_ID_TEXT, "only jobs older than this one"),
            query("status", {"type": "string", "enum": [one.value for one in JobStatus]}, "state"),
            query("agent_id", _AGENT, "only jobs of this agent"),
            query("model", {"type": "string"}, "only jobs that asked for this model"),
            query("priority", {"type": "string", "enum": [one.value for one in Priority]}, "queue"),
            query(
                "since",
                _INSTANT,
                "only jobs accepted at this instant or later",
            ),
        ),
    ),
    ("GET", "/v1/jobs/{job_id}"): Operation(
        id="getJob",
        summary="Show a job, with its answer once there is one",
        reply=JobObject,
        missing=True,
        parameters=(_JOB_ID,),
    ),
    ("GET", "/v1/jobs/{job_id}/stream"): Operation(
        id="streamJob",
        summary="Follow the numbered items of a job from any point",
        streams=True,
        missing=True,
        extra={204: "The job has ended and the client has all of it"},
        parameters=(
            _JOB_ID,
            query(
                "after", {"type": "string", "pattern": CURSOR_PATTERN}, "last item that is known"
            ),
            header(
                "Last-Event-ID",
                {"type": "string", "pattern": CURSOR_PATTERN},
                "goes before the query's after",
            ),
        ),
    ),
    ("POST", "/v1/jobs/{job_id}/cancel"): Operation(
        id="cancelJob",
        summary="Ask for the end of a job; asking again changes nothing",
        reply=JobObject,
        missing=True,
        parameters=(_JOB_ID,),
    ),
    ("POST", "/v1/jobs/{job_id}/retry"): Operation(
        id="retryJob",
        summary="Put a job that ended without an answer back into its queue",
        status=202,
        reply=JobObject,
        missing=True,
        parameters=(_JOB_ID,),
        extra={409: "The job is open, or has its answer"},
    ),
    ("GET", "/v1/webhooks"): Operation(
        id="listWebhooks",
        summary="List what receivers were told of ends, newest first",
        reply=WebhookList,
        parameters=(
            limit(20, 100),
            query("before", {"type": "string", "pattern": WEBHOOK_ID_PATTERN}, "only older ones"),
            query(
                "state", {"type": "string", "enum": [one.value for one in WebhookState]}, "state"
            ),
        ),
    ),
    ("POST", "/v1/webhooks/{webhook_id}/retry"): Operation(
        id="retryWebhook",
        summary="Send a webhook again, at once and with all its tries",
        status=202,
        reply=WebhookObject,
        missing=True,
        parameters=(_WEBHOOK_ID,),
    ),
    ("GET", "/v1/events"): Operation(
        id="listEvents",
        summary="Read the event log in order, or follow it as a stream of events",
        reply=EventList,
        streams=True,
        parameters=(
            header(
                "Last-Event-ID",
                {"type": "integer", "minimum": 0, "maximum": INT64_MAX},
                "position of the last event that is known; before the query's after",
            ),
            query(
                "after",
                {"type": "integer", "minimum": 0, "maximum": INT64_MAX, "default": 0},
                "position before the first event wanted",
            ),
            limit(100, 1000),
            query("stream", _AGENT, "only events of this stream"),
            query(
                "type",
                {"type": "array", "items": {"type": "string"}, "maxItems": 32},
                "only events of these types",
            ),
            query("agent_id", _AGENT, "only events of this agent and of its jobs"),
            query("since", _INSTANT, "only events recorded at this instant or later"),
            query("until", _INSTANT, "only events recorded before it; a stream ends there"),
        ),
        extra={204: "The stream has told all that was recorded before until"},
    ),
    ("GET", "/health/live"): Operation(
        id="healthLive", summary="The process answers", reply=Health
    ),
    ("GET", "/health/ready"): Operation(
        id="healthReady", summary="A generation would be answered", reply=Health
    ),
    ("GET", "/health/startup"): Operation(
        id="healthStartup", summary="The log and the broker answer", reply=Health
    ),
    ("GET", "/openapi.json"): Operation(
        id="openapi", summary="This document", reply=dict[str, Any]
    ),
    ("GET", "/"): Operation(id="root", summary="What answers here", reply=Root),
}
