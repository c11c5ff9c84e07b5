"""``POST /v1/messages/count_tokens``."""

from __future__ import annotations

from functools import partial

from api.attributing import attributed
from api.http import Reply, Request
from api.protocols import anthropic
from api.protocols.parsed import ParsedRequest
from api.routes.generate import parse_request
from api.routes.replies import json_reply
from api.services import Services


async def count_tokens(request: Request, *, services: Services) -> Reply:
    """Answer how long the prompt of a request is; the request itself reports the same number."""
    parse = partial(anthropic.parse_count, ids=services.ids)
    parsed = await parse_request(parse, request, services)
    tokens = await services.call(_counted, parsed, services)
    return json_reply({"input_tokens": tokens})


def _counted(parsed: ParsedRequest, services: Services) -> int:
    return services.counter.count(attributed(parsed.chat, parsed.agent, services))
