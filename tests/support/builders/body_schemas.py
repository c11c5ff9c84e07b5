"""The schemas of request bodies, as the OpenAPI document states them."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema_rs

from api.operate.openapi import openapi_document
from api.operations import OPERATIONS


@cache
def body_validator(name: str) -> jsonschema_rs.Draft202012Validator:
    """Return what checks a body against the schema of this name."""
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": _components()}
    )


@cache
def _components() -> dict[str, Any]:
    components: dict[str, Any] = openapi_document(OPERATIONS, "1")["components"]
    return components
