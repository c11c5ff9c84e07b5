"""Batches and webhooks of a simulated service: what begins with a file and follows an end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from domain.batch.batches import BatchRecords, FileRecords
from domain.batch.driver import BatchDriver
from domain.batch.jsonl import pack
from domain.batch.state import BATCH_PREFIX, BatchId, job_of_line
from domain.events.batch import BatchEnded, BatchSubmitted
from domain.events.job import JobCancelled, JobCompleted, JobExpired, JobFailed
from domain.job.submit import JobSubmission
from domain.log.codec import decode_recorded
from domain.values import JobId, StreamName, rfc3339
from domain.webhook.delivery import DeliveryResult, Webhook, WebhookState, webhook_id
from domain.webhook.send import WebhookCollector
from tests.simulation.steps import Order, Process
from tests.support.fakes.batches import InMemoryBatchViews, PlainLines
from tests.support.fakes.webhooks import InMemoryWebhookStore

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")

#: Receiver of the ends of jobs and batches.
HOOK: Final = "https://hooks.example.com/all"
#: Lines of batches that may wait; small, so that a batch takes several rounds.
WINDOW: Final = 3
#: Seconds after which a try without a result counts as dead.
LEASE_S: Final = 5.0
_BATCH_S: Final = 24 * 3600
_WAITS_S: Final = (1.0,) * 200
_ENDS: Final = tuple(
    kind.__name__ for kind in (JobCompleted, JobFailed, JobCancelled, JobExpired, BatchEnded)
)


class FollowUps:
    """The batches and webhooks of one world.

    Attributes:
        refuses: Whether the receiver refuses messages.
        batches: Number of accepted batches.
        deliveries: Number of messages that the receiver accepted.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._views = InMemoryBatchViews(world.log)
        self._store = InMemoryWebhookStore()
        self._after: dict[Process, int] = {}
        self._bodies: dict[str, bytes] = {}
        self._accepted: set[str] = set()
        self._position = 0
        self._lines: dict[str, int] = {}
        self._ended: set[str] = set()
        self.refuses = False
        self.deliveries = 0

    @property
    def batches(self) -> int:
        """Number of accepted batches."""
        return len(self._lines)

    @property
    def line_jobs(self) -> set[JobId]:
        """The jobs that are lines of a batch."""
        return {
            job_of_line(BatchId(batch), line)
            for batch, lines in self._lines.items()
            for line in range(lines)
        }

    # -- what happens ----------------------------------------------------------------------------

    def submit(self, api: Process, lines: Sequence[str], *, hook: str | None) -> None:
        """Begin to accept a batch."""
        packed = pack("\n".join(lines).encode())
        batch_id = BatchId(BATCH_PREFIX + self._world.ids.job_id().removeprefix("job-"))
        submitted = BatchSubmitted(
            protocol="anthropic",
            endpoint="/v1/messages",
            content=packed.digest,
            lines=packed.lines,
            expires_at=rfc3339(self._world.clock.now() + timedelta(seconds=_BATCH_S)),
            webhook=hook,
        )
        records = self._records(api)
        self._begin(
            api,
            "submit batch",
            lambda: records.accept(
                batch_id,
                submitted,
                correlation_id="r",
                payloads=packed.payloads,
                is_checked=len(lines) % 2 == 0,
            ),
        )

    def cancel(self, api: Process, number: int) -> None:
        """Begin to cancel a batch."""
        if self._lines:
            batch_id = BatchId(list(self._lines)[-1 - number % len(self._lines)])
            records = self._records(api)
            self._begin(api, "cancel batch", lambda: records.cancel(batch_id))

    def drive(self, api: Process) -> None:
        """Begin a round of the batch driver."""
        self._begin(api, "drive", self._driver(api).advance)

    def collect(self, api: Process) -> None:
        """Begin to read the log for ends."""
        collector = self._collector(api)

        def body() -> None:
            after = self._after.get(api)
            if after is None:
                after = api.stepped(self._store, "hooks").position()
            self._after[api] = collector.collect(after=after)

        self._begin(api, "collect", body)

    def deliver(self, api: Process) -> None:
        """Begin to send the messages that are due."""
        collector = self._collector(api)

        def body() -> None:
            for due in collector.due_hosts(limit=4):
                for webhook in collector.claim(due, lease_s=LEASE_S, limit=4):
                    collector.settle(webhook, self._send(api, webhook))

        self._begin(api, "deliver", body)

    def advance(self) -> None:
        """Begin one round of everything, without faults of the receiver."""
        self.refuses = False
        for act in (self.drive, self.collect, self.deliver):
            act(self._world.apis[0])

    # -- what must hold --------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether no batch is open and no message waits."""
        ends = self._world.log.read_all(after=self._store.position(), limit=1000, types=_ENDS)
        is_read = not any(self._is_hooked(end.stream) for end in ends)
        return is_read and not self._views.unfinished() and not self._store.count_pending()

    def check(self) -> None:
        """Look at the new events of batches; call it after the jobs were looked at."""
        for recorded in self._world.log.read_all(after=self._position, limit=1000):
            self._position = recorded.position
            if not recorded.stream.startswith(BATCH_PREFIX):
                continue
            event = decode_recorded(recorded)
            if isinstance(event, BatchSubmitted):
                self._lines[recorded.stream] = event.lines
            elif isinstance(event, BatchEnded):
                self._check_ended(BatchId(recorded.stream), event)

    def check_end(self) -> None:
        """Look at everything again after all faults were healed and all work was done."""
        self.check()
        assert {*self._lines} == self._ended, "a batch never ended"
        for end in self._world.log.read_all(limit=10**6, types=_ENDS):
            if self._is_hooked(end.stream):
                name = webhook_id(end.event_id, HOOK)
                assert name in self._accepted, f"{end.type} of {end.stream} was never delivered"
        rows = self._store.rows.values()
        assert all(one.state is WebhookState.DELIVERED for one in rows), "a message was given up"

    def _check_ended(self, batch_id: BatchId, event: BatchEnded) -> None:
        assert batch_id not in self._ended, f"{batch_id} ended twice"
        self._ended.add(batch_id)
        lines = self._lines[batch_id]
        counts = (event.succeeded, event.errored, event.canceled, event.expired)
        assert sum(counts) == lines, f"{counts} of {lines} lines"
        jobs = self._world.truth.jobs
        named = [job_of_line(batch_id, line) for line in range(lines)]
        known = [jobs[name] for name in named if name in jobs]
        # A retry by hand may have begun another life.
        assert all(job.ends for job in known), f"{batch_id} ended before {known}"
        answered = sum("JobCompleted" in job.ends for job in known)
        assert event.succeeded <= answered, f"{counts} and {answered} answers"
        assert len(known) == lines or event.canceled or event.expired, f"{batch_id} left lines out"

    def _is_hooked(self, stream: StreamName) -> bool:
        (first, *_) = self._world.log.load(stream)
        return getattr(decode_recorded(first), "webhook", None) is not None

    def _send(self, api: Process, webhook: Webhook) -> DeliveryResult:
        """Hand a message to the receiver; the reply may be lost."""
        order = api.pause("send")
        ends = self._world.log.load(StreamName(webhook.subject))
        names = {webhook_id(end.event_id, HOOK) for end in ends if end.type in _ENDS}
        assert webhook.id in names, f"a message of no end: {webhook.body!r}"
        first = self._bodies.setdefault(webhook.id, webhook.body)
        assert first == webhook.body, f"one id, two messages: {first!r} {webhook.body!r}"
        if self.refuses:
            return DeliveryResult(status=503, error="HTTP 503")
        self._accepted.add(webhook.id)
        self.deliveries += 1
        if order is Order.LOSE_REPLY:
            return DeliveryResult(status=None, error="no reply")
        return DeliveryResult(status=204)

    # -- inside ----------------------------------------------------------------------------------

    def _begin(self, api: Process, name: str, body: Callable[[], object]) -> None:
        """Begin a task unless the process has one of that name."""
        if not any(task.name == f"{api.name}/{name}" for task in api.tasks):
            api.begin(name, body)

    def _records(self, api: Process) -> BatchRecords:
        log, views = api.stepped(self._world.log, "log"), api.stepped(self._views, "batches")
        return BatchRecords(log=log, views=views, ids=self._world.ids)

    def _driver(self, api: Process) -> BatchDriver:
        world, log = self._world, api.stepped(self._world.log, "log")
        return BatchDriver(
            batches=self._records(api),
            files=FileRecords(log=log, views=self._views, ids=world.ids, clock=world.clock),
            jobs=self._world.log.views,
            payloads=log,
            submission=JobSubmission(ids=world.ids, **world.ports(api, "log", "queue")),
            cancellation=world.cancellation(api),
            clock=world.clock,
            protocol=PlainLines(),
            spread=_backwards,
            window=WINDOW,
        )

    def _collector(self, api: Process) -> WebhookCollector:
        return WebhookCollector(
            log=api.stepped(self._world.log, "log"),
            store=api.stepped(self._store, "hooks"),
            ids=self._world.ids,
            clock=self._world.clock,
            describe_job=lambda view: {"id": view.id, "status": view.status},
            describe_batch=lambda batch: {"id": batch.id},
            waits_s=_WAITS_S,
        )


def _backwards(act: Callable[[T], Any], things: Sequence[T]) -> None:
    """Submit the last line first, as one of several threads may."""
    for one in reversed(things):
        act(one)
