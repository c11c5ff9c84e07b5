"""The id of a conversation whose requests name no agent."""

from __future__ import annotations

import hashlib

from domain.chat.request import ChatRequest, canonical_json
from domain.values import AgentId

#: Prefix of such an id.
CONTENT_PREFIX = "auto-"
#: Hex digits after it; a collision of two conversations costs tokens and changes no answer.
_DIGITS = 32


def content_id(request: ChatRequest) -> AgentId:
    """Return an id that all turns of a conversation share: a digest of its beginning.

    It is a function of the system prompt and the first text of the user. No event holds it:
    readers of the log could find equal conversations by it (ADR 0014).
    """
    opening = {
        role: next((turn.content for turn in request.messages if turn.role == role), "")
        for role in ("system", "user")
    }
    digest = hashlib.sha256(b"conversation\n" + canonical_json(opening)).hexdigest()
    return AgentId(CONTENT_PREFIX + digest[:_DIGITS])
