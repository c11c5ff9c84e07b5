"""Advances batches: lines become jobs within shares, and results become files."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from domain.batch.batches import BatchRecords, FileRecords
from domain.batch.jsonl import read_lines, read_numbered
from domain.batch.ports import FILE_PREFIX, BatchTally, FileId, LineProtocol, Spread, one_by_one
from domain.batch.state import (
    BATCH_PREFIX,
    Batch,
    BatchId,
    BatchState,
    job_of_line,
)
from domain.chat.items import Failed
from domain.chat.request import canonical_json
from domain.errors import (
    TEXT_LOST,
    ConcurrencyConflict,
    DiskFull,
    InvalidRequest,
    JobAlreadyTerminal,
    ModelNotFound,
    Overloaded,
    SemanticError,
)
from domain.events.batch import (
    BatchEnded,
    BatchFailed,
    BatchFinalizing,
    BatchStarted,
    FileCreated,
)
from domain.events.job import JobSubmitted
from domain.job.cancel import JobCancellation
from domain.job.decisions import decide, failed_attempt
from domain.job.history_matching import without_foreign_origins
from domain.job.listing import JobViews
from domain.job.state import DEADLINE, Job
from domain.job.submit import UNSEALED, JobSubmission, NewJob, line_length
from domain.log.ports import PayloadStore
from domain.log.record import Draft
from domain.log.trace import new_trace, parse_traceparent
from domain.ports import Clock
from domain.values import (
    ATTEMPTS_MAX,
    JobStatus,
    Owner,
    Priority,
    SamplingWish,
    StreamName,
    digest_of,
    rfc3339,
)


class LineShares:
    """One round: gives every batch a turn, with the room that is its share.

    Args:
        waiting: Waiting lines of each batch that hold a place.
        owners: The API key of each batch; batches without a key have one owner.
    """

    def __init__(
        self,
        room: int,
        *,
        waiting: Mapping[BatchId, int],
        owners: Mapping[BatchId, Owner | None],
    ) -> None:
        self._room = room
        self._waiting = waiting
        self._owners = owners
        self._left = list(waiting)
        self._held = Counter[Owner | None]()
        for batch_id, lines in waiting.items():
            self._held[owners[batch_id]] += lines

    def next(self) -> tuple[BatchId, int] | None:
        """Return the batch whose turn it is and its share; ``None`` after the last one."""
        if not self._left:
            return None
        first = min(self._left, key=lambda one: (self._held[self._owners[one]], self._waiting[one]))
        self._left.remove(first)
        owner = self._owners[first]
        others = {self._owners[one] for one in self._left} - {owner}
        share = _share(self._room, self._held[owner], (self._held[one] for one in others))
        siblings = (self._waiting[one] for one in self._left if self._owners[one] == owner)
        return first, _share(share, self._waiting[first], siblings)

    def take(self, batch_id: BatchId, lines: int) -> None:
        """Record how many lines of a batch became jobs; later batches share the rest."""
        self._room -= lines
        self._held[self._owners[batch_id]] += lines


def _share(room: int, fewest: int, others: Iterable[int]) -> int:
    """Return how many places the one with the fewest lines gets, so that all become as equal."""
    lines = sorted([fewest, *others])
    while len(lines) > 1 and _level(room, lines) <= lines[-1]:
        lines.pop()  # it has more than the others get
    return min(room, _level(room, lines) - fewest)


def _level(room: int, lines: list[int]) -> int:
    return -(-(room + sum(lines)) // len(lines))


#: Lines that are submitted in one round. After a crash only lines of one round are missing.
ROUND_LINES_MAX: Final = 32
#: Lines of batches that wait as jobs; the others wait outside of the queue.
LINES_WAITING_MAX: Final = 256
#: Model name of a line that has none.
NO_MODEL: Final = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDriver:
    """Runs all open batches to their end; one per process.

    Attributes:
        jobs: Whose the jobs are that lines name as the origin of their turns.
        spread: How the lines of a round become jobs: in turn, or on several threads.
        window: Most lines of batches that may wait for a worker as jobs.
        attempts_max: Attempts of a line before it fails for good, and workers that may die on it.
        output_kept_s: Seconds for which result files are kept, unless the batch sets it.
        has_own_line: Whether jobs of a model wait apart from the others. Lines that wait for it
            hold no place of the window; a batch never has more than ``window`` open lines.
    """

    batches: BatchRecords
    files: FileRecords
    jobs: JobViews
    payloads: PayloadStore
    submission: JobSubmission
    cancellation: JobCancellation
    clock: Clock
    protocol: LineProtocol
    spread: Spread = one_by_one
    window: int = LINES_WAITING_MAX
    attempts_max: int = ATTEMPTS_MAX
    output_kept_s: int = 30 * 24 * 3600
    has_own_line: Callable[[str], bool] = lambda _: False

    def advance(self) -> int:
        """Advance every open batch by one step; they share the window by ``LineShares``.

        Returns:
            Number of batches that are still open, without those that wait for their instant.

        Raises:
            LogUnavailable: The log cannot be read or written; call again.
        """
        views = self.batches.views
        now = self.clock.now()
        loaded = (self.batches.load(batch_id) for batch_id in views.unfinished())
        batches = {batch.id: batch for batch in loaded if not _is_held(batch, now)}
        # Batch jobs that are no lines do not count: one client's would stop the batches of all.
        waiting = {
            batch_id: line_length(views.waiting(batch_id), None, self.has_own_line)
            for batch_id in batches
        }
        shares = LineShares(
            max(0, self.window - sum(waiting.values())),
            waiting=waiting,
            owners={batch_id: batch.facts.owner for batch_id, batch in batches.items()},
        )
        still_open = len(batches)
        while (turn := shares.next()) is not None:
            batch_id, share = turn
            sent, is_over = _advance(batches[batch_id], self, share)
            shares.take(batch_id, sent)
            still_open -= is_over
        return still_open


def _advance(batch: Batch, driver: BatchDriver, room: int) -> tuple[int, bool]:
    """Return how many lines became jobs, and whether the batch is over."""
    sent = 0
    if batch.state is BatchState.VALIDATING:
        batch = _check(batch, driver)
    if batch.state.is_terminal:
        return sent, True
    late = driver.clock.now() >= datetime.fromisoformat(batch.facts.expires_at)
    if batch.state is BatchState.IN_PROGRESS and not late:
        try:
            sent = _submit_lines(batch, driver, room) if room else 0
        except (DiskFull, Overloaded):
            sent = 0  # the other lines wait; those that are jobs go on, and the batch can end
        except TEXT_LOST:
            # The lines were erased; those that are no jobs yet cannot become one.
            driver.batches.cancel(batch.id)
            return sent, False
    elif batch.state is not BatchState.FINALIZING:
        _stop_jobs(batch, driver, DEADLINE if late else "batch_cancelled")
    sends_no_more = late or batch.state is not BatchState.IN_PROGRESS
    return sent, _end_if_over(batch, driver, sends_no_more=sends_no_more)


def _is_held(batch: Batch, now: datetime) -> bool:
    """Whether the lines of a batch wait for its instant."""
    start = batch.facts.start_after
    is_open = batch.state is BatchState.IN_PROGRESS
    return is_open and start is not None and now < datetime.fromisoformat(start)


def _end_if_over(batch: Batch, driver: BatchDriver, *, sends_no_more: bool) -> bool:
    """End a batch whose jobs have all ended; return whether it is over."""
    tally = driver.batches.views.tally(batch.id)
    if tally.open or not (sends_no_more or tally.jobs == batch.facts.lines):
        return False
    _end(batch, tally, driver)
    return True


def _check(batch: Batch, driver: BatchDriver) -> Batch:
    """Check the lines as a whole."""
    facts = batch.facts
    try:
        numbered = read_numbered(facts.content, driver.payloads.get)
        faults = driver.protocol.faults(batch, numbered)
    except TEXT_LOST:
        faults = [{"code": "file_erased", "message": "the lines are not stored any more"}]
    if not faults:
        return driver.batches.commit(batch.id, BatchStarted())
    payload = canonical_json(list(faults))
    digest = digest_of(payload)
    return driver.batches.commit(batch.id, BatchFailed(errors=digest), payloads={digest: payload})


def _submit_lines(batch: Batch, driver: BatchDriver, room: int) -> int:
    """Submit the next lines that are no jobs yet, ``room`` at most; return how many."""
    tally = driver.batches.views.tally(batch.id)
    room = min(room, max(0, driver.window - tally.open))
    # A crash interrupts one round, so lines are missing among the last ROUND_LINES_MAX only.
    whole = tally.jobs == tally.last_line + 1
    start = tally.jobs if whole else max(0, tally.last_line + 1 - ROUND_LINES_MAX)
    known: Collection[int] = ()
    if not whole:
        known = driver.batches.views.line_jobs(batch.id, first=start, limit=ROUND_LINES_MAX)
    lines = enumerate(read_lines(batch.facts.content, driver.payloads.get, start=start), start)
    sent = 0
    # A round never spans more consecutive lines than that, so the next crash cannot lose one.
    while sent < room and (block := list(islice(lines, ROUND_LINES_MAX))):
        missing = [line for line in block if line[0] not in known][: room - sent]
        driver.spread(lambda line: _submit_line(batch, line, driver), missing)
        sent += len(missing)
    return sent


def _submit_line(batch: Batch, line: tuple[int, bytes], driver: BatchDriver) -> None:
    number, raw = line
    facts = batch.facts
    wanted = driver.protocol.read(batch, raw)
    if isinstance(wanted.request, SemanticError):
        _record_refusal(batch, number, raw, wanted.model or NO_MODEL, wanted.request, driver)
        return
    request = without_foreign_origins(wanted.request, facts.owner, driver.jobs)
    submitted = JobSubmitted(
        protocol=facts.protocol,
        model=request.model,
        request=UNSEALED,
        sampling=request.sampling,
        max_tokens=request.max_tokens,
        priority=Priority.BATCH,
        attempts_max=driver.attempts_max,
        worker_deaths_max=driver.attempts_max,
        deadline=facts.expires_at,
        finish_deadline=facts.expires_at,
        ordered=False,
        bound_model=wanted.bound_model,
        waits_for_model=True,
        labels=wanted.labels,
        urgency=wanted.urgency,
        trace=_trace_of_line(facts.trace),
        trace_link=facts.trace,
        owner=facts.owner,
        cache_owner=facts.cache_owner,
    )
    new = NewJob(
        submitted=submitted,
        request=request,
        correlation_id=batch.id,
        client=_client_of(batch, driver),
        wire=wanted.wire,
        warning=wanted.warning,
    )
    try:
        driver.submission.submit(new, job_id=job_of_line(batch.id, number))
    except ConcurrencyConflict:
        return  # it was a job before the crash


def _client_of(batch: Batch, driver: BatchDriver) -> str | None:
    name = batch.facts.client_name
    return None if name is None else driver.payloads.get(name).decode("utf-8", "surrogatepass")


def _trace_of_line(batch: str | None) -> str:
    """Return a new trace for a line: one trace of all lines would be too long to be shown."""
    parent = parse_traceparent(batch)
    return str(new_trace(sampled=parent is not None and parent.is_sampled))


def _record_refusal(
    batch: Batch,
    number: int,
    raw: bytes,
    model: str,
    error: InvalidRequest | ModelNotFound,
    driver: BatchDriver,
) -> None:
    """Record a line that is no valid request as a failed job, so that it has a result."""
    facts = batch.facts
    submitted = JobSubmitted(
        protocol=facts.protocol,
        model=model,
        request=digest_of(raw),
        sampling=SamplingWish(),
        max_tokens=0,
        priority=Priority.BATCH,
        attempts_max=1,
        client_name=facts.client_name,
        ordered=False,
        trace=_trace_of_line(facts.trace),
        trace_link=facts.trace,
        owner=facts.owner,
    )
    field = error.field if isinstance(error, InvalidRequest) else None
    message = f"{field}: {error.message}" if field else error.message
    failure = Failed(error=error.code, message=message, retryable=False)
    job = Job(id=job_of_line(batch.id, number), submitted=submitted)
    failed = decide(job, failed_attempt(attempt=0, failure=failure))
    drafts = [
        Draft(event_id=driver.batches.ids.event_id(), event=event, correlation_id=batch.id)
        for event in (submitted, *failed)
    ]
    try:
        driver.batches.log.append(
            StreamName(job.id), drafts, expected_version=0, payloads={submitted.request: raw}
        )
    except ConcurrencyConflict:
        return  # it was recorded before the crash


def _stop_jobs(batch: Batch, driver: BatchDriver, reason: str) -> None:
    for job_id in driver.batches.views.open_jobs(batch.id):
        try:
            driver.cancellation.cancel(job_id, reason=reason)
        except JobAlreadyTerminal:
            continue  # it ended by itself just now


def _end(batch: Batch, tally: BatchTally, driver: BatchDriver) -> None:
    counts = final_counts(batch, tally)
    sizes = driver.protocol.measure(batch)
    if sizes:
        batch = driver.batches.commit(batch.id, BatchFinalizing())
    now = driver.clock.now()
    kept_s = batch.facts.output_kept_s or driver.output_kept_s
    for part, size in sizes.items():
        created = FileCreated(
            purpose="batch_output",
            bytes=size,
            expires_at=rfc3339(now + timedelta(seconds=kept_s)),
            batch=batch.id,
            part=part,
            owner=batch.facts.owner,
        )
        driver.files.keep(
            file_of_part(batch.id, part),
            created,
            correlation_id=batch.id,
            payloads={},
        )
    usage = driver.batches.views.usage(batch.id)
    driver.batches.commit(batch.id, replace(counts, usage=usage))


def final_counts(batch: Batch, tally: BatchTally) -> BatchEnded:
    """Return the counts of a batch without open jobs.

    Lines that never became jobs count as cancelled if the batch was cancelled, else as expired.
    """
    by_status = tally.by_status
    unsubmitted = batch.facts.lines - tally.jobs
    cancelled = batch.cancel_requested_at is not None
    return BatchEnded(
        succeeded=by_status.get(JobStatus.COMPLETED, 0),
        errored=by_status.get(JobStatus.FAILED, 0),
        canceled=by_status.get(JobStatus.CANCELLED, 0) + (unsubmitted if cancelled else 0),
        expired=by_status.get(JobStatus.EXPIRED, 0) + (0 if cancelled else unsubmitted),
    )


def file_of_part(batch_id: BatchId, part: str) -> FileId:
    """Return the id of a result file of a batch."""
    stamp = batch_id.removeprefix(BATCH_PREFIX)[:12]
    mark = hashlib.sha256(f"{batch_id}/{part}".encode()).hexdigest()[:20]
    return FileId(f"{FILE_PREFIX}{stamp}{mark}")
