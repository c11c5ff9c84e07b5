"""Stop hook of Claude Code: write what the turn cost, as the service has recorded it.

Each line of ``.claude/ledger.jsonl`` is one job: the tokens of its prompt, how many of them the
cache knew, and the tokens of the answer. A session is an agent of the service, by its id.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any


def main() -> None:
    """Append the jobs of the session that are not in the ledger yet."""
    session: str = json.load(sys.stdin)["session_id"]
    ledger = Path(os.environ["CLAUDE_PROJECT_DIR"]) / ".claude" / "ledger.jsonl"
    known = set()
    if ledger.exists():
        known = {json.loads(line)["job"] for line in ledger.read_text().splitlines()}
    with ledger.open("a", encoding="utf-8") as lines:
        for job in reversed(jobs_of(session)):
            if job["id"] not in known and job["status"] == "completed":
                lines.write(json.dumps(entry(job)) + "\n")


def jobs_of(session: str) -> list[dict[str, Any]]:
    """Return the latest jobs of a session, newest first."""
    base_url = os.environ["ANTHROPIC_BASE_URL"]
    request = urllib.request.Request(f"{base_url}/v1/jobs?agent_id={session}&limit=100")  # noqa: S310 - the address that Claude Code uses itself
    # `semantic launch claude` passes the key of the service, if it has one, as a header of its own.
    for line in os.environ.get("ANTHROPIC_CUSTOM_HEADERS", "").splitlines():
        name, _, value = line.partition(":")
        request.add_header(name.strip(), value.strip())
    with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310 - the address that Claude Code uses itself
        found: list[dict[str, Any]] = json.load(reply)["data"]
    return found


def entry(job: dict[str, Any]) -> dict[str, Any]:
    """Return the line of one job."""
    usage = job["usage"]
    return {
        "job": job["id"],
        "prompt": usage["prompt_tokens"],
        "known": usage["cached_tokens"],
        "answer": usage["completion_tokens"],
    }


if __name__ == "__main__":
    main()
