"""The fields of a request for a response that the log stores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from api.dialects.openai_responses.tools import ToolKinds
from domain.chat.request import canonical_json

Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedFields:
    """Fields of a request that the log stores and the response object repeats.

    Attributes:
        items: The input.
        previous: Id of the previous response.
        is_stored: Whether the response can be retrieved later.
        is_background: Whether the response goes on without a connection.
        is_signed: Whether ``encrypted_content`` carries the reasoning.
        kinds: Kinds of the tools; see ``ResponseTools``.
        echo: Members of the response object that only repeat the request.
        is_prewarm: Whether only the prompt was read, and no output is missing.
        is_compaction: Whether the answer is the summary of the conversation.
        kept: Of an automatic compaction, how many items at the end stay in words.
        compacted: The compaction that the response began with.
        compared: The job that the cache diagnosis compares with; "" where it did not exist.
    """

    items: tuple[Item, ...]
    previous: str | None
    is_stored: bool
    is_background: bool
    is_signed: bool
    kinds: ToolKinds
    echo: Mapping[str, Any]
    compared: str | None = None
    is_prewarm: bool = False
    is_compaction: bool = False
    kept: int | None = None
    compacted: Item | None = None


def encode_fields(requested: RequestedFields) -> bytes:
    """Return the stored form of the fields of a request."""
    return canonical_json({one.name: getattr(requested, one.name) for one in fields(requested)})


def decode_fields(payload: bytes) -> RequestedFields:
    """Return the fields that ``encode_fields`` encoded."""
    data = json.loads(payload)
    known = {one.name: data[one.name] for one in fields(RequestedFields) if one.name in data}
    return RequestedFields(**(known | {"items": tuple(data["items"])}))
