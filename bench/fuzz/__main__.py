"""Bad requests against a real service: always a typed 4xx, never a 5xx, memory flat.

``python -m bench.fuzz --bodies 10000 --seed 7`` starts a service of its own. It ends with 1 if an
answer was a failure of ours, had no form, or did not come, or if the api's memory grew.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from threading import Lock, Thread
from typing import Final
from urllib.parse import unquote

import psutil

from bench.experiments.report import print_conditions
from bench.fuzz.requests import FuzzRequest, fuzz_requests
from bench.fuzz.verdict import fault_of
from tests.support.service import Service

#: A client that hears nothing this long leaves; a generation that was let through may take longer.
PATIENCE_S: Final = 20.0
#: Growth of the api's memory that is no leak: caches that fill, and the allocator's own.
GROWTH_MAX: Final = 64 * 2**20
#: Requests before memory is measured for the first time.
WARM_SHARE: Final = 0.2
SHOWN_MAX: Final = 20


class Run:
    """Clients that share one list of requests, and what they heard."""

    def __init__(self, service: Service, requests: list[FuzzRequest]) -> None:
        self._service = service
        self._left = iter(enumerate(requests))
        self._warm_at = int(len(requests) * WARM_SHARE)
        self._lock = Lock()
        self._api = psutil.Process(service.part("api.main").pid)
        self.warm_bytes = 0
        self.statuses: Counter[str] = Counter()
        self.faults: list[str] = []

    def go(self, clients: int) -> int:
        """Send everything; return by how many bytes the api has grown since it was warm."""
        threads = [Thread(target=self._client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not self._api.is_running():
            self.faults.append("the api died")
            return 0
        return int(self._api.memory_info().rss) - self.warm_bytes

    def _client(self) -> None:
        while True:
            with self._lock:
                number, request = next(self._left, (-1, None))
                if number == self._warm_at:
                    self.warm_bytes = int(self._api.memory_info().rss)
            if request is None:
                return
            status, fault = self._ask(request)
            with self._lock:
                self.statuses[status] += 1
                if fault is not None:
                    strokes = ", ".join(request.strokes)
                    self.faults.append(
                        f"{request.method} {request.target[:80]} [{strokes}] {fault}"
                    )

    def _ask(self, request: FuzzRequest) -> tuple[str, str | None]:
        connection = http.client.HTTPConnection("127.0.0.1", self._service.port, PATIENCE_S)
        try:
            headers = {name: value.encode("latin-1") for name, value in request.headers.items()}
            connection.request(request.method, request.target, request.body, headers)
            answer = connection.getresponse()
            body = answer.read(65_536) if answer.status >= 400 else b""
        except TimeoutError:
            return "left", None
        except (OSError, http.client.HTTPException) as error:
            return "broken", f"no answer: {error!r}"
        finally:
            connection.close()
        path = unquote(request.target.partition("?")[0])
        return str(answer.status), fault_of(path, answer.status, request.headers, body)


def main() -> int:
    """Run it, print what happened, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz", description=__doc__)
    parser.add_argument("--bodies", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=4)
    asked = parser.parse_args()
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    env = {"SEMANTIC_JOBS__MAX_TOKENS_DEFAULT": "2", "SEMANTIC_JOBS__FINISH_WITHIN_S": "30"}
    service = Service(folder / "data", env=env).start()
    try:
        run = Run(service, list(itertools.islice(fuzz_requests(asked.seed, asked.bodies), None)))
        grown_bytes = run.go(asked.clients)
    finally:
        code = service.stop() if service.process.poll() is None else 1
        shutil.rmtree(folder, ignore_errors=True)
    counted = ", ".join(f"{status}: {count:,}" for status, count in sorted(run.statuses.items()))
    print(f"requests   {sum(run.statuses.values()):,}, seed {asked.seed} ({counted})")
    print(f"memory     the api grew by {grown_bytes / 2**20:.1f} MiB after the first fifth")
    for fault in run.faults[:SHOWN_MAX]:
        print(f"FAULT      {fault}")
    print(f"faults     {len(run.faults)}")
    print_conditions(began)
    return int(bool(run.faults) or grown_bytes > GROWTH_MAX or code != 0)


if __name__ == "__main__":
    sys.exit(main())
