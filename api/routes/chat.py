"""``POST /v1/chat/completions``."""

from __future__ import annotations

from functools import partial

from api.http import Reply, Request, StreamReply
from api.protocols import openai_chat
from api.protocols.openai_stream import OpenAIEncoder, assemble_completion
from api.routes.generate import generate, parse_request
from api.services import Services


async def create_completion(request: Request, *, services: Services) -> Reply | StreamReply:
    """Answer a turn; the answer names the model as the caller did."""
    parse = partial(
        openai_chat.parse, ids=services.ids, max_tokens_default=services.max_tokens_default
    )
    parsed = await parse_request(parse, request, services)
    model = parsed.chat.model
    created = int(services.clock.now().timestamp())
    return await generate(
        parsed,
        request,
        services,
        protocol="openai-chat",
        encoder=lambda job_id, _: OpenAIEncoder(
            job_id=job_id,
            model=model,
            created=created,
            include_usage=parsed.include_usage,
            request_id=request.id,
        ),
        assemble=lambda job_id, answer: assemble_completion(
            answer, job_id=job_id, model=model, created=created
        ),
    )
