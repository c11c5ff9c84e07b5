"""A log file written by jobs on a small real model, and a replayer of these jobs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from domain.audit.recorded_answers import LoggedAnswers
from domain.audit.replay import Replayed
from domain.chat.request import ChatRequest, canonical_json
from domain.events.event import Event
from domain.events.job import AttemptStarted, JobCompleted, JobSubmitted
from domain.job.commit import commit
from domain.job.fair_scheduler import TurnOrder
from domain.job.run_attempt import JobRunner, RunResult
from domain.job.submit import JobSubmission
from domain.kv.hashing import hash_ids
from domain.log.codec import decode_recorded
from domain.model.registry import ModelEntry, ModelRegistry
from domain.values import Digest, JobId, StreamName, WorkerId, digest_of
from ops.clock import RandomIds, SystemClock
from ops.log.admin.archive import open_as_of
from ops.log.sql_event_log import open_log
from tests.support.builders.job_events import draft
from tests.support.builders.log_files import new_log, raw_connection
from tests.support.builders.new_jobs import new_job
from tests.support.fakes.broker import FakeBroker
from worker.engine.engine import BatchEngine
from worker.engine.mlx.model.loader import load_weights
from worker.engine.mlx.runner import BatchRunner
from worker.engine.mlx.solo import ModelHandles
from worker.replay import Replayer
from worker.turn_scheduler import ActiveJobs, TurnScheduler

STEP_TOKENS = 512


class ReplayWorld:
    """One worker on a log of its own; use it in a ``with``."""

    def __init__(self, directory: Path, model: str) -> None:
        self.url = new_log(directory)
        self.model = model
        self.ids = RandomIds()
        self.log = open_log(self.url, clock=SystemClock())
        self.broker = FakeBroker()
        source = ModelEntry(name=Path(model).name, source=model)
        self.engine = BatchEngine(
            runner_factory=lambda: BatchRunner(
                load_weights=lambda: load_weights(
                    source, LoggedAnswers(log=self.log, payloads=self.log)
                ),
                prefill_step_tokens=STEP_TOKENS,
                kv_budget_bytes=1 << 26,
            ),
            sink=self.broker.items,
            clock=SystemClock(),
            max_batch_size=8,
        )
        self.runner = JobRunner(
            worker=WorkerId("worker-1"),
            log=self.log,
            payloads=self.log,
            engine=self.engine,
            sink=self.broker.items,
            backlog=self.broker.items,
            clock=SystemClock(),
            ids=self.ids,
            running=ActiveJobs(),
            turns=TurnScheduler(TurnOrder(slots=8, interactive_reserved=1)),
        )

    def __enter__(self) -> Self:
        self.engine.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.engine.close(0)
        self.log.close()

    def submit(self, request: ChatRequest) -> JobId:
        job_id = self.ids.job_id()
        submission = JobSubmission(log=self.log, queue=self.broker.queue, ids=self.ids)
        submission.submit(new_job(request), job_id=job_id)
        return job_id

    def run(self, *requests: ChatRequest) -> list[JobId]:
        """Run requests side by side, each to its end."""
        jobs = [self.submit(request) for request in requests]
        results: list[RunResult] = []
        threads = [
            threading.Thread(target=lambda job=job: results.append(self.runner.run(job)))
            for job in jobs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [RunResult.ENDED] * len(jobs)
        return jobs

    def resume(self, job: JobId, *, items: int) -> JobId:
        """Run the request of a job again, as after a worker crash behind ``items`` items."""
        first = self.events(job)[1]
        request = ChatRequest.from_bytes(self.log.get(self._submitted(job).request))
        again = self.submit(request)
        assert isinstance(first, AttemptStarted)
        counts = ("prompt_tokens", "cached_tokens", "thinking_limit")
        names = ("model", "fingerprint", "cache_source", *counts)
        facts: dict[str, Any] = {name: getattr(first, name) for name in names}
        dead = AttemptStarted(
            attempt=1,
            worker=WorkerId("worker-0"),
            first_item=0,
            resumed_tokens=0,
            sampling=first.sampling,
            encoding=first.encoding,
            **facts,
        )
        commit(again, dead, log=self.log, ids=self.ids)
        emitted = self.broker.items.read(job)[:items]
        self.broker.items.publish([(again, item) for item in emitted])
        assert self.runner.run(again) is RunResult.ENDED
        return again

    def events(self, job: JobId) -> list[Event]:
        return [decode_recorded(one) for one in self.log.load(StreamName(job))]

    def answer(self, job: JobId) -> dict[str, Any]:
        completed = self.events(job)[-1]
        assert isinstance(completed, JobCompleted)
        answer: dict[str, Any] = json.loads(self.log.get(completed.output))
        return answer

    def planted(self, job: JobId, change: Callable[[list[int]], list[int] | None]) -> JobId:
        """Append a job that differs from another only in its answer tokens."""
        payload = self.answer(job)
        ids = change(list(payload["token_ids"]))
        payload["token_ids"] = ids
        if ids is None:
            del payload["token_ids"]
        return self.forged(job, payload, ids)

    def forged(self, job: JobId, payload: dict[str, Any], ids: Sequence[int] | None) -> JobId:
        content = canonical_json(payload)
        *before, last = self.events(job)
        assert isinstance(last, JobCompleted)
        fields = {name: getattr(last, name) for name in JobCompleted.__slots__}
        token_hash = last.token_hash if ids is None else hash_ids(ids)
        end = JobCompleted(**fields | {"output": digest_of(content), "token_hash": token_hash})
        forged = self.ids.job_id()
        self.log.append(
            StreamName(forged),
            [draft(event) for event in (*before, end)],
            expected_version=0,
            payloads={digest_of(content): content},
        )
        return forged

    def erase(self, job: JobId) -> None:
        """Remove the stored answer."""
        connection = raw_connection(self.url)
        connection.execute("DELETE FROM payloads WHERE digest = ?", (self.output_of(job),))
        connection.close()

    def output_of(self, job: JobId) -> Digest:
        completed = self.events(job)[-1]
        assert isinstance(completed, JobCompleted)
        return completed.output

    def replay(
        self,
        job: str,
        *,
        verify: bool = True,
        model: str | None = None,
        configured: str | None = None,
        registered: Iterable[ModelEntry] = (),
        is_against: bool = False,
    ) -> Replayed:
        """Replay a job as ``semantic replay`` does, on this thread."""
        with open_as_of(self.url) as log:
            replayer = Replayer(
                log=log,
                # Not closed: it would end the streams of the thread of all tests.
                models=ModelHandles(
                    ModelEntry(name="tiny", source=model or configured or self.model),
                    None,
                    ModelRegistry(registered),
                    LoggedAnswers(log=log, payloads=log),
                    only=model is not None,
                ),
                step_tokens=STEP_TOKENS,
                write=lambda _: None,
                is_against=is_against,
            )
            return replayer.replay(JobId(job), verify=verify)

    def _submitted(self, job: JobId) -> JobSubmitted:
        submitted = self.events(job)[0]
        assert isinstance(submitted, JobSubmitted)
        return submitted
