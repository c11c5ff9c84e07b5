"""What do spans cost a worker, and trace ids a request?

``python -m bench.trace_overhead``. One engine runs the demo model. The same use case runs the same
jobs with spans exported to a receiver in a process of its own, and without. The two take turns, so
both see the same machine. Then the trace ids of a request are timed alone.
"""

from __future__ import annotations

import argparse
import http.server
import logging
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import structlog

from api.http_server.exchange import Exchange
from bench.experiments.report import (
    log_to_stderr,
    print_conditions,
    print_table,
    use_worker_allocator,
)
from bench.log_overhead import Side, Turn, cost_of, print_sides, started_engine, take_turns
from domain.log.trace import new_trace
from domain.usecases.jobs.attempts import AttemptReport
from ops.clock import SystemClock
from ops.setting_groups.tracing import TracingSettings
from ops.tracing.open import open_spans
from ops.tracing.span import NoSpans
from tests.support.fakes.broker import FakeBroker
from tests.support.fakes.event_log import InMemoryEventLog
from worker.recording.attempt_observer import JobObserver
from worker.recording.attempt_spans import spans_of

EXCHANGES = 20_000
BATCHES = 20
ATTEMPTS_PER_BATCH = 100


def main() -> None:
    """Run both sides in turn and print the cost of the spans."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--receive", action="store_true", help="be the receiver")
    asked = parser.parse_args()
    if asked.receive:
        _receive()
        return
    use_worker_allocator()
    log_to_stderr()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    began, clock, broker = time.monotonic(), SystemClock(), FakeBroker()
    engine = started_engine(broker)
    with _receiver() as url:
        settings = TracingSettings(enabled=True, endpoint=url)
        spans = open_spans(settings, part="worker", logger=structlog.stdlib.get_logger())
        log, plain = InMemoryEventLog(clock), InMemoryEventLog(clock)
        seen, unseen = _Keeper(spans, log), JobObserver(NoSpans(), plain)
        sides = {
            "exported": Side(log, engine, broker, observer=seen, is_sampled=True),
            "off": Side(plain, engine, broker, observer=unseen),
        }
        turns = take_turns(sides, rounds=asked.rounds, tokens=asked.tokens)
        spans.close()
        attempt_ms = _attempt_cpu_ms(seen.last, settings)
    engine.close(0)
    print_sides("spans", turns)
    print(f"exported over off, median of {asked.rounds} pairs: ", end="")
    print(cost_of(turns["exported"], turns["off"]) + "\n")
    share = attempt_ms / (asked.tokens * statistics.median(_cpu(turns["off"])))
    print(f"spans of one attempt, built and sent: {attempt_ms:.2f} ms of CPU, ", end="")
    print(f"{100 * share:.2f} % of {asked.tokens} tokens\n")
    print_table(["trace ids of a request", ">CPU \u00b5s"], list(_exchange_rows()))
    print_conditions(began)


class _Keeper(JobObserver):
    """Keeps the last report."""

    last: AttemptReport

    def ended(self, report: AttemptReport) -> None:
        """Keep it, and export its spans."""
        self.last = report
        super().ended(report)


def _attempt_cpu_ms(report: AttemptReport, settings: TracingSettings) -> float:
    """Return the CPU time of this process for the spans of an attempt, sent in full batches."""
    taken_s = 0.0
    for _ in range(BATCHES):
        spans = open_spans(settings, part="bench", logger=structlog.stdlib.get_logger())
        begun_s = time.process_time()
        for _ in range(ATTEMPTS_PER_BATCH):
            for span in spans_of(report, {}, has_texts=False):
                spans.put(span)
        spans.close()
        taken_s += time.process_time() - begun_s
    return 1000 * taken_s / (BATCHES * ATTEMPTS_PER_BATCH)


def _cpu(turns: Sequence[Turn]) -> list[float]:
    return [turn.cpu_ms_a_token for turn in turns]


def _exchange_rows() -> Iterator[tuple[str, str]]:
    sent = {"traceparent": str(new_trace(sampled=True))}
    off = NoSpans().samples
    cases = {
        "drawn, and bound to log lines": lambda: Exchange.begin(off).read({}),
        "read from traceparent": lambda: Exchange.begin(off).read(sent),
    }
    for name, case in cases.items():
        timer = timeit.Timer(case, timer=time.process_time)
        seconds = min(timer.repeat(number=EXCHANGES, repeat=5))
        yield name, f"{seconds / EXCHANGES * 1e6:.1f}"


@contextmanager
def _receiver() -> Iterator[str]:
    command = [sys.executable, "-m", "bench.trace_overhead", "--receive"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.terminate()


def _receive() -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            del format, args

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
