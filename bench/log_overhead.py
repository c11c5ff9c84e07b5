"""How many tokens per second does the event log cost, compared with a log in memory?

``python -m bench.log_overhead``. One engine runs the demo model. The same use case runs the same
jobs with the real log, which syncs every commit to the disk, and with one in memory. The two take
turns, so both see the same machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.experiments.report import (
    log_to_stderr,
    print_conditions,
    print_table,
    use_worker_allocator,
)
from domain.chat.request import ChatRequest, Message
from domain.job.commands import SubmitJob
from domain.job.fair_scheduler import TurnOrder
from domain.log.trace import new_trace
from domain.usecases.jobs.attempts import AttemptObserver, Unobserved
from domain.usecases.jobs.run_attempt import JobRunner
from domain.usecases.jobs.submit import JobSubmission
from domain.values import JobId, SamplingWish, WorkerId
from ops.adapters.event_log.migrate import upgrade
from ops.adapters.event_log.sql_event_log import SqlEventLog, open_log
from ops.clock import RandomIds, SystemClock
from ops.setting_groups.models import DEMO_MODEL
from ops.setting_groups.service import EngineSettings
from tests.support.fakes.broker import FakeBroker
from tests.support.fakes.event_log import InMemoryEventLog
from worker.active_jobs import ActiveJobs
from worker.engine.engine import BatchEngine
from worker.engine.mlx.model.loader import ModelSource, load_weights
from worker.engine.mlx.runner import BatchRunner
from worker.turn_scheduler import TurnScheduler

Log = SqlEventLog | InMemoryEventLog

STREAMS = 4
KV_BUDGET_BYTES = 1 << 31
QUESTION = "Tell me a long story about a fox. This is story number {number}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One burst of jobs over one log."""

    tokens: int
    wall_s: float
    cpu_s: float

    @property
    def tokens_per_s(self) -> float:
        """Completion tokens over the time from the first acceptance to the last end."""
        return self.tokens / self.wall_s

    @property
    def cpu_ms_a_token(self) -> float:
        """CPU time of the whole process, in milliseconds per completion token."""
        return 1000 * self.cpu_s / self.tokens


class Side:
    """The use cases over one log, on an engine shared with the other side.

    Args:
        log: The log.
        engine: Runs the jobs.
        broker: Their queue and items.
        observer: Follows the attempts.
        is_sampled: Whether the traces of the jobs are sampled.
    """

    def __init__(
        self,
        log: Log,
        engine: BatchEngine,
        broker: FakeBroker,
        *,
        observer: AttemptObserver | None = None,
        is_sampled: bool = False,
    ) -> None:
        self._log, self._broker, self._ids = log, broker, RandomIds()
        self._is_sampled = is_sampled
        order = TurnOrder(slots=STREAMS, interactive_reserved=0)
        self._runner = JobRunner(
            worker=WorkerId("worker-bench"),
            log=log,
            payloads=log,
            engine=engine,
            sink=broker.items,
            backlog=broker.items,
            clock=SystemClock(),
            ids=self._ids,
            running=ActiveJobs(),
            turns=TurnScheduler(order),
            observer=observer or Unobserved(),
        )

    def turn(self, first: int, tokens: int) -> Turn:
        """Accept and run ``STREAMS`` jobs at once, of at most ``tokens`` tokens each."""
        cpu_s, begun = time.process_time(), time.perf_counter()
        with ThreadPoolExecutor(STREAMS) as pool:
            jobs = list(pool.map(lambda n: self._run(first + n, tokens), range(STREAMS)))
        wall_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_s
        views = [self._log.views.get(job_id) for job_id in jobs]
        assert all(view is not None and view.status == "completed" for view in views)
        completion_tokens = sum(view.usage.completion_tokens for view in views if view is not None)
        return Turn(tokens=completion_tokens, wall_s=wall_s, cpu_s=cpu_s)

    def _run(self, number: int, tokens: int) -> JobId:
        content = QUESTION.format(number=number)
        request = ChatRequest(
            model=DEMO_MODEL,
            messages=(Message(role="user", content=content),),
            max_tokens=tokens,
            sampling=SamplingWish(temperature=0.8, seed=number),
        )
        submission = JobSubmission(log=self._log, queue=self._broker.queue, ids=self._ids)
        job_id = submission.submit(
            SubmitJob(
                request=request,
                protocol="jobs",
                correlation_id="bench",
                asked=request.asked(protocol="jobs", agent=None, seeded=True),
                trace=str(new_trace(sampled=self._is_sampled)),
            ),
            job_id=self._ids.job_id(),
        ).job_id
        self._runner.run(job_id)
        return job_id


def started_engine(broker: FakeBroker) -> BatchEngine:
    """Load the demo model as the worker does."""
    settings = EngineSettings()
    engine = BatchEngine(
        runner_factory=lambda: BatchRunner(
            load_weights=lambda: load_weights(ModelSource(id=DEMO_MODEL)),
            prefill_step_tokens=settings.prefill_step_tokens,
            kv_budget_bytes=KV_BUDGET_BYTES,
        ),
        sink=broker.items,
        clock=SystemClock(),
        max_batch_size=STREAMS,
        stream_interval_s=settings.stream_interval_ms / 1000,
    )
    engine.start()
    return engine


def main() -> None:
    """Run both logs in turn and print the cost of one over the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=200)
    asked = parser.parse_args()
    use_worker_allocator()
    log_to_stderr()
    began, clock, broker = time.monotonic(), SystemClock(), FakeBroker()
    engine = started_engine(broker)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'events.sqlite3'}"
        upgrade(url)
        with open_log(url, clock=clock) as log:
            sides = {"SQLite": Side(log, engine, broker)}
            sides["in memory"] = Side(InMemoryEventLog(clock), engine, broker)
            turns = take_turns(sides, rounds=asked.rounds, tokens=asked.tokens)
    engine.close(0)
    print_sides("log", turns)
    print(f"SQLite over memory, median of {asked.rounds} pairs: ", end="")
    print(cost_of(turns["SQLite"], turns["in memory"]) + "\n")
    print_conditions(began)


def print_sides(what: str, turns: dict[str, list[Turn]]) -> None:
    """Print the medians of each side; ``what`` names the first column."""
    rows = [
        (
            name,
            f"{statistics.median(turn.tokens_per_s for turn in one):,.1f}",
            f"{statistics.median(turn.cpu_ms_a_token for turn in one):,.3f}",
        )
        for name, one in turns.items()
    ]
    print_table([what, ">tok/s", ">CPU ms a token"], rows)


def cost_of(turns: Sequence[Turn], without: Sequence[Turn]) -> str:
    """Return the medians of the ratios of turns that were taken side by side."""
    pairs = list(zip(turns, without, strict=True))
    rate = statistics.median(one.tokens_per_s / other.tokens_per_s for one, other in pairs)
    cpu = statistics.median(one.cpu_ms_a_token / other.cpu_ms_a_token for one, other in pairs)
    return f"tok/s {100 * (rate - 1):+.2f} %, CPU a token {100 * (cpu - 1):+.2f} %"


def take_turns(sides: dict[str, Side], *, rounds: int, tokens: int) -> dict[str, list[Turn]]:
    """Return the turns of each side, by its name; the sides alternate."""
    turns: dict[str, list[Turn]] = {name: [] for name in sides}
    for number in range(-1, rounds):  # the first round warms up
        first = (number + 1) * STREAMS
        # After this the engine has cached the prompts, so neither side prefills them.
        next(iter(sides.values())).turn(first, 1)
        for name in list(sides) if number % 2 else list(reversed(sides)):
            turn = sides[name].turn(first, tokens)
            if number >= 0:
                turns[name].append(turn)
    return turns


if __name__ == "__main__":
    main()
