"""Does every invalid request get a typed 4xx, never a 5xx, without memory growth?

``python -m bench.fuzz --bodies 100000 --connections 10000`` starts a service of its own. The exit
code is 1 if an answer was a server failure, was not a typed error, or did not come, if the memory
of the api or of the worker grew, or if the stream of another client waited too long. The data
directory is kept then.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import chain, islice, pairwise
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Final

import psutil

from bench.client import chat_body, stream_together
from bench.fuzz.requests import FuzzRequest, fuzz_requests, raw_connections
from bench.fuzz.sending import send
from bench.report.section import print_conditions
from tests.support.processes.service import Service

#: Time between two wake-ups of the thread that measures how late this process is, in seconds.
WAKE_S: Final = 0.05
_BODY: Final = chat_body(
    "claude-local", [{"role": "user", "content": "Count to a hundred."}], max_tokens=128
)


class InnocentStream:
    """Streams one answer after the other until it is closed.

    Args:
        base_url: Address of the service.

    Attributes:
        longest_gap_s: Longest time between two pieces of one stream, or before its first, in
            seconds, without what this process itself was late during the stream.
        late_s: Longest time by which this process was late, in seconds.
        streams: Number of answers.
        faults: Streams that ended with an error.
    """

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self._closed = Event()
        self.longest_gap_s = 0.0
        self.late_s = 0.0
        self._lateness = Lateness()
        self.streams = 0
        self.faults: list[str] = []
        self._thread = Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """End after the current stream."""
        self._closed.set()
        self._thread.join()
        self._lateness.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._lateness.take()
            try:
                (trace,) = stream_together(self._base_url, [_BODY])
            except (OSError, RuntimeError) as error:
                self.faults.append(f"innocent stream: {error!r}")
                self._closed.wait(1)
                continue
            late_s = self._lateness.take()
            self.late_s = max(late_s, self.late_s)
            times = [trace.sent, *trace.tokens, trace.done]
            gap_s = max(later - earlier for earlier, later in pairwise(times)) - late_s
            self.longest_gap_s = max(gap_s, self.longest_gap_s)
            self.streams += 1


class Lateness:
    """By how much a thread of this process wakes up late: what its own machine takes from it."""

    def __init__(self) -> None:
        self._closed = Event()
        self._late_s = 0.0
        self._due_s = time.monotonic() + WAKE_S
        self._thread = Thread(target=self._run)
        self._thread.start()

    def take(self) -> float:
        """Return the longest delay since the last call, in seconds."""
        # The thread may not have woken up yet.
        late_s = max(self._late_s, time.monotonic() - self._due_s)
        self._late_s = 0.0
        return late_s

    def close(self) -> None:
        """End."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(max(0.0, self._due_s - time.monotonic())):
            now_s = time.monotonic()
            self._late_s = max(self._late_s, now_s - self._due_s)
            self._due_s = now_s + WAKE_S


#: Growth of the api's memory that is no leak: caches and the allocator.
GROWTH_MAX: Final = 64 * 2**20
#: Growth of the worker's memory that is no leak: contexts, within their budget, and its caches.
WORKER_GROWTH_MAX: Final = 512 * 2**20
PARTS: Final = ("api", "worker")
#: Longest wait of the innocent stream for its next piece, in seconds.
GAP_MAX_S: Final = 5.0
SHOWN_MAX: Final = 20


class Run:
    """Clients that share one list of requests and raw connections, and their results."""

    def __init__(
        self, service: Service, *, seed: int, bodies: int, connections: int = 0, skipped: int = 0
    ) -> None:
        self._service = service
        sent: Iterator[FuzzRequest | bytes] = chain[FuzzRequest | bytes](
            islice(fuzz_requests(seed, bodies), skipped, None), raw_connections(seed, connections)
        )
        self._remaining = enumerate(sent)
        self._count = bodies - skipped + connections
        self._fifth = max(1, self._count // 5)
        self._lock = Lock()
        self._processes = {part: service.part(f"{part}.main") for part in PARTS}
        #: Resident memory of each part after each fifth.
        self.rss_bytes: dict[str, list[int]] = {part: [] for part in PARTS}
        self.statuses: Counter[str] = Counter()
        self.faults: list[str] = []

    def send_all(self, clients: int) -> dict[str, int]:
        """Send everything; return by how many bytes each part grew after the first fifth."""
        with ThreadPoolExecutor(clients) as pool:
            for done in [pool.submit(self._client) for _ in range(clients)]:
                done.result()
        self._measure()
        return {part: rss[-1] - rss[0] if rss else 0 for part, rss in self.rss_bytes.items()}

    def _measure(self) -> None:
        for part, process in self._processes.items():
            try:
                self.rss_bytes[part].append(int(process.memory_info().rss))
            except psutil.NoSuchProcess:
                self.faults.append(f"the {part} died")

    def _client(self) -> None:
        while True:
            with self._lock:
                number, sent = next(self._remaining, (-1, None))
                if number > 0 and number % self._fifth == 0:
                    self._measure()
                    print(f"{number:,} of {self._count:,} sent", flush=True)
            if sent is None:
                return
            status, fault = send(self._service.port, sent)
            with self._lock:
                self.statuses[status] += 1
                if fault is not None:
                    self.faults.append(fault)


def main() -> int:
    """Run the requests, print the result, and return the exit code."""
    options = _options()
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    env = {"SEMANTIC_JOBS__MAX_TOKENS_DEFAULT": "2"}
    with Service(folder / "data", env=env) as service:
        run = Run(
            service,
            seed=options.seed,
            bodies=options.bodies,
            connections=options.connections,
            skipped=options.skip,
        )
        with closing(InnocentStream(service.base_url)) as innocent:
            grown_bytes = run.send_all(options.clients)
        code = service.stop()
    faults = run.faults + innocent.faults
    _print_result(run, innocent, faults, seed=options.seed)
    print_conditions(began)
    growth_max = {"api": GROWTH_MAX, "worker": options.worker_growth_max_mb * 2**20}
    has_grown = any(grown_bytes[part] > growth_max[part] for part in PARTS)
    has_waited = innocent.longest_gap_s > options.gap_max_s or not innocent.streams
    if faults or has_grown or has_waited or code != 0:
        print(f"data       {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz", description=__doc__)
    parser.add_argument("--bodies", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0, help="bodies that are left out at the start")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--gap-max-s", type=float, default=GAP_MAX_S)
    parser.add_argument("--worker-growth-max-mb", type=int, default=WORKER_GROWTH_MAX // 2**20)
    return parser.parse_args()


def _print_result(run: Run, innocent: InnocentStream, faults: list[str], *, seed: int) -> None:
    counted = ", ".join(f"{status}: {count:,}" for status, count in sorted(run.statuses.items()))
    print(f"sent       {sum(run.statuses.values()):,}, seed {seed} ({counted})")
    for part, rss_bytes in run.rss_bytes.items():
        fifths = ", ".join(f"{rss / 2**20:.0f}" for rss in rss_bytes)
        print(f"memory     of the {part} after each fifth: {fifths} MiB")
    print(f"innocent   {innocent.streams:,} streams, longest gap {innocent.longest_gap_s:.2f} s")
    print(f"           this process was up to {innocent.late_s:.2f} s late")
    for fault in faults[:SHOWN_MAX]:
        print(f"FAULT      {fault}")
    print(f"faults     {len(faults)}")


if __name__ == "__main__":
    sys.exit(main())
