"""Keys that share blocks by setting learn whole blocks of each other's prompts, never less."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from domain.kv.spec import BLOCK_TOKENS
from tests.support.polling import scaled
from tests.support.processes.service import Service

pytestmark = pytest.mark.nightly

NAMES = ("ann", "bob", "carol", "dave", "erin")
KEYS = {name: f"{name}-" + name[0] * 24 for name in NAMES}
WORDS = " ".join(f"Rule {number} names the heliotrope." for number in range(160)).split()
WITHIN_S = 120.0


def ask(service: Service, name: str, right: int) -> tuple[int, int]:
    """Send a prompt of which the first words are those of the others.

    Returns:
        Its length in tokens, and how many of them each place that counts says were cached.
    """
    text = " ".join([*WORDS[:right], *(word[::-1] for word in WORDS[right:])])
    body: dict[str, Any] = {"model": "claude-x", "max_tokens": 4}
    body["messages"] = [{"role": "user", "content": text}]
    with httpx.Client(
        base_url=service.base_url, headers={"x-api-key": KEYS[name]}, timeout=scaled(WITHIN_S)
    ) as http:
        reply = http.post("/v1/messages", json=body).raise_for_status()
        stream = reply.headers["x-semantic-job"]
        events = http.get("/v1/events", params={"stream": stream}).raise_for_status().json()
    usage = reply.json()["usage"]
    header = dict(re.findall(r"(\w+)=(\d+)", reply.headers["x-semantic-cache"]))
    (started,) = (one["data"] for one in events["data"] if one["type"] == "AttemptStarted")
    counts = {usage["cache_read_input_tokens"], int(header["cached"]), started["cached_tokens"]}
    assert len(counts) == 1, (usage, header, started)
    return int(header["prompt"]), counts.pop()


def test_a_guess_of_another_key_is_answered_in_whole_blocks(tmp_path: Path) -> None:
    service = Service(
        tmp_path / "data",
        env={
            "SEMANTIC_API_KEY": KEYS["ann"],
            "SEMANTIC_SERVER__API_KEYS": json.dumps([f"{k}={v}" for k, v in KEYS.items()]),
            "SEMANTIC_CACHE__SHARE_BETWEEN_KEYS": "true",
        },
    ).start()
    try:
        assert ask(service, "ann", len(WORDS))[1] == 0
        half = len(WORDS) // 2
        # The demo model goes on from checkpoints: the first guess makes the one that others use.
        guesses = {name: ask(service, name, half + at) for at, name in enumerate(NAMES[1:4])}
        assert all(cached % BLOCK_TOKENS == 0 for _, cached in guesses.values()), guesses
        assert guesses["carol"][1] == guesses["dave"][1] > 0
        prompt, again = ask(service, "ann", len(WORDS))
        assert again == prompt - 1
        assert service.stop() == 0, service.log()
        service.start()
        assert ask(service, "erin", half + 3)[1] % BLOCK_TOKENS == 0
        assert ask(service, "ann", len(WORDS)) == (prompt, again)
    finally:
        service.kill()
