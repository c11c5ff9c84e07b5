"""JSON answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from api.http.messages import Reply


def json_reply(
    value: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Reply:
    """Return ``value`` as a whole answer."""
    body = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Reply(status=status, headers=headers or {}, body=body.encode("utf-8", "replace"))
