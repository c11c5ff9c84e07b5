"""A night's work as a graph: each file read by one job, one summary of all, its end as a webhook.

The whole graph is submitted at once and held until the night. The service keeps all state: this
script ends after the submission, and a repeat of it on the same day changes nothing.

    .venv/bin/python docs/examples/nightly_summary.py docs/*.md --at 03:00
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

#: Address of the service, unless SERVICE_URL names another.
URL = "http://127.0.0.1:8000"
#: Files of one night, and characters that are read of each.
FILES_MAX = 20
CHARACTERS_MAX = 4_000


def main() -> None:
    """Submit a job for each file, and one that waits for all of them."""
    options = _options()
    key = os.environ.get("SEMANTIC_API_KEY")
    headers = {"x-api-key": key} if key else {}
    start = _next(options.at)
    with httpx.Client(
        base_url=os.environ.get("SERVICE_URL", URL), headers=headers, timeout=60
    ) as http:
        readings = {
            f"file-{number}": submit(http, reading(path, start))
            for number, path in enumerate(options.files[:FILES_MAX])
        }
        last = submit(http, summary(readings, options.webhook))
    print(f"{len(readings)} files, held until {start}")
    print(f"summary: semantic jobs show {last['id']} --follow")


def reading(path: Path, start: str) -> dict[str, Any]:
    """Return the job that reads one file."""
    text = path.read_text("utf-8", "replace")[:CHARACTERS_MAX]
    return {
        "prompt": f"Sum up this file in one sentence.\n\n{text}",
        "max_tokens": 48,
        "priority": "batch",
        "start_after": start,
    }


def summary(readings: dict[str, dict[str, Any]], webhook: str | None) -> dict[str, Any]:
    """Return the job that waits for the readings; one that failed leaves its line empty."""
    lines = "\n".join(f"- {{{{after.{name}.text}}}}" for name in readings)
    body: dict[str, Any] = {
        "prompt": f"Sum up these notes in three sentences.\n\n{lines}",
        "max_tokens": 96,
        "priority": "batch",
        "after": {name: {"job": job["id"], "condition": "ended"} for name, job in readings.items()},
    }
    return body if webhook is None else body | {"webhook": {"url": webhook}}


def submit(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """Submit a job, or find the one that was submitted with the same body."""
    key = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    reply = http.post("/v1/jobs", json=body, headers={"idempotency-key": key})
    made: dict[str, Any] = reply.raise_for_status().json()
    return made


def _next(at: str) -> str:
    """Return the next instant at which the local clock shows a time."""
    now = datetime.now().astimezone().replace(microsecond=0)
    if at == "now":
        return now.isoformat()
    hour, _, minute = at.partition(":")
    start = now.replace(hour=int(hour), minute=int(minute or 0), second=0)
    return (start if start > now else start + timedelta(days=1)).isoformat()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Read files at night, and sum them up.")
    parser.add_argument("files", nargs="+", type=Path, help=f"{FILES_MAX} at most are read")
    parser.add_argument("--at", default="03:00", help="the local time of the first job, or now")
    parser.add_argument("--webhook", help="the receiver of the end of the summary")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except httpx.HTTPStatusError as error:
        raise SystemExit(f"{error}\n{error.response.text}") from error
    except httpx.TransportError as error:
        raise SystemExit(f"no answer: {error}; does the service run? make demo") from error
