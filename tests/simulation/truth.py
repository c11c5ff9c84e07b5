"""Invariants of the log and the streams, checked without ``domain.job.state``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from domain.chat.items import Failed, Finished, StreamItem, Text
from domain.errors import (
    GenerationCancelled,
    ModelChanged,
    ModelNotLoaded,
    PredecessorFailed,
    QueueUnavailable,
    Unavailable,
)
from domain.events.job import (
    AttemptFailed,
    AttemptStarted,
    JobAttached,
    JobCancelled,
    JobCancelRequested,
    JobCompleted,
    JobExpired,
    JobFailed,
    JobReleased,
    JobRetried,
    JobSubmitted,
)
from domain.log.codec import decode_recorded
from domain.values import (
    AfterCondition,
    Digest,
    JobId,
    Priority,
    StopReason,
    StreamName,
)
from ops.broker.items import _gapless
from tests.simulation.broker import StoredItems
from tests.simulation.engine import ITEM_TOKENS, bodies_of, fingerprint_of
from tests.simulation.readers import Reader
from tests.simulation.record import Record
from tests.support.fakes.event_log import InMemoryEventLog

_ENDS = (JobCompleted, JobFailed, JobCancelled, JobExpired)


@dataclass(frozen=True)
class Bulk:
    """A cancellation of all jobs of a label that was carried out to its end.

    Attributes:
        open: The lives of the jobs with the label that were open when it began.
    """

    label: str
    open: dict[JobId, int]


#: Begins the reason of a change of all jobs of a label; a dry run has ``DRY``.
BULK, DRY = "all of ", "dry"


class Truth:
    """Follows log and store and objects to whatever must not be.

    Args:
        log: The events.
        items: The streams.
        queue_limit: Jobs of a queue that may wait.
        callers: Who may submit at once.
    """

    def __init__(
        self, log: InMemoryEventLog, items: StoredItems, *, queue_limit: int, callers: int
    ) -> None:
        self._log, self._items = log, items
        self._limit = queue_limit + callers - 1
        self._position = 0
        #: Items that were right once, by identity: neither they nor what allows them goes back.
        self._right: dict[int, StreamItem] = {}
        self.jobs: dict[JobId, Record] = {}
        self.readers: list[Reader] = []
        self.bulks: list[Bulk] = []
        self.bulks_done = 0
        self.answers: dict[str, JobId] = {}
        self.holds = 0

    def answered(self, key: str | None, job_id: JobId) -> None:
        """Record the reply to a caller."""
        assert self._log.load(StreamName(job_id)), "accepted, but not in the log"
        if key is not None:
            assert self.answers.setdefault(key, job_id) == job_id, "one key, two jobs"

    def check(self, losses: int = 0) -> None:
        """Look at everything that is new.

        Args:
            losses: How often the broker has lost data.
        """
        for recorded in self._log.read_all(after=self._position, limit=1000):
            self._position = recorded.position
            if not recorded.stream.startswith("job-"):
                continue
            event = decode_recorded(recorded)
            if isinstance(event, JobSubmitted):
                self._check_unique(event, recorded.recorded_at)
            self._follow(JobId(recorded.stream), event, recorded.recorded_at)
        self._check_bulks()
        for job_id, job in self.jobs.items():
            stored = self._items.raw(job_id)
            for item in stored:
                if id(item) not in self._right:
                    self._check_item(job_id, job, item)
                    self._right[id(item)] = item
            published = list(_gapless(stored, -1))
            ends = [item for item in published if item.is_terminal]
            assert len(ends) <= 1, f"two ends: {published} of {job}"
            assert not ends or ends == [published[-1]], f"more after the end: {published} of {job}"
            if not losses:
                assert not ends or job.end, f"an end of another life: {published} of {job}"
        for reader in self.readers:
            reader.look(self._items)

    def _follow(self, job_id: JobId, event: Any, at: str) -> None:
        if isinstance(event, JobSubmitted):
            self._accepted(job_id, event)
            return
        job = self.jobs[job_id]
        where = f"{type(event).__name__} of {job_id} {job}"
        if isinstance(event, JobAttached):
            return
        if isinstance(event, JobRetried):
            assert job.end is not None, where
            assert not isinstance(job.end, JobCompleted), where
            _check_reason(job, event.reason, where)
            job.end, job.cancel_reason, job.active_attempt = None, None, 0
            job.is_queued = job.is_released or not job.after
            job.queued_anew = True
            job.held_until = None if job.is_queued else ""
            job.life += 1
            job.attempt += 1
            return
        assert job.end is None, where
        if isinstance(event, JobCancelRequested):
            assert job.cancel_reason is None, where
            job.cancel_reason = event.reason
            _check_reason(job, event.reason, where)
            self._check_skipped(job, event.reason, where)
        elif isinstance(event, JobReleased):
            _release(job, at, where)
            self._fill(job, event, where)
        elif isinstance(event, AttemptStarted):
            self._start(job, event, where)
        elif isinstance(event, AttemptFailed):
            assert event.attempt in {0, job.active_attempt}, where
            assert event.error != GenerationCancelled.code, f"cancelled without a request: {where}"
            job.active_attempt, job.is_queued, job.queued_anew = 0, True, True
        else:
            assert isinstance(event, _ENDS), where
            self._ended(job, event, where)

    def _check_unique(self, event: JobSubmitted, at: str) -> None:
        """Object to a job that an open or completed one was to be the only one of its kind."""
        for job_id, job in self.jobs.items():
            holds = job.end is None or isinstance(job.end, JobCompleted)
            if event.unique is not None and job.unique == event.unique and holds:
                assert job.unique_until <= at, f"a second unique job beside {job_id} {job}"

    def _start(self, job: Record, event: AttemptStarted, where: str) -> None:
        assert job.held_until is None, f"begun before its release: {where}"
        assert event.attempt == job.attempt + 1, where
        is_own_death = bool(job.active_attempt) and event.worker == job.worker
        assert not is_own_death, f"a worker that lives counts as dead: {where}"
        is_rejected = not job.attempt and job.cancel_reason in {"deadline", "model_absent"}
        assert not is_rejected, f"it starts after its time: {where}"
        job.worker = event.worker
        job.attempt = job.active_attempt = event.attempt
        job.is_queued = False
        assert job.bound in {None, event.model}, f"a model to which it is not bound: {where}"
        assert event.fingerprint == fingerprint_of(event.model), where
        if job.models.get(job.epoch) != event.model:
            job.models[event.attempt if job.models else 1] = event.model

    def _accepted(self, job_id: JobId, event: JobSubmitted) -> None:
        assert job_id not in self.jobs, "accepted twice"
        if event.idempotency is not None:
            keys = [job.key for job in self.jobs.values()]
            assert event.idempotency not in keys, "one key, two jobs"
        text = self._log.get(event.request)
        # A line of a batch that is no request fails as it is.
        prompt = json.loads(text)["messages"][-1]["content"] if text.startswith(b"{") else ""
        priority = Priority(event.priority)
        self.jobs[job_id] = Record(
            prompt,
            priority,
            event.idempotency,
            bound=event.bound_model,
            waits_for_model=event.waits_for_model,
            is_line=not event.ordered,
            unique=event.unique,
            unique_until=event.unique_until or "",
            is_queued=event.start_after is None and not event.after,
            held_until=event.start_after or ("" if event.after else None),
            after=event.after,
            labels=event.labels,
            seed=event.sampling.seed,
            is_fork=event.parent is not None,
            inherited=self._inherited(event),
        )
        self.holds += event.start_after is not None
        waiting = [
            job
            for job in self.jobs.values()
            if job.priority is priority
            and job.bound == event.bound_model
            and job.is_queued
            and not job.queued_anew
            and not job.is_line
        ]
        assert len(waiting) <= self._limit, f"{len(waiting)} jobs wait"

    def _inherited(self, event: JobSubmitted) -> str:
        """Return what a fork takes over: the first tokens of an answer of its parent."""
        if event.parent is None:
            return ""
        parent = self.jobs[event.parent]
        assert parent.ends, f"a fork of {event.parent}, which has not ended"
        if event.parent_output is None:
            return ""
        return self._text(event.parent_output)[: event.parent_tokens]

    def open_with(self, label: str) -> dict[JobId, int]:
        """Return the lives of the open jobs with a label."""
        return {
            job_id: job.life
            for job_id, job in self.jobs.items()
            if label in job.labels and job.end is None
        }

    def _check_bulks(self) -> None:
        while self.bulks:
            bulk = self.bulks.pop()
            self.bulks_done += 1
            for job_id, life in bulk.open.items():
                job = self.jobs[job_id]
                is_over = job.end is not None or job.cancel_reason is not None
                assert is_over or job.life > life, f"left out of {bulk}: {job_id} {job}"

    def _ended(self, job: Record, event: Any, where: str) -> None:
        if isinstance(event, JobCompleted):
            assert event.attempt == job.active_attempt, where
            assert self._text(event.output) == job.answer, where
        elif isinstance(event, JobCancelled | JobExpired):
            assert event.attempt in {0, job.active_attempt}, where
            assert job.cancel_reason is not None, f"cancelled without a request: {where}"
            is_late = job.cancel_reason in {"deadline", "model_absent"}
            assert isinstance(event, JobExpired) is is_late, where
            text = self._text(event.output) if event.output else ""
            assert job.answer.startswith(text), where
        else:
            assert event.error != "internal_error", where
            away = {QueueUnavailable.code, Unavailable.code}
            assert event.error not in away, f"an outage ended a job: {where}"
            if event.error in {ModelChanged.code, ModelNotLoaded.code}:
                assert job.bound is not None, where
                assert not job.waits_for_model, where
            self._check_skipped(job, event.error, where)
        job.end, job.is_queued, job.active_attempt = event, False, 0
        job.ends.append(type(event).__name__)

    def _check_skipped(self, job: Record, reason: str, where: str) -> None:
        if reason == PredecessorFailed.code:
            self._check_predecessors(job, where)

    def _check_predecessors(self, job: Record, where: str) -> None:
        """Look whether all jobs have ended that a job has waited for."""
        assert job.after, where
        assert all(self.jobs[JobId(one.job)].ends for one in job.after), f"too early: {where}"

    def _fill(self, job: Record, event: JobReleased, where: str) -> None:
        """Take the prompt of a released job, and look whether the answers stand in it."""
        if not job.after:
            return
        self._check_predecessors(job, where)
        earlier = [self.jobs[JobId(one.job)] for one in job.after]
        expected = job.prompt
        assert event.request is not None, where
        prompt = json.loads(self._log.get(event.request))["messages"][-1]["content"]
        for one, other in zip(job.after, earlier, strict=True):
            if one.condition is AfterCondition.COMPLETED:
                assert "JobCompleted" in other.ends, f"after no answer: {where}"
                expected = expected.replace(f"{{{{after.{one.name}.text}}}}", other.answer)
        # The text of a job that may end in any way is the part that it wrote.
        is_certain = "{{" not in expected
        assert prompt == expected or not is_certain, f"{prompt} is not {expected}: {where}"
        job.prompt = prompt

    def _text(self, output: Digest) -> str:
        return str(json.loads(self._log.get(output))["text"])

    def _check_item(self, job_id: JobId, job: Record, item: StreamItem) -> None:
        where = f"{item} of {job_id} {job}"
        assert item.n is not None, where
        assert 1 <= item.attempt <= job.attempt + 1, f"an attempt that never was: {where}"
        if item.is_terminal:
            assert job.ends, f"the stream ended before the log: {where}"
            return
        assert item.epoch in job.models, f"an epoch that never was: {where}"
        undisturbed = bodies_of(job.prompt, job.answer_in(item.epoch))
        assert item.n < len(undisturbed), where
        expected = undisturbed[item.n]
        if isinstance(item.body, Text) and isinstance(expected, Text):
            # What was held back goes out at a cancellation.
            assert expected.text.startswith(item.body.text), where
            assert item.body.text, where
        else:
            assert item.body == expected, where

    # -- the end ---------------------------------------------------------------------------------

    def check_end(self, losses: int) -> None:
        """Look at everything again after all faults were healed and all work was done.

        Args:
            losses: How often the broker has lost data.
        """
        self.check(losses)
        for job_id, job in self.jobs.items():
            assert job.end is not None, f"{job_id} never ended: {job}"
            # No process may be left to publish an end that no attempt wrote; readers use the log.
            # So it is with a job that failed before any attempt: a refused line, an absent model.
            if not losses and job.attempt and getattr(job.end, "attempt", True):
                published = list(_gapless(self._items.raw(job_id), -1))
                # A retry forgets first, and may have died then.
                is_forgotten = not published and job_id in self._items.refused
                has_end = bool(published) and published[-1].is_terminal
                assert has_end or is_forgotten, f"a stream without an end: {published} of {job}"
        for reader in self.readers:
            self._check_reader(reader, losses)

    def _check_reader(self, reader: Reader, losses: int) -> None:
        job = self.jobs[reader.job_id]
        if reader.life != job.life or (job.life and losses):
            # Items restored after a loss may be of an earlier attempt; their text is the same.
            return
        durable = reader.durable
        assert durable.is_closed, f"a stream that is never closed: {durable} of {job}"
        assert durable.ends == 1, f"{durable} of {job}"
        assert job.answer.startswith(durable.text), f"{durable} of {job}"
        if isinstance(job.end, JobCompleted):
            assert durable.text == job.answer, f"{durable} of {job}"
        assert reader.has_ended, f"a reader without an end: {reader.seen} of {job}"
        if reader.changed:
            assert reader.epoch < job.epoch, f"no other model: {reader.seen} of {job}"
            return
        last = reader.seen[-1].body
        words = [item.body.text for item in reader.seen if isinstance(item.body, Text)]
        text, where = "".join(words), f"{reader.seen} of {job}"
        assert not text or reader.epoch == job.epoch, where
        assert job.answer.startswith(text), where
        output = getattr(job.end, "output", None)
        # An attempt that found no items and was stopped at once knows no more.
        if output and (isinstance(job.end, JobCompleted) or not losses):
            assert text == self._text(output), where
        if isinstance(job.end, JobCompleted):
            assert isinstance(last, Finished), job
            assert last.stop_reason is job.end.stop_reason, job
            if all(item.n is not None for item in reader.seen):
                assert len(words) == -(-len(job.answer) // ITEM_TOKENS), job
        elif isinstance(job.end, JobCancelled):
            assert isinstance(last, Finished), job
            assert last.stop_reason is StopReason.CANCELLED, job
        else:
            assert isinstance(last, Failed), job


def _check_reason(job: Record, reason: str, where: str) -> None:
    """Look whether a change of all jobs of a label is of a job that has it."""
    assert reason != DRY, f"changed by a dry run: {where}"
    if reason.startswith(BULK):
        assert reason.removeprefix(BULK) in job.labels, f"it has no such label: {where}"


def _release(job: Record, at: str, where: str) -> None:
    assert job.held_until is not None, where
    assert at >= job.held_until, f"released before its instant: {where}"
    assert job.cancel_reason is None, where
    job.held_until, job.is_queued, job.queued_anew = None, True, True
    job.is_released = True
