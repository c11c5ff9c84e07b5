"""The page of all routes, from the OpenAPI document that the service returns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any, Final

from api.operate.openapi import openapi_document
from api.operations import OPERATIONS
from docs.site.tables import GENERATED, Schema, fields_table, prose, shape, table

_HEAD = """
# HTTP API

For users who call the service without an SDK. A running service returns the same as an OpenAPI 3.1
document at `/openapi.json`; [this one](openapi.json) is of version {version}.

- Requests with an API key send it as `Authorization: Bearer KEY` or as `x-api-key`; *access* names
  the scope that the key needs ([security](../security.md)).
- Every response has a `request-id`. Errors take the dialect of the route; their header
  `x-should-retry` is `true` where a repeat can succeed, and 429 and 503 have `Retry-After`.
- [Clients](../clients.md) describes which fields of both vendors work.
"""
#: Headings by the beginning of the path, the most special first.
_SECTIONS: Final[Mapping[str, str]] = {
    "/v1/messages/batches": "Anthropic: Message Batches",
    "/v1/messages": "Anthropic: Messages",
    "/v1/chat": "OpenAI: chat completions",
    "/v1/completions": "OpenAI: completions",
    "/v1/responses": "OpenAI: Responses",
    "/v1/files": "OpenAI: files",
    "/v1/batches": "OpenAI: batches",
    "/v1/models": "Models",
    "/v1/jobs": "Jobs",
    "/v1/agents": "Agents",
    "/v1/webhooks": "Webhooks",
    "/v1/": "Log",
    "/admin": "Administration",
    "/": "Health, metrics and this document",
}
_FAILED: Final = 400
_JSON: Final = "application/json"


def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    return openapi_document(OPERATIONS, version("semantic"))


def document_text() -> str:
    """Return the OpenAPI document as the text of a file."""
    return json.dumps(document(), indent=1)


def render() -> str:
    """Return the page."""
    found = document()
    definitions = found["components"]["schemas"]
    sections: dict[str, list[str]] = {title: [] for title in _SECTIONS.values()}
    for path, operations in found["paths"].items():
        title = next(text for start, text in _SECTIONS.items() if path.startswith(start))
        for method, operation in operations.items():
            sections[title] += _described(f"{method.upper()} {path}", operation, definitions)
    parts = [GENERATED, _HEAD.format(version=found["info"]["version"])]
    for title, lines in sections.items():
        parts += [f"## {title}", "", *lines]
    parts += ["## Objects", ""]
    for name, schema in sorted(definitions.items()):
        if "enum" not in schema:
            parts += [f"### {name}", "", prose(schema.get("description", "")), ""]
            parts += fields_table(schema, definitions)
    return "\n".join(parts)


def _described(
    route: str, operation: Mapping[str, Any], definitions: Mapping[str, Schema]
) -> Iterator[str]:
    yield from (f"### `{route}`", "", f"{operation['summary']}.", "")
    yield from (f"Access: {operation['x-semantic-access']}.", "")
    yield from table(
        ("parameter", "in", "type", "meaning"),
        (
            (
                f"`{one['name']}`",
                one["in"] + (", required" if one.get("required") and one["in"] != "path" else ""),
                shape(one["schema"], definitions),
                prose(one.get("description", "")),
            )
            for one in operation.get("parameters", ())
        ),
    )
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        yield from (f"Body, `{media}`: {shape(content['schema'], definitions)}. Example:", "")
        yield from ("```json", json.dumps(content["example"], indent=2), "```", "")
    for status, reply in operation["responses"].items():
        if status.isdigit() and int(status) < _FAILED:
            kinds = [
                f"`{media}`"
                + (f" ({shape(content['schema'], definitions)})" if media == _JSON else "")
                for media, content in reply.get("content", {}).items()
            ]
            yield from (f"Reply {status}: {', '.join(kinds) or reply['description']}.", "")
