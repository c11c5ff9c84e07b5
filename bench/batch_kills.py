"""Does every line of a batch get exactly one result while processes are killed?

``python -m bench.batch_kills`` sends 1,000 lines and kills the worker twice and the api once with
SIGKILL, evenly spaced. The checker of ``bench.chaos`` requires one job and one result of each line,
with the text that its question has without kills. ``--lines``, ``--worker-kills`` and
``--api-kills`` change the numbers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import httpx

from bench.chaos.checker import check
from bench.chaos.faults import FaultInjector
from bench.chaos.history import History, RequestSpec
from bench.chaos.load import Load
from bench.chaos.model import make_exact_model
from bench.chaos.plan import Fault, PlannedFault
from bench.chaos.run import Chaos, environment
from tests.support.polling import wait_until
from tests.support.processes.service import Service

QUESTIONS: Final = (
    "What is the capital of France?",
    "Tell me a story.",
    "What can you do?",
    "Say hello.",
)
ENDS_WITHIN_S: Final = 3600.0


def run(service: Service, *, lines: int, faults: Sequence[Fault], max_tokens: int) -> History:
    """Send a batch, inject the faults evenly spaced, stop the service, and return the history."""
    requests = [
        RequestSpec(prompt=question, max_tokens=max_tokens, temperature=0, seed=0)
        for question in QUESTIONS
    ]
    batch = tuple(requests[number % len(requests)] for number in range(lines))

    def work(load: Load, injector: FaultInjector) -> None:
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(load.send_batch, batch)
            for index, fault in enumerate(faults, start=1):
                done = _wait_for_results(service, lines * index // (len(faults) + 1))
                injector.inject(
                    PlannedFault(
                        number=index, fault=fault, gap_s=0, hasty=True, lasts_s=0, seed=index
                    )
                )
                print(f"killed     {fault} after {done:,} results", flush=True)
            sent.result()

    return Chaos(service, seed=1, clients=0, requests=requests, log=print).record(work)


def _wait_for_results(service: Service, least: int) -> int:
    """Wait until lines of the batch have results, and return how many; the api may be away."""

    def done() -> int:
        url = f"{service.base_url}/v1/messages/batches"
        listed = httpx.get(url, timeout=60).raise_for_status().json()["data"]
        counts = [one["progress"] for one in listed]
        return max((sum(one.values()) - one["processing"] for one in counts), default=0)

    return wait_until(
        done,
        lambda count: count >= least,
        within_s=ENDS_WITHIN_S,
        ignore=httpx.HTTPError,
        describe=service.log,
    )


def main() -> int:
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
    faults = [
        fault
        for index in range(max(asked.worker_kills, asked.api_kills))
        for fault, kills in ((Fault.WORKER, asked.worker_kills), (Fault.API, asked.api_kills))
        if index < kills
    ]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        env = environment(make_exact_model(Path(folder) / "model"))
        service = Service(Path(folder) / "data", env=env).start()
        try:
            history = run(service, lines=asked.lines, faults=faults, max_tokens=asked.max_tokens)
        finally:
            service.kill()
    (batch,) = (one for one in history.operations if one.lines)
    started = Counter(one.stream for one in history.events if one.type == "AttemptStarted")
    attempts = sorted(Counter(started.values()).items())
    print(f"lines      {asked.lines:,}: {dict(Counter(one.status for one in batch.results))}")
    print(f"attempts   {', '.join(f'{n:,} jobs took {k}' for k, n in attempts)}")
    print(f"took       {time.monotonic() - began:,.1f} s")
    violations = check(history)
    for violation in violations:
        print(f"VIOLATION  {violation}")
    return int(bool(violations))


if __name__ == "__main__":
    sys.exit(main())
