"""Does every line of a batch get exactly one result while processes are killed?

``python -m bench.batch_kills`` sends 1,000 lines and kills the worker twice and the api once with
SIGKILL, evenly spaced. It checks that each line has one result, that the log has one job for each
line, that no job ended twice, and that greedy answers to the same question have the same text.
``--lines``, ``--worker-kills`` and ``--api-kills`` change the numbers.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.processes.service import Service

QUESTIONS: Final = (
    "What is the capital of France?",
    "Tell me a story.",
    "What can you do?",
    "Say hello.",
)
POLL_S: Final = 0.05
ENDS_WITHIN_S: Final = 3600.0
WORKER: Final = "worker"
API: Final = "api"
_ENDS: Final = ("JobCompleted", "JobFailed", "JobCancelled", "JobExpired")


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """The result of a run.

    Attributes:
        lines: Number of lines sent.
        kills: The killed parts in order, each with the number of results at that time.
        seconds: From the acceptance to the end of the batch.
        counts: Lines by result type.
        attempts: Lines by number of attempts.
    """

    lines: int
    kills: tuple[tuple[str, int], ...]
    seconds: float
    counts: dict[str, int]
    attempts: dict[int, int]


def run(service: Service, *, lines: int, parts: tuple[str, ...], max_tokens: int) -> Killed:
    """Send a batch, kill ``parts`` one after the other, and check the results."""
    requests = [
        {
            "custom_id": f"line-{number}",
            "params": {
                "model": "semantic-demo",
                "max_tokens": max_tokens,
                "temperature": 0,
                "messages": [{"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]}],
            },
        }
        for number in range(lines)
    ]
    began = time.monotonic()
    with httpx.Client(base_url=service.base_url, timeout=60) as client:
        created = client.post("/v1/messages/batches", json={"requests": requests})
        created.raise_for_status()
        path = f"/v1/messages/batches/{created.json()['id']}"
        kills: list[tuple[str, int]] = []
        for index, part in enumerate(parts, start=1):
            least = lines * index // (len(parts) + 1)
            done = _until(client, path, partial(_has, least))
            service.part(f"{part}.main").kill()
            kills.append((part, _done(done)))
        ended = _until(client, path, lambda batch: batch["processing_status"] == "ended")
        seconds = time.monotonic() - began
        results = [json.loads(line) for line in client.get(f"{path}/results").text.splitlines()]
        events = _events(client)
    _check(results, lines)
    batch_id = "batch-" + ended["id"].removeprefix("msgbatch_")
    ours = [event for event in events if event["correlation_id"] == batch_id]
    kinds = Counter(event["type"] for event in ours)
    assert kinds["JobSubmitted"] == lines, kinds
    ends = Counter(event["stream"] for event in ours if event["type"] in _ENDS)
    assert set(ends.values()) == {1}, "a line ended twice"
    started = Counter(event["stream"] for event in ours if event["type"] == "AttemptStarted")
    return Killed(
        lines=lines,
        kills=tuple(kills),
        seconds=seconds,
        counts={name: n for name, n in ended["request_counts"].items() if n},
        attempts=dict(sorted(Counter(started.values()).items())),
    )


def _check(results: list[Any], lines: int) -> None:
    names = [result["custom_id"] for result in results]
    assert sorted(names) == sorted(f"line-{number}" for number in range(lines)), "not one each"
    texts: dict[int, set[str]] = {}
    for result in results:
        assert result["result"]["type"] == "succeeded", result
        blocks = result["result"]["message"]["content"]
        question = int(result["custom_id"].removeprefix("line-")) % len(QUESTIONS)
        texts.setdefault(question, set()).add("".join(block["text"] for block in blocks))
    assert all(len(texts_seen) == 1 for texts_seen in texts.values()), texts


def _until(client: httpx.Client, path: str, fits: Callable[[Any], bool]) -> Any:
    """Poll until the condition holds; the api may be unavailable meanwhile."""
    deadline = time.monotonic() + ENDS_WITHIN_S
    while time.monotonic() < deadline:
        try:
            batch = client.get(path)
            if batch.status_code == httpx.codes.OK and fits(batch.json()):
                return batch.json()
        except httpx.TransportError:
            pass
        time.sleep(POLL_S)
    raise AssertionError("the batch did not end")


def _done(batch: Any) -> int:
    progress = batch["progress"]
    return int(sum(progress.values()) - progress["processing"])


def _has(least: int, batch: Any) -> bool:
    return _done(batch) >= least


def _events(client: httpx.Client) -> list[Any]:
    events: list[Any] = []
    while True:
        after = events[-1]["position"] if events else 0
        page = client.get("/v1/events", params={"after": after, "limit": 1000}).json()
        events += page["data"]
        if not page["has_more"]:
            return events


def main() -> None:
    """Run the batch on a service of its own and print the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--worker-kills", type=int, default=2)
    parser.add_argument("--api-kills", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=16)
    asked = parser.parse_args()
    # The kills of the api are spread between those of the worker.
    parts = tuple(
        part
        for index in range(max(asked.worker_kills, asked.api_kills))
        for part, kills in ((WORKER, asked.worker_kills), (API, asked.api_kills))
        if index < kills
    )
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder) / "data").start()
        try:
            done = run(service, lines=asked.lines, parts=parts, max_tokens=asked.max_tokens)
        finally:
            service.stop()
    print(f"lines      {done.lines:,}, each with one result: {done.counts}")
    print("killed     " + ", ".join(f"{part} after {n:,} results" for part, n in done.kills))
    print(f"attempts   {', '.join(f'{n:,} lines took {k}' for k, n in done.attempts.items())}")
    print(f"took       {done.seconds:,.1f} s, {done.lines / done.seconds:,.1f} lines/s")


if __name__ == "__main__":
    main()
