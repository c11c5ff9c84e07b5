"""The routes on fake ports, driven without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, unquote

from api.access.limits import BatchLimits, JobLimits
from api.app import App, MetricPorts
from api.calls import BoundedCalls
from api.errors import dialect_of, error_reply
from api.http.messages import Reply, Request, Route, StreamReply
from api.loops.forecasts import LiveEta, LiveRates
from api.operations import routes
from domain.chat.generation import EmittedCall
from domain.chat.items import Body, Progress, StreamItem
from domain.chat.stored_answer import StoredAnswer
from domain.engine.control import EngineValues
from domain.engine.operate import EngineControls
from domain.engine.presence import LoadedModels
from domain.engine.workers import WorkerPulse
from domain.errors import SemanticError
from domain.events.job import JobCompleted
from domain.job.cancel import JobCancellation
from domain.job.commit import commit
from domain.job.submit import JobSubmission
from domain.model.registry import ModelEntry, ModelRegistry, ServingModels
from domain.model.swaps import ModelSwaps
from domain.values import (
    Ability,
    Degree,
    JobId,
    ModelAbilities,
    ModelCard,
    Priority,
    StopReason,
    Timings,
    Usage,
    WorkerId,
    digest_of,
)
from tests.support.builders.job_events import start_command
from tests.support.fakes.batches import InMemoryBatchViews
from tests.support.fakes.broker import FakeBroker
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock, SequentialIds
from tests.support.fakes.webhooks import InMemoryWebhookStore
from tests.support.polling import eventually, scaled

CARD = ModelCard(
    id="demo",
    fingerprint="f",
    context_length=2048,
    description="A small model for demonstrations.",
    created_at="2026-01-02T03:04:05Z",
    abilities=ModelAbilities(speculation=Ability(Degree.NO, "states cannot take tokens back")),
)
#: Any other name follows the loaded model.
REGISTRY = ModelRegistry(
    [ModelEntry(name="demo", source="semantic-demo", aliases=("claude-demo",))], following=("*",)
)
#: Waits that no test needs are short.
LIMITS = JobLimits(max_tokens_default=64, memory_wait_s=0, disconnect_grace_s=0, dedup_grace_s=0.01)
PATIENCE_S = 60.0

_USAGE = Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=1)


class FakeApi:
    """The routes, the app behind them, and the actions of a worker.

    Attributes:
        grace_over: Until it is set, jobs whose client left wait for its next try.
    """

    def __init__(self, *, ping_s: float = 60.0) -> None:
        self.grace_over = asyncio.Event()
        self._made: tuple[App | None, tuple[Route, ...]] = None, ()
        clock, ids = FakeClock(), SequentialIds()
        self.log = InMemoryEventLog(clock)
        self.broker = FakeBroker()
        self.executor, self.counting = ThreadPoolExecutor(4), ThreadPoolExecutor(2)
        self.models = LoadedModels(self.broker.pulses, clock)
        controls = EngineControls(log=self.log, ids=ids, signals=self.broker.signals)
        self.app = App(
            log=self.log,
            payloads=self.log,
            owners=self.log,
            views=self.log.views,
            metrics=MetricPorts(queue=self.log.queue_views, usage=self.log.usage),
            eta=self._eta(clock, controls),
            job_submission=JobSubmission(log=self.log, queue=self.broker.queue, ids=ids),
            cancellation=JobCancellation(
                log=self.log,
                payloads=self.log,
                queue=self.broker.queue,
                sink=self.broker.items,
                backlog=self.broker.items,
                signals=self.broker.signals,
                ids=ids,
            ),
            backlog=self.broker.items,
            source=self.broker.items,
            pulses=self.broker.pulses,
            serving=ServingModels(self.broker.pulses, clock),
            controls=controls,
            swaps=ModelSwaps(log=self.log, ids=ids),
            engine_settings=EngineValues(batch_window_ms=10, max_batch_size=8, gap_max_ms=100),
            counter=self.broker.counter,
            places=self.broker.places,
            clock=clock,
            ids=ids,
            executor=self.executor,
            counts=self.counts(),
            agent_views=self.log.agents,
            batch_views=InMemoryBatchViews(self.log),
            batch_limits=BatchLimits(file_lines_max=100),
            wake_batches=lambda: None,
            webhook_store=InMemoryWebhookStore(),
            version="1.2.3",
            model="demo",
            models=self.models,
            rates=LiveRates(self.broker.pulses, self.log.views, clock),
            registry=lambda: REGISTRY,
            inspect_model=lambda _: None,
            job_limits=LIMITS,
            ping_s=ping_s,
            pause=self._pause,
        )

    def _eta(self, clock: FakeClock, controls: EngineControls) -> LiveEta:
        return LiveEta(
            queue=self.log.queue_views,
            pulses=self.broker.pulses,
            models=self.models,
            clock=clock,
            admission=controls.admission,
        )

    def counts(self, *, most: int = 256, wait_s: float = PATIENCE_S) -> BoundedCalls:
        """Return bounded calls on the threads for token counts."""
        return BoundedCalls(self.counting, "token counts", most=most, wait_s=wait_s)

    async def _pause(self, seconds: float) -> None:
        assert seconds > 0
        await self.grace_over.wait()

    def _routes(self) -> tuple[Route, ...]:
        """Return the routes of the present app; they take 10 ms to make."""
        app, made = self._made
        if app is not self.app:
            app, made = self._made = self.app, routes(self.app)
        return made

    def use(self, **changes: Any) -> None:
        self.app = replace(self.app, **changes)

    def use_limits(self, **changes: Any) -> None:
        """Change settings of jobs."""
        self.use(job_limits=replace(self.app.job_limits, **changes))

    def prepared(
        self,
        method: str,
        target: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        request: Request | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Route, Request]:
        """Return the route of a request, and the request as the connection hands it over."""
        path, _, query = target.partition("?")
        route, params = _find(self._routes(), method, path)
        content = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
        base = request or Request(id="req-1", method=method, path=path)
        sent = replace(
            base,
            method=method,
            path=path,
            params={name: unquote(value) for name, value in params.items()},
            query=parse_qs(query, keep_blank_values=True),
            headers=headers or {},
            body=content,
        )
        return route, sent

    async def send(
        self,
        method: str,
        target: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        request: Request | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply | StreamReply:
        route, sent = self.prepared(method, target, body, request=request, headers=headers)
        try:
            return await route.handler(sent)
        except SemanticError as error:  # as the connection does
            dialect = dialect_of(sent.path, sent.headers)
            return error_reply(error, dialect, sent.id, jobs=sent.marks.jobs)

    async def json(self, method: str, target: str, body: Any = None, *, status: int = 200) -> Any:
        reply = await self.send(method, target, body)
        assert isinstance(reply, Reply)
        assert reply.status == status, reply.body
        return json.loads(reply.body)

    def worker_is(self, state: str) -> None:
        self.broker.pulses.beat(
            WorkerPulse(
                worker=WorkerId("w1"), pid=1, state=state, model=CARD if state == "ready" else None
            )
        )

    def publish(self, job_id: JobId, *bodies: Body, first: int = 0, attempt: int = 1) -> None:
        """Publish bodies as numbered items."""
        n = first
        for body in bodies:
            transient = isinstance(body, Progress)
            item = StreamItem(n=None if transient else n, attempt=attempt, body=body)
            self.broker.items.publish([(job_id, item)])
            n += not transient

    def start(self, job_id: JobId, usage: Usage = _USAGE) -> None:
        """Take a job from the queue as a worker does."""
        assert self.take() == job_id
        self.begin(job_id, usage)

    def take(self, priority: Priority = Priority.INTERACTIVE) -> JobId | None:
        """Take the next job of either line as a worker of ``demo`` does."""
        queue = self.broker.queue
        return queue.take(priority) or queue.take(priority, model="demo")

    def begin(self, job_id: JobId, usage: Usage = _USAGE) -> None:
        """Record that a worker has begun a job."""
        command = start_command(
            "w1",
            model="demo",
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
        )
        commit(job_id, command, log=self.log, ids=self.app.ids)

    def complete(
        self,
        job_id: JobId,
        text: str,
        calls: Sequence[EmittedCall] = (),
        *,
        attempt: int = 1,
        usage: Usage = _USAGE,
    ) -> None:
        """Record the end of a job as a worker does."""
        answer = StoredAnswer(text=text, calls=tuple(calls), token_ids=(1,))
        self.complete_with(job_id, answer, attempt=attempt, usage=usage)

    def complete_with(
        self,
        job_id: JobId,
        answer: StoredAnswer,
        *,
        attempt: int = 1,
        usage: Usage = _USAGE,
        stop_reason: StopReason = StopReason.END_TURN,
    ) -> None:
        """Record the end of a job with any answer."""
        payload = answer.to_bytes()
        command = JobCompleted(
            attempt=attempt,
            stop_reason=stop_reason,
            stop_sequence=None,
            usage=usage,
            output=digest_of(payload),
            token_hash="0",
            timings=Timings(decode_ms=1.5),
        )
        commit(
            job_id,
            command,
            log=self.log,
            ids=self.app.ids,
            payloads={command.output: payload},
        )

    async def only_job(self) -> JobId:
        """Wait until the only job is in the log and in a line, and return it."""
        (job_id,) = await eventually(lambda: list(self.log.views.rows))
        await self.queued(job_id)
        return job_id

    async def queued(self, job_id: JobId) -> None:
        """Wait until a job is in a line: a submission appends it to the log before."""
        queue = self.broker.queue
        await eventually(lambda: queue.has_message(job_id))

    def event_types(self) -> list[str]:
        return [event.type for event in self.log.read_all()]


@asynccontextmanager
async def fake_api(*, ping_s: float = 60.0) -> AsyncIterator[FakeApi]:
    """The routes; on exit no reader, task or thread may remain."""
    api = FakeApi(ping_s=ping_s)
    try:
        yield api
        api.grace_over.set()
        assert await api.app.background.drain(scaled(PATIENCE_S))
        assert api.broker.items.followers == 0
        await eventually(lambda: len(asyncio.all_tasks()) == 1)
    finally:
        api.executor.shutdown()
        api.counting.shutdown()


async def pieces_of(reply: Reply | StreamReply) -> bytes:
    """Read a stream to its end."""
    assert isinstance(reply, StreamReply)
    async with asyncio.timeout(scaled(PATIENCE_S)):
        return b"".join([piece async for piece in reply.pieces])


async def first_piece(reply: Reply | StreamReply) -> bytes:
    assert isinstance(reply, StreamReply)
    async with asyncio.timeout(scaled(PATIENCE_S)):
        return await anext(reply.pieces)


async def leave(reply: Reply | StreamReply) -> None:
    """Close a stream as the HTTP server does after a client disconnects."""
    assert isinstance(reply, StreamReply)
    closing: Any = reply.pieces
    await closing.aclose()


def _find(table: Sequence[Route], method: str, path: str) -> tuple[Route, dict[str, str]]:
    for route in table:
        wanted, given = route.pattern.split("/"), path.split("/")
        if route.method != method or len(wanted) != len(given):
            continue
        pairs = list(zip(wanted, given, strict=True))
        if all(part.startswith("{") or part == value for part, value in pairs):
            return route, {part[1:-1]: value for part, value in pairs if part.startswith("{")}
    raise AssertionError(f"no route for {method} {path}")
