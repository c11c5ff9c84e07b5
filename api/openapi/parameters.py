"""How OpenAPI spells the parameters of routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Parameter = Mapping[str, Any]


def path(name: str, schema: Mapping[str, Any], example: str) -> Parameter:
    """Return a part of a path."""
    return {"name": name, "in": "path", "required": True, "schema": schema, "example": example}


def query(name: str, schema: Mapping[str, Any], description: str) -> Parameter:
    """Return a parameter of the query, which may be absent."""
    return {"name": name, "in": "query", "schema": schema, "description": description}


def header(name: str, schema: Mapping[str, Any], description: str) -> Parameter:
    """Return a header, which may be absent."""
    return {"name": name, "in": "header", "schema": schema, "description": description}


def limit(default: int, most: int, description: str = "most rows of the page") -> Parameter:
    """Return how many rows of a page are wanted."""
    schema = {"type": "integer", "minimum": 1, "maximum": most, "default": default}
    return query("limit", schema, description)
