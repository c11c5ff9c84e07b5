"""A context that outlives the service: run it, kill or restart the service, run it again.

Start the service (``make demo``), then run ``.venv/bin/python docs/examples/kept_context.py``.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import httpx

#: Address of the service, unless SERVICE_URL names another.
URL = "http://127.0.0.1:8000"
#: A request waits for at most a minute; a long document takes longer. In seconds.
PATIENCE_S = 300.0
#: Time between two looks at a job that takes longer than one request may wait, in seconds.
LOOK_S = 0.2
ENDED = {"completed", "failed", "cancelled", "expired"}


def main() -> None:
    """Let an agent read a document, ask a question, and print what the cache knew of the prompt."""
    options = _options()
    document = options.document.read_text(encoding="utf-8")
    key = os.environ.get("SEMANTIC_API_KEY")
    with httpx.Client(
        base_url=os.environ.get("SERVICE_URL", URL),
        headers={"x-api-key": key} if key else {},
        timeout=PATIENCE_S,
    ) as http:
        body = {
            "agent_id": options.agent,
            "system": document,
            "prompt": options.question,
            "max_tokens": 24,
            "temperature": 0,
        }
        job = ended(http, http.post("/v1/jobs", json=body).raise_for_status().json())
    if job["status"] != "completed":
        raise SystemExit(f"{job['id']} is {job['status']}: {job['error']}")
    cache, timings = job["cache"], job["timings"]
    computed = cache["prompt_tokens"] - cache["cached_tokens"]
    print(f"prompt    {cache['prompt_tokens']:,} tokens of {options.document.name} and a question")
    print(f"known     {cache['cached_tokens']:,} tokens, from {cache['source']}")
    print(f"computed  {computed:,} tokens, first token after {timings['first_token_ms']:,.0f} ms")
    print(f"answer    {job['output']['text']}")


def ended(http: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
    """Return a job when it has ended; a service that restarts meanwhile is asked again."""
    while job["status"] not in ENDED:
        time.sleep(LOOK_S)
        try:
            job = http.get(job["links"]["self"]).raise_for_status().json()
        except httpx.TransportError:
            continue
    return job


def _options() -> argparse.Namespace:
    page = Path(__file__).resolve().parents[1] / "agents.md"
    parser = argparse.ArgumentParser(description="A context that outlives the service.")
    parser.add_argument("--agent", default="reader", help="the agent whose context is kept")
    parser.add_argument("--document", type=Path, default=page, help="a text file")
    parser.add_argument("--question", default="What is the capital of France?")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except httpx.HTTPStatusError as error:
        raise SystemExit(f"{error}\n{error.response.text}") from error
    except httpx.TransportError as error:
        raise SystemExit(f"no answer: {error}; does the service run? make demo") from error
