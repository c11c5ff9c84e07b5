"""What a conversation that names nobody is known by."""

from __future__ import annotations

import hashlib

from domain.chat.request import ChatRequest, canonical_json
from domain.values import AgentId

#: What such a name begins with.
CONTENT_PREFIX = "auto-"
#: Hex digits after it; two conversations that meet by chance cost tokens, not answers.
_DIGITS = 32


def content_id(request: ChatRequest) -> AgentId:
    """Return a name that all turns of a conversation share: a digest of how it begins.

    It is a function of the system prompt and the first text of the user. It stands in no event:
    whoever can read the log could tell by it who said the same (ADR 0014).
    """
    opening = {
        role: next((turn.content for turn in request.messages if turn.role == role), "")
        for role in ("system", "user")
    }
    digest = hashlib.sha256(b"conversation\n" + canonical_json(opening)).hexdigest()
    return AgentId(CONTENT_PREFIX + digest[:_DIGITS])
