"""Nothing that a client writes is in a file of logs."""

from __future__ import annotations

import json
import secrets
from typing import Any

import httpx

from tests.support.polling import scaled
from tests.support.processes.data_directory import holders
from tests.support.processes.service import Service

MARK = f"quokka{secrets.token_hex(6)}"
TURN = {"role": "user", "content": f"What does {MARK} mean?"}
#: Neither ``uniqueItems`` nor this pattern can be enforced.
SCHEMA = {
    "type": "object",
    "properties": {
        MARK: {"type": "array", "items": {"enum": [MARK]}, "uniqueItems": True, f"x{MARK}": 1},
        "odd": {"type": "string", "pattern": f"(?={MARK})("},
    },
    "required": [MARK],
}
TOOL = {"name": MARK, "description": MARK, "parameters": SCHEMA}
CHAT: dict[str, Any] = {"max_tokens": 4, "messages": [TURN], "stop": [MARK], "user": MARK}
CHAT["model"] = f"claude-{MARK}"


def _bodies() -> list[dict[str, Any]]:
    bodies = []
    for is_strict in (True, False):
        form = {"name": MARK, "schema": SCHEMA, "strict": is_strict}
        bodies.append(CHAT | {"response_format": {"type": "json_schema", "json_schema": form}})
        tool = {"type": "function", "function": TOOL | {"strict": is_strict}}
        bodies += (
            CHAT | {"tools": [tool], "tool_choice": choice} for choice in ("auto", "required")
        )
    return bodies


def test_words_of_requests_are_in_no_file_of_logs(service: Service) -> None:
    headers = {"user-agent": MARK, "x-request-id": MARK}
    with httpx.Client(base_url=service.base_url, headers=headers, timeout=scaled(120)) as http:
        replies = [http.post("/v1/chat/completions", json=body) for body in _bodies()]
        texts = [reply.text for reply in replies]
        assert {200, 400} <= {reply.status_code for reply in replies}, texts
        assert all(reply.status_code < 500 for reply in replies), texts
        http.post("/v1/messages", content=json.dumps(CHAT | {MARK: "\ud800"}))
        http.post("/v1/files", data={"purpose": MARK}, files={"file": (f"{MARK}.x", b"{}")})
        http.get(f"/v1/jobs/{MARK}", params={MARK: MARK})
    logs = service.data_dir / "logs"
    assert holders(logs, "wider_than_schema"), "the worker reports no schema"
    assert holders(service.data_dir, MARK), "the requests left nothing at all"
    assert not holders(logs, MARK)
    assert MARK not in service.log()
