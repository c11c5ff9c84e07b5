"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``: Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from api.app import App
from api.dialects.anthropic import parse as anthropic
from api.dialects.anthropic.bodies import (
    COMPACTED_AT,
    COMPACTION,
    AnthropicMessage,
    AppliedContextEdit,
    Compact,
    CountBody,
    MessagesBody,
    TokenCount,
)
from api.dialects.anthropic.context import (
    Count,
    edit_context,
    has_older_turns,
    may_edit,
    summarizing,
)
from api.dialects.anthropic.encode import (
    AnthropicEncoder,
    CompactionEncoder,
    MessageForm,
    Summarized,
    assemble_message,
    diagnostics_of,
    error_event,
)
from api.dialects.compaction import default_threshold, stream_behind, summarize, summary_of
from api.dialects.generate import USER_TURN, answer_open, generation, run_count
from api.generation import ParsedRequest
from api.http.messages import Access, Caller, Reply, Request, StreamReply
from api.http.operation import Operation, body_of, for_further_job
from api.http.sse import Frame
from api.streaming.answers import abandoned_on_error
from api.submit import open_answer, with_history
from domain.audit.recent_ends import CacheDiagnosis
from domain.chat.request import ChatRequest, Message
from domain.errors import InvalidRequest, JobNotFound, PayloadMissing, SemanticError
from domain.values import JobId

PROTOCOL: Final = "anthropic"
#: Names of fields that need the count of the prompt or a summary; JSON may write a letter of them
#: as ``\u00…``. A body with none of these is parsed where its job is opened.
_EDITING: Final = (b"context_management", b'"compaction"', rb"\u00")
#: Stored with the job of a summary, whose conversation ends with the instruction for it.
_COMPACTION_FIELDS: Final = b'{"is_compaction":true}'


async def create_message(app: App, request: Request) -> Reply | StreamReply:
    """Generate an answer in Anthropic's Messages format.

    The reply repeats the model name of the request, since any name is served: Claude Code sends
    some of its requests under names of its vendor, whatever its settings.
    """
    if not any(word in request.body for word in _EDITING):
        parse = partial(anthropic.parse, request.body, request.headers, app.defaults)
        return await _answer(app, request, partial(parse, _earlier(app, request)))
    wire, parsed = await app.call(_read, app, request)
    parsed, summing = await _edited(app, request, wire, parsed)
    if summing is None:
        return await _answer(app, request, lambda: parsed)
    if summing.form.is_compaction:
        return await _answer(app, request, lambda: summing)
    behind = partial(_answer_behind, app, request, wire, summing)
    if not parsed.stream:
        return await behind()

    def fail(error: SemanticError) -> Frame:
        return error_event(error, request.id)

    return StreamReply(pieces=stream_behind(behind, app.ping_s, fail))


async def _answer(
    app: App, request: Request, parse: Callable[[], ParsedRequest]
) -> Reply | StreamReply:
    parsed, job = await open_answer(app, parse, request, protocol=PROTOCOL)
    assert isinstance(parsed, anthropic.MessagesRequest), "as it parses"  # noqa: S101 - type checker
    form = parsed.form
    async with abandoned_on_error([job]):
        previous = await _previous_of(app, request, parsed.previous_message)

    def diagnosed(diagnosis: CacheDiagnosis | None) -> MessageForm:
        if parsed.previous_message is None:
            return form
        return replace(form, diagnostics={"diagnostics": diagnostics_of(previous, diagnosis)})

    kind = CompactionEncoder if form.is_compaction else AnthropicEncoder
    return await answer_open(
        job,
        app,
        stream=parsed.stream,
        encoder=lambda job_id, started, diagnosis: kind(
            diagnosed(diagnosis), job_id=job_id, request_id=request.id, started=started
        ),
        assemble=lambda job_id, answer, diagnosis: assemble_message(
            answer, diagnosed(diagnosis), job_id
        ),
    )


async def _answer_behind(
    app: App, request: Request, wire: MessagesBody, summing: anthropic.MessagesRequest
) -> Reply | StreamReply:
    """Compact the conversation by a job of its own, and answer behind its summary."""
    # The answer has the key of the request.
    further = for_further_job(request, COMPACTION)
    _, answer = await summarize(app, summing, further, protocol=PROTOCOL)
    made = Summarized(summary_of(answer, "max_tokens"), answer.finished().usage)
    behind = anthropic.with_summary(wire, made.summary)
    parsed = await app.call(_request_of, app, request, behind)
    form = replace(parsed.form, summarized=made, applied_edits=summing.form.applied_edits)
    return await _answer(app, request, lambda: replace(parsed, form=form))


def _earlier(app: App, request: Request) -> anthropic.Earlier:
    return partial(_conversation_before, app, request.caller)


def _request_of(app: App, request: Request, wire: MessagesBody) -> anthropic.MessagesRequest:
    return anthropic.request_of(wire, request.headers, app.defaults, _earlier(app, request))


def _read(app: App, request: Request) -> tuple[MessagesBody, anthropic.MessagesRequest]:
    wire = body_of(MessagesBody, request)
    return wire, _request_of(app, request, wire)


async def _edited(
    app: App, request: Request, wire: MessagesBody, parsed: anthropic.MessagesRequest
) -> tuple[anthropic.MessagesRequest, anthropic.MessagesRequest | None]:
    """Return a request after its edits, and what writes the summary if it is compacted.

    Raises:
        ModelNotReady: No worker has counted the prompt in time.
    """
    if wire.compaction is not None:
        chat = summarizing(parsed.chat, own=wire.compaction.instructions)
        return parsed, _summing(parsed, chat, is_whole=True)
    edits, compact = anthropic.clear_edits_of(wire), anthropic.compact_of(wire)
    may_compact = compact is not None and has_older_turns(parsed.chat)
    if not may_compact and not may_edit(parsed.chat, edits):
        return parsed, None
    count = _counter_of(app, request.caller, parsed)

    def edit() -> tuple[ChatRequest, list[AppliedContextEdit], bool]:
        chat, applied = edit_context(parsed.chat, edits, count)
        return chat, applied, may_compact and count(chat) >= _threshold(app, compact)

    chat, applied, is_due = await run_count(app, request, edit)
    parsed = replace(parsed, chat=chat, form=replace(parsed.form, applied_edits=applied))
    if compact is None or not is_due:
        return parsed, None
    chat = summarizing(chat, added=compact.instructions)
    return parsed, _summing(parsed, chat, is_whole=bool(compact.pause_after_compaction))


def _threshold(app: App, compact: Compact | None) -> int:
    if compact is None or compact.trigger is None:
        return min(COMPACTED_AT, default_threshold(app))
    return compact.trigger.value


def _summing(
    parsed: anthropic.MessagesRequest, chat: ChatRequest, *, is_whole: bool
) -> anthropic.MessagesRequest:
    form = replace(parsed.form, is_compaction=is_whole)
    return replace(parsed, chat=chat, form=form, wire=_COMPACTION_FIELDS)


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
        raise InvalidRequest(f"message {message_id} has not ended", field=field)
    if view.submitted.wire is not None:
        msg = f"message {message_id} is a compaction; send its block as the first message"
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


async def count_tokens(app: App, request: Request) -> TokenCount:
    """Count the tokens of the prompt of a request.

    A generation reports the same number.
    """
    return await run_count(app, request, partial(_count, app, request))


def _counter_of(app: App, caller: Caller, parsed: ParsedRequest) -> Count:
    identity = app.ownership.identify(caller, parsed.agent, is_named=False)

    def count(chat: ChatRequest) -> int:
        return app.counter.count(with_history(app, chat, identity.agent, identity.answers_to))

    return count


def _count(app: App, request: Request) -> TokenCount:
    wire = body_of(CountBody, request)
    earlier = _earlier(app, request)
    parsed = anthropic.counted_request_of(wire, request.headers, app.defaults, earlier)
    count = _counter_of(app, request.caller, parsed)
    tokens = count(parsed.chat)
    if not anthropic.edits_of(wire):
        return {"input_tokens": tokens}
    # As at the vendor, nothing is compacted for a count.
    chat, applied = edit_context(parsed.chat, anthropic.clear_edits_of(wire), count)
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
        access=Access.READ,
        responses={429: "Too many prompts wait to be counted"},
    ),
)
