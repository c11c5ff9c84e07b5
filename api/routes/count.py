"""``POST /v1/messages/count_tokens``."""

from __future__ import annotations

from functools import partial

from api.http import Reply, Request
from api.protocols import anthropic
from api.routes.generate import parse_request
from api.routes.replies import json_reply
from api.services import Services


async def count_tokens(request: Request, *, services: Services) -> Reply:
    """Answer how long the prompt of a request is; the request itself reports the same number."""
    parse = partial(anthropic.parse_count, ids=services.ids)
    parsed = await parse_request(parse, request, services)
    return json_reply({"input_tokens": await services.call(services.counter.count, parsed.chat)})
