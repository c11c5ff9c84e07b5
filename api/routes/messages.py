"""``POST /v1/messages``."""

from __future__ import annotations

from functools import partial

from api.http.messages import Reply, Request, StreamReply
from api.protocols.anthropic import parse as anthropic
from api.protocols.anthropic.stream import AnthropicEncoder, assemble_message
from api.routes.generate import generate, parse_request
from api.services import Services


async def create_message(request: Request, *, services: Services) -> Reply | StreamReply:
    """Answer a turn; the answer names the model as the caller did, since any name is served.

    Claude Code sends some of its requests under names of its vendor, whatever it was told.
    """
    parse = partial(anthropic.parse, ids=services.ids, efforts=services.efforts)
    parsed = await parse_request(parse, request, services)
    chat = parsed.chat
    return await generate(
        parsed,
        request,
        services,
        protocol="anthropic",
        encoder=lambda job_id, started: AnthropicEncoder(
            job_id=job_id,
            model=chat.model,
            thinking=parsed.thinking,
            request_id=request.id,
            started=started,
            has_cache_control=parsed.has_cache_control,
        ),
        assemble=lambda job_id, answer: assemble_message(
            answer,
            job_id=job_id,
            model=chat.model,
            thinking=parsed.thinking,
            has_cache_control=parsed.has_cache_control,
        ),
    )
