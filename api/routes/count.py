"""``POST /v1/messages/count_tokens``."""

from __future__ import annotations

from functools import partial

from api.http.messages import Reply, Request
from api.http.replies import json_reply
from api.protocols.anthropic import parse as anthropic
from api.protocols.shared.parsed_request import ParsedRequest
from api.routes.generate import parse_request
from api.services import Services
from api.submission.history_matching import attributed


async def count_tokens(request: Request, *, services: Services) -> Reply:
    """Answer how long the prompt of a request is; the request itself reports the same number."""
    parse = partial(anthropic.parse_count, ids=services.ids)
    parsed = await parse_request(parse, request, services)
    tokens = await services.call(_counted, parsed, services)
    return json_reply({"input_tokens": tokens})


def _counted(parsed: ParsedRequest, services: Services) -> int:
    return services.counter.count(attributed(parsed.chat, parsed.agent, services))
