"""A job world with a batch driver."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from domain.batch.batches import BatchRecords, FileRecords
from domain.batch.driver import BatchDriver
from domain.batch.jsonl import pack
from domain.batch.state import BATCH_PREFIX, Batch, BatchId
from domain.events.batch import BatchEnded, BatchSubmitted
from domain.job.cancel import JobCancellation
from domain.job.submit import JobSubmission
from domain.values import JobId, Priority, StreamName, Usage, digest_of, rfc3339
from tests.support.builders.job_world import JobWorld
from tests.support.fakes.batches import InMemoryBatchViews, PlainLines

DAY_S = 24 * 3600


class BatchWorld(JobWorld):
    """``submit_batch``, then ``step`` and ``work`` in any order until it has ended."""

    def __init__(self, *, sizes: dict[str, int] | None = None, **engine: Any) -> None:
        super().__init__(**engine)
        self.views = InMemoryBatchViews(self.log)
        self.batches = BatchRecords(log=self.log, views=self.views, ids=self.ids)
        self.files = FileRecords(log=self.log, views=self.views, ids=self.ids, clock=self.clock)
        self.driver = BatchDriver(
            batches=self.batches,
            files=self.files,
            jobs=self.log.views,
            payloads=self.log,
            submission=JobSubmission(log=self.log, queue=self.broker.queue, ids=self.ids),
            cancellation=JobCancellation(
                log=self.log,
                payloads=self.log,
                queue=self.broker.queue,
                sink=self.broker.items,
                backlog=self.broker.items,
                signals=self.broker.signals,
                ids=self.ids,
            ),
            clock=self.clock,
            protocol=PlainLines(sizes),
        )

    def use(self, **changes: Any) -> None:
        self.driver = replace(self.driver, **changes)

    def submit_batch(
        self, *lines: str, is_checked: bool = True, client: str = "", **facts: Any
    ) -> BatchId:
        """Submit a batch; ``facts`` are further fields of ``BatchSubmitted``."""
        named = {digest_of(client.encode()): client.encode()} if client else {}
        packed = pack("\n".join(lines).encode())
        batch_id = BatchId(BATCH_PREFIX + self.ids.job_id().removeprefix("job-"))
        submitted = BatchSubmitted(
            protocol="anthropic",
            endpoint="/v1/messages",
            content=packed.digest,
            lines=packed.lines,
            expires_at=rfc3339(self.clock.now() + timedelta(seconds=DAY_S)),
            client_name=next(iter(named), None),
            **facts,
        )
        self.batches.accept(
            batch_id,
            submitted,
            correlation_id="req-1",
            payloads={**packed.payloads, **named},
            is_checked=is_checked,
        )
        return batch_id

    def step(self) -> int:
        return self.driver.advance()

    def work(self, most: int = 1000) -> list[JobId]:
        """Run waiting jobs as a worker does."""
        ran: list[JobId] = []
        while len(ran) < most and (job_id := self.broker.queue.take(Priority.BATCH)):
            self.run(job_id)
            self.broker.queue.ack(job_id)
            ran.append(job_id)
        return ran

    def batch(self, batch_id: BatchId) -> Batch:
        return self.batches.load(batch_id)

    def counts(self, batch_id: BatchId) -> BatchEnded | None:
        counts = self.batch(batch_id).counts
        return None if counts is None else replace(counts, usage=Usage())

    def batch_types(self, batch_id: BatchId) -> list[str]:
        return [event.type for event in self.log.load(StreamName(batch_id))]
