"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``: Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from api.app import App
from api.dialects.anthropic import parse as anthropic
from api.dialects.anthropic.bodies import AnthropicMessage, CountBody, MessagesBody, TokenCount
from api.dialects.anthropic.context import Count, edit_context, may_edit
from api.dialects.anthropic.encode import (
    AnthropicEncoder,
    MessageForm,
    assemble_message,
    diagnostics_of,
)
from api.dialects.generate import USER_TURN, answer_open, generation, run_count
from api.generation import ParsedRequest
from api.http.bodies import parse_body
from api.http.messages import Access, Caller, Reply, Request, StreamReply, json_reply
from api.http.operation import Operation
from api.streaming.answers import abandoned_on_error
from api.submit import open_answer, with_history
from domain.audit.recent_ends import CacheDiagnosis
from domain.chat.request import ChatRequest, Message
from domain.errors import InvalidRequest, JobNotFound, PayloadMissing
from domain.values import JobId

PROTOCOL: Final = "anthropic"


async def create_message(app: App, request: Request) -> Reply | StreamReply:
    """Generate an answer in Anthropic's Messages format.

    The reply repeats the model name of the request, since any name is served: Claude Code sends
    some of its requests under names of its vendor, whatever its settings.
    """
    parse = await _parse_of(app, request)
    parsed, job = await open_answer(app, parse, request, protocol=PROTOCOL)
    assert isinstance(parsed, anthropic.MessagesRequest), "as it parses"  # noqa: S101 - type checker
    form = parsed.form
    async with abandoned_on_error([job]):
        previous = await _previous_of(app, request, parsed.previous_message)

    def diagnosed(diagnosis: CacheDiagnosis | None) -> MessageForm:
        if parsed.previous_message is None:
            return form
        return replace(form, diagnostics={"diagnostics": diagnostics_of(previous, diagnosis)})

    return await answer_open(
        job,
        app,
        stream=parsed.stream,
        encoder=lambda job_id, started, diagnosis: AnthropicEncoder(
            diagnosed(diagnosis), job_id=job_id, request_id=request.id, started=started
        ),
        assemble=lambda job_id, answer, diagnosis: assemble_message(
            answer, diagnosed(diagnosis), job_id
        ),
    )


async def _parse_of(app: App, request: Request) -> Callable[[], ParsedRequest]:
    """Return what parses a request; one whose prompt is edited is parsed and edited here.

    Raises:
        ModelNotReady: No worker has counted the prompt in time.
    """
    earlier = partial(_conversation_before, app, request.caller)
    if b"context_management" not in request.body:
        return partial(anthropic.parse, request.body, request.headers, app.defaults, earlier)

    def read() -> tuple[MessagesBody, anthropic.MessagesRequest]:
        wire = parse_body(MessagesBody, request.body)
        return wire, anthropic.request_of(wire, request.headers, app.defaults, earlier)

    wire, parsed = await app.call(read)
    edits = anthropic.edits_of(wire)
    if may_edit(parsed.chat, edits):
        count = _counter_of(app, request.caller, parsed)
        chat, applied = await run_count(
            app, request, partial(edit_context, parsed.chat, edits, count)
        )
        parsed = replace(parsed, chat=chat, form=replace(parsed.form, applied_edits=applied))
    return lambda: parsed


def _conversation_before(app: App, caller: Caller, message_id: str) -> Sequence[Message]:
    """Return the conversation up to a message, that message included; blocks.

    Raises:
        InvalidRequest: The caller has no such message, or it has not ended.
    """
    field = "thread.previous_message_id"
    missing = InvalidRequest(f"message {message_id} does not exist", field=field)
    job_id = JobId("job-" + message_id.removeprefix("msg_"))
    app.ownership.require(caller, job_id, missing)
    view = app.views.get(job_id)
    if view is None or view.submitted.protocol != PROTOCOL:
        raise missing
    if not view.status.is_terminal:
        msg = f"message {message_id} has not ended"
        raise InvalidRequest(msg, field=field)
    try:
        return app.agent_records.conversation_until(job_id)
    except PayloadMissing:
        raise missing from None


async def _previous_of(app: App, request: Request, message_id: str | None) -> JobId | None:
    """Return the job of a message; ``None`` where the caller has none such."""
    if message_id is None:
        return None
    job_id = JobId("job-" + message_id.removeprefix("msg_"))
    try:
        view = await app.call(app.views.get, job_id)
        await app.call(app.ownership.require, request.caller, job_id, JobNotFound(job_id))
    except JobNotFound:
        return None
    return None if view is None else view.id


async def count_tokens(app: App, request: Request) -> Reply:
    """Count the tokens of the prompt of a request.

    A generation reports the same number.
    """
    return json_reply(await run_count(app, request, partial(_count, app, request)))


def _counter_of(app: App, caller: Caller, parsed: ParsedRequest) -> Count:
    identity = app.ownership.identify(caller, parsed.agent, is_named=False)

    def count(chat: ChatRequest) -> int:
        return app.counter.count(with_history(app, chat, identity.agent, identity.answers_to))

    return count


def _count(app: App, request: Request) -> TokenCount:
    wire = parse_body(CountBody, request.body)
    earlier = partial(_conversation_before, app, request.caller)
    parsed = anthropic.counted_request_of(wire, request.headers, app.defaults, earlier)
    count, edits = _counter_of(app, request.caller, parsed), anthropic.edits_of(wire)
    tokens = count(parsed.chat)
    if not edits:
        return {"input_tokens": tokens}
    chat, applied = edit_context(parsed.chat, edits, count)
    return {
        "input_tokens": count(chat) if applied else tokens,
        "context_management": {"original_input_tokens": tokens},
    }


MESSAGE_OPERATIONS: Final = (
    generation(
        "POST /v1/messages",
        create_message,
        body=MessagesBody,
        example={"model": "semantic-demo", "max_tokens": 32, "messages": [USER_TURN]},
        reply=AnthropicMessage,
        is_streamed=True,
    ),
    Operation(
        "POST /v1/messages/count_tokens",
        count_tokens,
        body=CountBody,
        example={"model": "semantic-demo", "messages": [USER_TURN]},
        reply=TokenCount,
        access=Access.READ,
        responses={429: "Too many prompts wait to be counted"},
    ),
)
