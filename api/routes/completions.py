"""``POST /v1/completions``: a text that follows a text."""

from __future__ import annotations

from functools import partial

from api.http import Reply, Request, StreamReply
from api.protocols import openai_completions
from api.protocols.openai_completions import CompletionEncoder, assemble_text
from api.routes.generate import generate, parse_request
from api.services import Services


async def create_text_completion(request: Request, *, services: Services) -> Reply | StreamReply:
    """Answer a prompt; the answer names the model as the caller did."""
    parse = partial(
        openai_completions.parse, ids=services.ids, max_tokens_default=services.max_tokens_default
    )
    parsed = await parse_request(parse, request, services)
    model = parsed.chat.model
    created = int(services.clock.now().timestamp())
    return await generate(
        parsed,
        request,
        services,
        protocol="openai-completions",
        encoder=lambda job_id, _: CompletionEncoder(
            job_id=job_id,
            model=model,
            created=created,
            include_usage=parsed.include_usage,
            request_id=request.id,
        ),
        assemble=lambda job_id, answer: assemble_text(
            answer, job_id=job_id, model=model, created=created
        ),
    )
