"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``: Anthropic's Messages."""

from __future__ import annotations

from functools import partial
from typing import Final

from api.app import App
from api.dialects.anthropic import parse as anthropic
from api.dialects.anthropic.bodies import AnthropicMessage, CountBody, MessagesBody, TokenCount
from api.dialects.anthropic.encode import AnthropicEncoder, PreviousMessage, assemble_message
from api.dialects.generate import GENERATION_FAILURES, USER_TURN, answer_open, count_prompt
from api.http.messages import Access, Reply, Request, StreamReply, json_reply
from api.http.operation import IDEMPOTENCY_KEY, Operation
from api.streaming.answers import abandoned_on_error
from api.submit import open_answer
from domain.errors import JobNotFound
from domain.values import JobId


async def create_message(app: App, request: Request) -> Reply | StreamReply:
    """Answer a turn; the reply repeats the model name of the request, since any name is served.

    Claude Code sends some of its requests under names of its vendor, whatever its settings.
    """
    parse = partial(anthropic.parse, request.body, request.headers, app.defaults)
    parsed, job = await open_answer(app, parse, request, protocol="anthropic")
    chat = parsed.chat
    async with abandoned_on_error([job]):
        previous = await _previous_of(app, request, parsed.previous_message)
    return await answer_open(
        job,
        app,
        stream=parsed.stream,
        encoder=lambda job_id, started, diagnosis: AnthropicEncoder(
            job_id=job_id,
            model=chat.model,
            thinking=parsed.thinking,
            request_id=request.id,
            started=started,
            has_cache_control=parsed.has_cache_control,
            previous=previous,
            diagnosis=diagnosis,
        ),
        assemble=lambda job_id, answer, diagnosis: assemble_message(
            answer,
            job_id=job_id,
            model=chat.model,
            thinking=parsed.thinking,
            has_cache_control=parsed.has_cache_control,
            previous=previous,
            diagnosis=diagnosis,
        ),
    )


async def _previous_of(
    app: App, request: Request, message_id: str | None
) -> PreviousMessage | None:
    if message_id is None:
        return None
    job_id = JobId("job-" + message_id.removeprefix("msg_"))
    try:
        view = await app.call(app.views.get, job_id)
        await app.call(app.ownership.require, request.caller, job_id, JobNotFound(job_id))
    except JobNotFound:
        view = None
    return PreviousMessage(job_id=None if view is None else view.id)


async def count_tokens(app: App, request: Request) -> Reply:
    """Return the length of the prompt of a request; a generation reports the same number."""
    parse = partial(anthropic.parse_count, request.body, request.headers, app.defaults)
    return json_reply({"input_tokens": await count_prompt(app, parse, request)})


MESSAGE_OPERATIONS: Final = (
    Operation(
        "POST /v1/messages",
        create_message,
        id="createMessage",
        summary="Generate an answer in Anthropic's Messages format",
        parameters=(IDEMPOTENCY_KEY,),
        body=MessagesBody,
        example={"model": "semantic-demo", "max_tokens": 32, "messages": [USER_TURN]},
        reply=AnthropicMessage,
        is_streamed=True,
        responses=GENERATION_FAILURES,
    ),
    Operation(
        "POST /v1/messages/count_tokens",
        count_tokens,
        id="countTokens",
        summary="Count the tokens of the prompt of a request",
        body=CountBody,
        example={"model": "semantic-demo", "messages": [USER_TURN]},
        reply=TokenCount,
        access=Access.READ,
        responses={429: "Too many prompts wait to be counted"},
    ),
)
