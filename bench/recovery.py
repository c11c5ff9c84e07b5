"""How long does a stream pause when its worker is killed?

``python -m bench.recovery`` prints Markdown: ``kill -9`` of the worker of a service on the demo
model, and the time until the next token of the same stream, with the steps on the way. A service
without a standby of the worker is killed in turn with one that has it. ``bench.chaos`` prints the
recovery from all other faults.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Final

import httpx

from bench.chaos.wire import events_of
from bench.experiments.report import print_conditions, print_table, print_verdict
from ops.supervisor.process_monitor import HEALTHY_AFTER_S
from tests.support.processes.service import Service

#: Longest median pause of a service with a standby, in milliseconds.
PAUSE_MAX_MS: Final = 2000.0
PROMPT: Final = "Tell me a long story about a fox."
#: Pieces of text that a stream emits before its worker is killed.
PIECES_BEFORE_KILL: Final = 3
#: The steps of a recovery: title, and the log line, event or item that ends it.
STEPS: Final = (
    ("the supervisor notices the end", "ended, starting it again"),
    ("imports, lock, tables, connections", "model_loading"),
    ("the model is loaded, the disk cache scanned", "model_ready"),
    ("the deliveries are taken over", "took_over"),
    ("the next attempt is in the log", "AttemptStarted"),
    ("prefill, and the next token at the client", "token"),
)


class RecoveryBench:
    """Kills workers of one service.

    Args:
        data_dir: The service's data directory.
        standby: Whether a standby of the worker waits.
    """

    def __init__(self, data_dir: Path, *, standby: bool) -> None:
        env = {"SEMANTIC_JOBS__WORKER_STANDBY": "true" if standby else "false"}
        self._service = Service(data_dir, env=env).start()
        self._client = httpx.Client(base_url=self._service.base_url, timeout=60)

    def close(self) -> None:
        """Stop the service."""
        self._client.close()
        self._service.stop()

    def recover(self) -> dict[str, float]:
        """Kill the worker in the middle of an answer and read the stream on.

        Returns:
            When each of ``STEPS`` ended, in milliseconds after the kill.
        """
        worker = self._service.part("worker")
        body = {"prompt": PROMPT, "temperature": 0, "seed": 7}
        job_id = self._client.post("/v1/jobs", json=body).raise_for_status().json()["id"]
        with self._client.stream("GET", f"/v1/jobs/{job_id}/stream") as stream:
            items = (data for _, data in events_of(stream.iter_lines()))
            pieces = (item for item in items if item["kind"] == "text")
            for _ in range(PIECES_BEFORE_KILL):
                next(pieces)
            log_bytes = self._service.log_file.stat().st_size
            killed_at = time.time()
            worker.kill()
            next(piece for piece in pieces if piece["a"] == 2)
            ends = {"token": time.time()}
            for _ in pieces:
                pass
        ends |= self._log_times(log_bytes)
        ends["AttemptStarted"] = self._second_attempt(job_id)
        return {step: 1000 * (ends[step] - killed_at) for _, step in STEPS}

    def _log_times(self, begin: int) -> dict[str, float]:
        """Return the first instant of each line that the log holds after its byte ``begin``."""
        with self._service.log_file.open("rb") as log:
            log.seek(begin)
            lines = [json.loads(line) for line in log if line.startswith(b"{")]
        return {line["message"]: _instant(line["timestamp"]) for line in reversed(lines)}

    def _second_attempt(self, job_id: str) -> float:
        page = self._client.get("/v1/events", params={"stream": job_id, "limit": 100}).json()
        starts = [event for event in page["data"] if event["type"] == "AttemptStarted"]
        return _instant(starts[1]["recorded_at"])


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _print_steps(contenders: Sequence[Sequence[Mapping[str, float]]]) -> None:
    """Print the median end of each step, and the time since the step before."""
    rows, before = [], [0.0] * len(contenders)
    for title, step in STEPS:
        ends = [median(recovery[step] for recovery in one) for one in contenders]
        cells = [f"{end:,.0f} (+{end - last:,.0f})" for end, last in zip(ends, before, strict=True)]
        rows.append((title, *cells))
        before = ends
    longest = [f"{max(recovery['token'] for recovery in one):,.0f}" for one in contenders]
    print_table(
        ["ms after the kill", ">with standby", ">without"], [*rows, ("longest pause", *longest)]
    )


def main() -> None:
    """Measure on two services, in turn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=7, help="of each service")
    asked = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        benches = [
            RecoveryBench(Path(folder) / name, standby=standby)
            for name, standby in (("with", True), ("without", False))
        ]
        for bench in benches:
            stack.callback(bench.close)
        recoveries: list[list[dict[str, float]]] = [[], []]
        for _ in range(asked.kills):
            # The supervisor delays the restart of a worker that ends too soon after its start.
            time.sleep(HEALTHY_AFTER_S + 1)
            for bench, found in zip(benches, recoveries, strict=True):
                found.append(bench.recover())
    _print_steps(recoveries)
    pauses = [median(recovery["token"] for recovery in one) for one in recoveries]
    print_verdict(
        reached=pauses[0] <= PAUSE_MAX_MS,
        why=f"kill -9 to the next token takes {pauses[0]:,.0f} ms with a standby (bound"
        f" {PAUSE_MAX_MS:,.0f}) and {pauses[1]:,.0f} ms without, median of {asked.kills}",
    )
    print_conditions(began)


if __name__ == "__main__":
    main()
