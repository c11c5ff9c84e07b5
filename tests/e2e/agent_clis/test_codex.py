"""The real Codex CLI from npm, answered by the demo model through ``/v1/responses``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from tests.support.clients.codex import ended, launched
from tests.support.polling import WITHIN_S, scaled
from tests.support.processes.service import Service

#: Most tokens of the first prompt: 10,000 without the catalogue.
FIRST_PROMPT_MAX = 3000


def _ask(codex: Path, service: Service, home: Path, *arguments: str) -> list[dict[str, Any]]:
    return ended(launched(codex, service, home, *arguments))


def test_codex_is_answered_and_goes_on(
    codex_binary: Path, service: Service, tmp_path: Path
) -> None:
    first = _ask(codex_binary, service, tmp_path, "What is the capital of France?")
    assert first[-1]["type"] == "turn.completed", first
    assert first[-1]["usage"]["output_tokens"] > 0
    session = first[0]["thread_id"]
    second = _ask(codex_binary, service, tmp_path, "resume", session, "Say hello.")
    assert second[-1]["type"] == "turn.completed", second
    jobs = httpx.get(
        f"{service.base_url}/v1/jobs", params={"limit": 50}, timeout=scaled(WITHIN_S)
    ).json()["data"]
    asked = [job for job in jobs if job["protocol"] == "openai-responses"]
    assert asked
    last, before = asked[0]["usage"], asked[-1]["usage"]
    assert before["prompt_tokens"] <= FIRST_PROMPT_MAX
    # The second question knows all that the first one read.
    assert last["cached_tokens"] >= before["prompt_tokens"] - 2, (before, last)
