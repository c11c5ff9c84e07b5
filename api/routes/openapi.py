"""``GET /openapi.json``."""

from __future__ import annotations

from api.http import Reply, Request
from api.openapi import openapi_document
from api.routes.replies import json_reply
from api.services import Services


async def get_openapi(request: Request, *, services: Services) -> Reply:
    """Describe this API."""
    del request
    return json_reply(await services.call(openapi_document, services.version))
