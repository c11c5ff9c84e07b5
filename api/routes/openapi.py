"""``GET /openapi.json``."""

from __future__ import annotations

from api.http.messages import Reply, Request
from api.http.replies import json_reply
from api.openapi.document import openapi_document
from api.services import Services


async def get_openapi(request: Request, *, services: Services) -> Reply:
    """Describe this API."""
    del request
    return json_reply(await services.call(openapi_document, services.version))
