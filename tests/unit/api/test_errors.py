from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from api.errors import (
    TransportError,
    dialect_of,
    dialects_of_path,
    error_reply,
    error_type,
    status_of,
)
from api.http.messages import Dialect
from api.operations import OPERATIONS, RouteTable, routes
from domain.chat.embedding import TextTooLong
from domain.errors import (
    AgentExists,
    AgentNotFound,
    AgentTurnConflict,
    BatchAlreadyEnded,
    BatchNotEnded,
    BatchNotFound,
    CompletionNotFound,
    ConcurrencyConflict,
    ConversationNotFound,
    CorruptLog,
    DeviceFailed,
    DiskFull,
    Draining,
    EngineFailure,
    EngineLost,
    FileNotFound,
    GenerationCancelled,
    IdempotencyKeyReused,
    IdempotencyKeyTaken,
    InvalidRequest,
    ItemNotFound,
    ItemsLost,
    JobAlreadyTerminal,
    JobNotFound,
    LogNewer,
    LogUnavailable,
    MemoryFull,
    ModelChanged,
    ModelNotFound,
    ModelNotLoaded,
    ModelNotReady,
    ModelUnusable,
    NotForkable,
    NotRetryable,
    Overloaded,
    PayloadDamaged,
    PayloadMissing,
    PredecessorFailed,
    PreviousResponseNotFound,
    PromptTooLong,
    QueueUnavailable,
    RateLimited,
    ResponseNotFound,
    ScheduleExists,
    ScheduleNotFound,
    SemanticError,
    StaleAttempt,
    SubscriptionNotFound,
    SubscriptionTaken,
    SwapNotFound,
    UniqueJobExists,
    WebhookNotFound,
    WorkerNotFound,
)
from domain.log.checkpoints import ForgedCheckpoint
from tests.support.builders.api import fake_api

EVERY_ERROR: list[tuple[SemanticError, int]] = [
    (InvalidRequest("no", field="messages.0.role"), 400),
    (PromptTooLong(9, 4), 400),
    (TextTooLong(1, 9, 4), 400),
    (ModelUnusable("no"), 409),
    (JobNotFound("job-1"), 404),
    (ModelNotFound("m"), 404),
    (PreviousResponseNotFound("resp_1"), 400),
    (PayloadMissing("d"), 404),
    (ResponseNotFound("resp_1"), 404),
    (BatchNotFound("batch-1"), 404),
    (SwapNotFound("swap-1"), 404),
    (AgentNotFound("a"), 404),
    (CompletionNotFound("chatcmpl-a"), 404),
    (ConversationNotFound("conv_a"), 404),
    (ItemNotFound("msg_a"), 404),
    (AgentExists("a"), 409),
    (AgentTurnConflict("a", turn=2, job=None), 409),
    (FileNotFound("file-1"), 404),
    (WebhookNotFound("webhook-1"), 404),
    (AgentNotFound("a"), 404),
    (AgentExists("a"), 409),
    (AgentTurnConflict("a", turn=2, job="job-1"), 409),
    (ConcurrencyConflict("job-1", expected=1, actual=2), 409),
    (StaleAttempt("job-1", attempt=1, current=2), 409),
    (JobAlreadyTerminal("job-1", "completed"), 409),
    (NotRetryable("job-1", "completed"), 409),
    (ForgedCheckpoint("no"), 409),
    (ModelNotLoaded("a", loaded="b"), 409),
    (BatchNotEnded("batch-1", "in progress"), 409),
    (BatchAlreadyEnded("batch-1", "ended"), 409),
    (IdempotencyKeyTaken("job-1"), 409),
    (UniqueJobExists("job-1"), 409),
    (NotForkable("job-1", "it has not ended"), 409),
    (IdempotencyKeyReused("job-1"), 409),
    (ScheduleExists("nightly"), 409),
    (ScheduleNotFound("schedule-1"), 404),
    (SubscriptionTaken("audit"), 409),
    (SubscriptionNotFound("audit"), 404),
    (PredecessorFailed("job-1", "failed"), 500),
    (GenerationCancelled("cancelled"), 409),
    (Overloaded("queue is full", retry_after_s=7), 429),
    (MemoryFull(120.0, retry_after_s=7), 429),
    (RateLimited("too often", retry_after_s=7), 429),
    (LogUnavailable("disk"), 503),
    (LogNewer("update"), 503),
    (DiskFull("no space"), 507),
    (QueueUnavailable("redis"), 503),
    (ModelNotReady("loading"), 503),
    (ModelChanged(), 503),
    (Draining("bye"), 503),
    (EngineFailure("nan"), 500),
    (DeviceFailed("out of memory"), 500),
    (EngineLost("it stopped"), 500),
    (ItemsLost("job-1", after=3), 500),
    (CorruptLog(3, "hash"), 500),
    (PayloadDamaged("sha256:0"), 500),
    (WorkerNotFound("worker-1", known=()), 404),
    (SemanticError("odd"), 500),
    (TransportError(431, "header_fields_too_large", "too long"), 431),
]


def body_of(error: SemanticError, dialect: Dialect) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(error_reply(error, dialect, "req_1").body)
    return answer


@pytest.mark.parametrize(("error", "status"), EVERY_ERROR, ids=lambda value: str(value)[:20])
def test_each_error_has_its_status(error: SemanticError, status: int) -> None:
    assert status_of(error) == status


def test_no_leaf_of_the_error_tree_is_missing_from_these_tests() -> None:
    def leaves(kind: type[SemanticError]) -> set[type[SemanticError]]:
        below = {child for child in kind.__subclasses__() if child.__module__.startswith("domain.")}
        return set().union(*(leaves(child) for child in below)) if below else {kind}

    assert leaves(SemanticError) <= {type(error) for error, _ in EVERY_ERROR}


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize(("error", "status"), EVERY_ERROR, ids=lambda value: str(value)[:20])
def test_each_error_says_whether_to_retry_and_when(
    error: SemanticError, status: int, dialect: Dialect
) -> None:
    reply = error_reply(error, dialect, "req_1")
    assert reply.headers["x-should-retry"] == str(error.retryable).lower()
    assert ("retry-after" in reply.headers) == (status in {429, 503, 507})


def test_overloaded_hands_its_own_delay_on() -> None:
    reply = error_reply(Overloaded("full", retry_after_s=7), Dialect.NATIVE, "req_1")
    assert reply.headers["retry-after"] == "7"


@pytest.mark.parametrize(
    ("dialect", "status", "kind"),
    [
        (Dialect.ANTHROPIC, 503, "overloaded_error"),
        (Dialect.OPENAI, 503, "server_error"),
        (Dialect.NATIVE, 507, None),
    ],
)
def test_clients_that_know_no_507_get_a_status_on_which_they_wait(
    dialect: Dialect, status: int, kind: str | None
) -> None:
    error = DiskFull("no space", retry_after_s=9)
    reply = error_reply(error, dialect, "req_1")
    assert (reply.status, reply.headers["retry-after"]) == (status, "9")
    assert reply.headers["x-should-retry"] == "true"
    body = body_of(error, dialect)
    assert body.get("error", {}).get("type") == kind
    if kind is None:
        assert (body["status"], body["code"]) == (507, "disk_full")


def test_anthropic_body_has_type_message_and_request_id() -> None:
    assert body_of(PromptTooLong(9, 4), Dialect.ANTHROPIC) == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "prompt is too long: 9 tokens > 4 maximum",
        },
        "request_id": "req_1",
    }


def test_anthropic_message_names_the_field() -> None:
    body = body_of(InvalidRequest("must be a string", field="model"), Dialect.ANTHROPIC)
    assert body["error"]["message"] == "model: must be a string"


def test_openai_body_has_param_and_code() -> None:
    assert body_of(InvalidRequest("no", field="messages"), Dialect.OPENAI) == {
        "error": {
            "message": "no",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "invalid_request",
        }
    }


def test_openai_names_a_long_prompt_as_its_sdk_users_expect() -> None:
    assert body_of(PromptTooLong(9, 4), Dialect.OPENAI)["error"]["code"] == (
        "context_length_exceeded"
    )


def test_native_body_is_problem_json() -> None:
    reply = error_reply(JobNotFound("job-1"), Dialect.NATIVE, "req_1")
    assert reply.content_type == "application/problem+json"
    assert json.loads(reply.body) == {
        "type": "about:blank",
        "title": "Not found",
        "status": 404,
        "detail": "job job-1 does not exist",
        "code": "job_not_found",
        "request_id": "req_1",
    }


def test_transport_error_hands_its_headers_on() -> None:
    error = TransportError(405, "method_not_allowed", "no", headers={"allow": "GET"})
    assert error_reply(error, Dialect.NATIVE, "req_1").headers["allow"] == "GET"


@pytest.mark.parametrize(
    ("status", "anthropic", "openai"),
    [
        (400, "invalid_request_error", "invalid_request_error"),
        (401, "authentication_error", "authentication_error"),
        (403, "permission_error", "permission_error"),
        (404, "not_found_error", "invalid_request_error"),
        (413, "request_too_large", "invalid_request_error"),
        (429, "rate_limit_error", "rate_limit_error"),
        (500, "api_error", "server_error"),
        (503, "overloaded_error", "server_error"),
        (504, "timeout_error", "server_error"),
        (529, "overloaded_error", "server_error"),
    ],
)
def test_each_status_has_its_type_in_both_dialects(
    status: int, anthropic: str, openai: str
) -> None:
    assert error_type(status, Dialect.ANTHROPIC) == anthropic
    assert error_type(status, Dialect.OPENAI) == openai


@pytest.mark.parametrize(
    ("path", "headers", "dialect"),
    [
        ("/v1/messages", {}, Dialect.ANTHROPIC),
        ("/v1/messages/count_tokens", {}, Dialect.ANTHROPIC),
        ("/v1/messagesx", {}, Dialect.OPENAI),
        ("/v1/assistants", {}, Dialect.OPENAI),
        ("/v1/organizations", {"anthropic-version": "2023-06-01"}, Dialect.ANTHROPIC),
        ("/v1/chat/completions", {}, Dialect.OPENAI),
        ("/v1/responses/resp_1", {}, Dialect.OPENAI),
        ("/v1/models", {}, Dialect.OPENAI),
        ("/v1/models/m", {"anthropic-version": "2023-06-01"}, Dialect.ANTHROPIC),
        ("/v1/jobs", {"anthropic-version": "2023-06-01"}, Dialect.NATIVE),
        ("/", {}, Dialect.NATIVE),
    ],
)
def test_dialect_follows_path_and_version_header(
    path: str, headers: dict[str, str], dialect: Dialect
) -> None:
    assert dialect_of(path, headers) is dialect


def test_only_the_models_have_operations_below_v1_with_two_error_formats() -> None:
    shared = {one.path for one in OPERATIONS if len(dialects_of_path(one.path)) > 1}
    assert {"/".join(path.split("/")[:3]) for path in shared} == {"/v1/models"}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/chat/completion", "did you mean /v1/chat/completions?"),
        ("/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/v1/messages", "did you mean /v1/messages?"),
        ("/api/nothing-like-it", "of Ollama's API use /api/chat"),
        ("/%2E%2E/secret", "all paths stand in /openapi.json"),
    ],
)
def test_an_unknown_path_names_the_one_that_may_be_meant(path: str, words: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            with pytest.raises(TransportError) as absent:
                RouteTable(routes(api.app)).unrouted("POST", path)
            assert absent.value.status == 404
            assert words in absent.value.message

    asyncio.run(scenario())
