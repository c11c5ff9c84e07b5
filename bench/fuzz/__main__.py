"""Does every invalid request get a typed 4xx, never a 5xx, without memory growth?

``python -m bench.fuzz --bodies 10000 --seed 7`` starts a service of its own. The exit code is 1 if
an answer was a server failure, was not a typed error, or did not come, or if the api's memory grew.
"""

from __future__ import annotations

import argparse
import http.client
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Final
from urllib.parse import unquote

import psutil

from bench.experiments.report import print_conditions
from bench.fuzz.requests import FuzzRequest, fuzz_requests
from bench.fuzz.verdict import fault_of
from tests.support.processes.service import Service

#: Seconds without data after which a client leaves; an accepted generation may take longer.
PATIENCE_S: Final = 20.0
#: Growth of the api's memory that is no leak: caches and the allocator.
GROWTH_MAX: Final = 64 * 2**20
SHOWN_MAX: Final = 20
#: Longest error body.
ANSWER_BYTES_MAX: Final = 65_536


class Run:
    """Clients that share one list of requests, and their results."""

    def __init__(self, service: Service, *, seed: int, bodies: int) -> None:
        self._service = service
        self._remaining = enumerate(fuzz_requests(seed, bodies))
        self._fifth = max(1, bodies // 5)
        self._lock = Lock()
        self._api = psutil.Process(service.part("api.main").pid)
        #: Resident memory of the api after each fifth of the requests.
        self.rss_bytes: list[int] = []
        self.statuses: Counter[str] = Counter()
        self.faults: list[str] = []

    def send_all(self, clients: int) -> int:
        """Send everything; return by how many bytes the api grew after the first fifth."""
        threads = [Thread(target=self._client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not self._api.is_running():
            self.faults.append("the api died")
            return 0
        self.rss_bytes.append(int(self._api.memory_info().rss))
        return self.rss_bytes[-1] - self.rss_bytes[0]

    def _client(self) -> None:
        while True:
            with self._lock:
                number, request = next(self._remaining, (-1, None))
                if number > 0 and number % self._fifth == 0:
                    self.rss_bytes.append(int(self._api.memory_info().rss))
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
            # The server may refuse and close before the body is sent; its answer is readable.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(request.method, request.target, request.body, headers)
            answer = connection.getresponse()
            refused = answer.status >= 400
            body = answer.read(ANSWER_BYTES_MAX) if refused else b""
        except TimeoutError:
            return "left", None
        except (OSError, http.client.HTTPException) as error:
            return "broken", f"no answer: {error!r}"
        finally:
            connection.close()
        path = unquote(request.target.partition("?")[0])
        return str(answer.status), fault_of(path, answer.status, request.headers, body)


def main() -> int:
    """Run the requests, print the result, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz", description=__doc__)
    parser.add_argument("--bodies", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    env = {"SEMANTIC_JOBS__MAX_TOKENS_DEFAULT": "2"}
    service = Service(folder / "data", env=env).start()
    try:
        run = Run(service, seed=options.seed, bodies=options.bodies)
        grown_bytes = run.send_all(options.clients)
    finally:
        code = service.stop() if service.process.poll() is None else 1
        shutil.rmtree(folder, ignore_errors=True)
    counted = ", ".join(f"{status}: {count:,}" for status, count in sorted(run.statuses.items()))
    print(f"requests   {sum(run.statuses.values()):,}, seed {options.seed} ({counted})")
    fifths = ", ".join(f"{rss / 2**20:.0f}" for rss in run.rss_bytes)
    print(f"memory     of the api after each fifth: {fifths} MiB")
    for fault in run.faults[:SHOWN_MAX]:
        print(f"FAULT      {fault}")
    print(f"faults     {len(run.faults)}")
    print_conditions(began)
    return int(bool(run.faults) or grown_bytes > GROWTH_MAX or code != 0)


if __name__ == "__main__":
    sys.exit(main())
