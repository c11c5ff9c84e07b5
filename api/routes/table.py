"""All routes, and how each becomes a handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from api.errors import dialect_of, error_reply
from api.http.messages import Dialect, Handler, Reply, Request, Route, StreamReply
from api.protocols.openai_chat.parse import CHAT
from api.protocols.openai_completions.parse import TEXT
from api.routes import (
    agents,
    count,
    events,
    files,
    health,
    job_stream,
    jobs,
    message_batches,
    messages,
    models,
    openai_batches,
    openapi,
    responses,
    webhooks,
)
from api.routes.completions import create_completion
from api.services import Services
from domain.errors import SemanticError

Endpoint = Callable[..., Awaitable[Reply | StreamReply]]


def routes(services: Services) -> tuple[Route, ...]:
    """Return the routes of a service."""
    anthropic, openai, native = Dialect.ANTHROPIC, Dialect.OPENAI, Dialect.NATIVE
    table: tuple[tuple[str, str, Endpoint, Dialect], ...] = (
        ("POST", "/v1/messages", messages.create_message, anthropic),
        ("POST", "/v1/messages/count_tokens", count.count_tokens, anthropic),
        ("POST", "/v1/chat/completions", partial(create_completion, kind=CHAT), openai),
        ("POST", "/v1/completions", partial(create_completion, kind=TEXT), openai),
        *_response_routes(),
        *_batch_routes(),
        ("GET", "/v1/models", models.list_models, openai),
        ("GET", "/v1/models/{model_id}", models.get_model, openai),
        ("POST", "/v1/jobs", jobs.create_job, native),
        ("GET", "/v1/jobs", jobs.list_jobs, native),
        ("GET", "/v1/jobs/{job_id}", jobs.get_job, native),
        ("GET", "/v1/jobs/{job_id}/stream", job_stream.stream_job, native),
        ("POST", "/v1/jobs/{job_id}/cancel", jobs.cancel_job, native),
        ("POST", "/v1/jobs/{job_id}/retry", jobs.retry_job, native),
        *_agent_routes(),
        ("GET", "/v1/webhooks", webhooks.list_webhooks, native),
        ("POST", "/v1/webhooks/{webhook_id}/retry", webhooks.retry, native),
        ("GET", "/v1/events", events.list_events, native),
        ("GET", "/health/live", health.live, native),
        ("GET", "/health/ready", health.ready, native),
        ("GET", "/health/startup", health.startup, native),
        ("GET", "/openapi.json", openapi.get_openapi, native),
        ("GET", "/", health.root, native),
    )
    return tuple(
        Route(
            method=method,
            pattern=pattern,
            handler=_typed(partial(endpoint, services=services)),
            dialect=dialect,
        )
        for method, pattern, endpoint, dialect in table
    )


def _agent_routes() -> tuple[tuple[str, str, Endpoint, Dialect], ...]:
    native, agent = Dialect.NATIVE, "/v1/agents/{agent_id}"
    return (
        ("POST", "/v1/agents", agents.create_agent, native),
        ("GET", "/v1/agents", agents.list_all, native),
        ("GET", agent, agents.get_agent, native),
        ("DELETE", agent, agents.delete_agent, native),
        ("POST", f"{agent}/generate", agents.generate_turn, native),
        ("GET", f"{agent}/cache", agents.get_cache, native),
        ("POST", f"{agent}/fork", agents.fork_agent, native),
    )


def _response_routes() -> tuple[tuple[str, str, Endpoint, Dialect], ...]:
    openai, one = Dialect.OPENAI, "/v1/responses/{response_id}"
    return (
        ("POST", "/v1/responses", responses.create_response, openai),
        ("GET", one, responses.get_response, openai),
        ("DELETE", one, responses.delete_response, openai),
        ("POST", f"{one}/cancel", responses.cancel_response, openai),
        ("GET", f"{one}/input_items", responses.list_input_items, openai),
    )


def _batch_routes() -> tuple[tuple[str, str, Endpoint, Dialect], ...]:
    anthropic, openai = Dialect.ANTHROPIC, Dialect.OPENAI
    messages_path, batch = "/v1/messages/batches", "/v1/messages/batches/{batch_id}"
    return (
        ("POST", messages_path, message_batches.create_message_batch, anthropic),
        ("GET", messages_path, message_batches.list_message_batches, anthropic),
        ("GET", batch, message_batches.get_message_batch, anthropic),
        ("DELETE", batch, message_batches.delete_message_batch, anthropic),
        ("POST", f"{batch}/cancel", message_batches.cancel_message_batch, anthropic),
        ("GET", f"{batch}/results", message_batches.message_batch_results, anthropic),
        ("POST", "/v1/files", files.create_file, openai),
        ("GET", "/v1/files", files.list_stored_files, openai),
        ("GET", "/v1/files/{file_id}", files.get_file, openai),
        ("DELETE", "/v1/files/{file_id}", files.delete_stored_file, openai),
        ("GET", "/v1/files/{file_id}/content", files.file_content, openai),
        ("POST", "/v1/batches", openai_batches.create_batch, openai),
        ("GET", "/v1/batches", openai_batches.list_openai_batches, openai),
        ("GET", "/v1/batches/{batch_id}", openai_batches.get_batch, openai),
        ("POST", "/v1/batches/{batch_id}/cancel", openai_batches.cancel_openai_batch, openai),
    )


def _typed(endpoint: Endpoint) -> Handler:
    """Return a handler that tells every typed failure in the caller's dialect."""

    async def handle(request: Request) -> Reply | StreamReply:
        try:
            return await endpoint(request)
        except SemanticError as error:
            dialect = dialect_of(request.path, request.headers)
            return error_reply(error, dialect, request.id)

    return handle
