"""Ten agents that share one long document: forks of one reader, beside ten cold prompts.

Start the service (``make demo``), then run ``.venv/bin/python docs/examples/ten_agents.py``.
"""

from __future__ import annotations

import argparse
import os
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

#: Address of the service, unless SERVICE_URL names another.
URL = "http://127.0.0.1:8000"
TOWNS = ("France", "Italy", "Spain", "Japan", "Norway", "Greece", "Egypt", "Portugal", "Austria",
         "Sweden")  # fmt: skip
OPTIONS = {"max_tokens": 16, "temperature": 0}
ENDED = {"completed", "failed", "cancelled", "expired"}
#: A request waits for at most a minute; accepting one takes longer on a busy machine. In seconds.
PATIENCE_S = 300.0
#: Time between two looks at a job that takes longer than one request may wait, in seconds.
LOOK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer, and how many tokens of its prompt the cache knew."""

    text: str
    prompt_tokens: int
    cached_tokens: int

    @property
    def computed(self) -> int:
        """The tokens that the model had to read."""
        return self.prompt_tokens - self.cached_tokens


def main() -> None:
    """Ask the same questions of cold prompts and of forks, and print what each took."""
    options = _options()
    document = options.document.read_text(encoding="utf-8")
    questions = [f"What is the capital of {one}?" for one in TOWNS[: options.agents]]
    key = os.environ.get("SEMANTIC_API_KEY")
    headers = {"x-api-key": key} if key else {}
    with httpx.Client(
        base_url=os.environ.get("SERVICE_URL", URL), headers=headers, timeout=PATIENCE_S
    ) as http:
        cold, cold_s = _timed(lambda: ask_cold(http, document, questions))
        forked, forked_s = _timed(lambda: ask_forks(http, document, questions))
    print(f"{options.document.name}, {len(document):,} characters, {len(questions)} questions")
    print(f"cold   {_sums(cold)}  {cold_s:.1f} s")
    print(f"forks  {_sums(forked)}  {forked_s:.1f} s, the first reading included")
    saved = sum(one.computed for one in cold) / sum(one.computed for one in forked)
    print(f"forks computed {saved:.1f} times fewer tokens, {cold_s / forked_s:.1f} times faster")
    for question, answer in zip(questions, forked[1:], strict=True):
        print(f"{question} {answer.text} ({answer.cached_tokens:,} tokens of the prompt known)")


def ask_cold(http: httpx.Client, document: str, questions: Sequence[str]) -> list[Answer]:
    """Send each question with a copy of the document that shares no beginning with another."""

    def ask(number: int) -> Answer:
        system = f"Copy {uuid.uuid4()} of a document.\n\n{document}"
        body = {"system": system, "prompt": questions[number], **OPTIONS}
        return _answer(http, "/v1/jobs", body)

    return _at_once(ask, len(questions))


def ask_forks(http: httpx.Client, document: str, questions: Sequence[str]) -> list[Answer]:
    """Let one agent read the document, fork it for each question, and ask all forks at once.

    Returns:
        The answer of the reader, then those of the forks.
    """
    reader = f"reader-{uuid.uuid4().hex[:8]}"
    system = f"A document.\n\n{document}"
    http.post("/v1/agents", json={"id": reader, "system": system, **OPTIONS}).raise_for_status()
    read = _answer(http, f"/v1/agents/{reader}/generate", {"prompt": "Hello!"})

    def ask(number: int) -> Answer:
        fork = f"{reader}-{number + 1}"
        http.post(f"/v1/agents/{reader}/fork", json={"id": fork}).raise_for_status()
        return _answer(http, f"/v1/agents/{fork}/generate", {"prompt": questions[number]})

    return [read, *_at_once(ask, len(questions))]


def _answer(http: httpx.Client, path: str, body: dict[str, Any]) -> Answer:
    """Submit a job and wait for its end."""
    accepted = http.post(path, json=body, headers={"prefer": "wait=60"}).raise_for_status()
    job: dict[str, Any] = accepted.json()
    while job["status"] not in ENDED:
        time.sleep(LOOK_S)
        job = http.get(job["links"]["self"]).raise_for_status().json()
    if job["status"] != "completed":
        raise SystemExit(f"{job['id']} {job['status']}: {job['error']}")
    usage = job["usage"]
    return Answer(
        text=job["output"]["text"],
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=usage["cached_tokens"],
    )


def _at_once(ask: Callable[[int], Answer], count: int) -> list[Answer]:
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(ask, range(count)))


def _timed(ask: Callable[[], list[Answer]]) -> tuple[list[Answer], float]:
    began = time.monotonic()
    return ask(), time.monotonic() - began


def _sums(answers: Sequence[Answer]) -> str:
    prompts = sum(one.prompt_tokens for one in answers)
    computed = sum(one.computed for one in answers)
    return f"{prompts:>8,} tokens of prompts  {computed:>8,} computed"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, choices=range(1, len(TOWNS) + 1), default=len(TOWNS))
    parser.add_argument(
        "--document",
        type=Path,
        default=Path(__file__).parents[1] / "agents.md",
        help="a text file; by default the page about agents",
    )
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except httpx.HTTPStatusError as error:
        raise SystemExit(f"{error}\n{error.response.text}") from error
    except httpx.TransportError as error:
        raise SystemExit(f"no answer: {error}; does the service run? make demo") from error
