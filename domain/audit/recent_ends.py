"""The jobs that ended lately, and what each found in the cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from domain.chat.divergence import Cause, PromptDivergence, find_divergence, shared_parts
from domain.chat.request import ChatRequest
from domain.errors import TEXT_LOST
from domain.events.job import (
    AttemptStarted,
    JobCancelled,
    JobCompleted,
    JobExpired,
    JobFailed,
    JobRetried,
)
from domain.job.listing import JobFilter, JobViews
from domain.job.state import Job
from domain.log.codec import decode_recorded
from domain.log.ports import EventReader, PayloadStore
from domain.log.record import EventFilter
from domain.values import Digest, JobId, Owner, StreamName

#: Earlier jobs that a prompt is compared with.
COMPARED_JOBS_MAX: Final = 8
#: Fewer tokens are no miss: the last tokens of a prompt are always computed.
MISSED_TOKENS_MIN: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheDiagnosis:
    """How much of a prompt came from the cache, compared with the nearest earlier context.

    Attributes:
        cached_tokens: Tokens from the cache; also the index of the first computed token.
        source: ``none``, ``ram`` or ``disk``.
        known_tokens: Tokens that the cache knew. Those after ``cached_tokens`` were computed again,
            because windows or states of the model go on only from the checkpoint before.
        missed_tokens: Tokens of the nearest earlier context beyond ``cached_tokens``.
        compared_with: The job of that context.
        divergence: The first difference, if tokens were missed.
    """

    prompt_tokens: int
    cached_tokens: int
    source: str
    known_tokens: int = 0
    missed_tokens: int = 0
    compared_with: JobId | None = None
    divergence: PromptDivergence | None = None


class _NewerRequest(NamedTuple):
    """The newer of two requests; one that names an agent is compared with jobs of that agent."""

    request: ChatRequest
    started: AttemptStarted
    is_named: bool


def diagnose_cache(
    job_id: JobId, *, views: JobViews, log: EventReader, payloads: PayloadStore
) -> CacheDiagnosis | None:
    """Return the cache diagnosis of a job; ``None`` before its first attempt.

    The job is compared with the latest jobs of the same agent and API key; one without an agent,
    with those without an agent.
    """
    view, started = views.get(job_id), _started(job_id, log)
    if view is None or started is None:
        return None
    cached_tokens = view.usage.cached_tokens or started.cached_tokens
    parts = started.known_tokens > started.cached_tokens
    found = CacheDiagnosis(
        prompt_tokens=started.prompt_tokens,
        cached_tokens=cached_tokens,
        source=started.cache_source,
        known_tokens=max(cached_tokens, started.known_tokens if parts else 0),
    )
    earlier = views.page(
        JobFilter(agent=view.submitted.agent, owner=view.submitted.owner),
        limit=COMPARED_JOBS_MAX,
        before=job_id,
    ).jobs
    alike = (
        one
        for one in earlier
        if one.submitted.agent == view.submitted.agent
        and one.submitted.owner == view.submitted.owner
    )
    longer = [one for one in alike if _context_tokens(one) - found.cached_tokens > 0]
    if not longer or found.prompt_tokens - found.cached_tokens < MISSED_TOKENS_MIN:
        return found
    request = _request(view, payloads)
    if request is None:
        return found
    newer = _NewerRequest(request, started, is_named=view.submitted.agent is not None)
    nearest = _nearest(longer, request, payloads)
    if nearest is not None and not newer.is_named and not shared_parts(nearest[1], request):
        # An unrelated prompt of another client explains no miss.
        return found
    return _compared(found, newer, nearest, log)


def _compared(
    found: CacheDiagnosis,
    newer: _NewerRequest,
    nearest: tuple[Job, ChatRequest] | None,
    log: EventReader,
) -> CacheDiagnosis:
    if nearest is None:
        return found
    view, before = nearest
    missed = min(_context_tokens(view), found.prompt_tokens) - found.cached_tokens
    if missed < MISSED_TOKENS_MIN:
        return found
    other = _started(view.id, log)
    if other is not None and other.fingerprint != newer.started.fingerprint:
        divergence: PromptDivergence | None = PromptDivergence(
            cause=Cause.MODEL_CHANGED, place="model"
        )
    else:
        divergence = find_divergence(
            before, newer.request, answered_by=view.id, same_agent=newer.is_named
        )
    return replace(
        found,
        missed_tokens=missed,
        compared_with=view.id,
        # The prompt continues the earlier one, so the cache no longer holds its blocks.
        divergence=divergence or PromptDivergence(cause=Cause.BLOCKS_GONE, place="cache"),
    )


def _nearest(
    views: Iterable[Job], request: ChatRequest, payloads: PayloadStore
) -> tuple[Job, ChatRequest] | None:
    known = ((view, _request(view, payloads)) for view in views)
    candidates = [(view, before) for view, before in known if before is not None]
    # Of equals, ``max`` returns the first, which is the newest.
    return max(candidates, key=lambda one: shared_parts(one[1], request), default=None)


def _context_tokens(view: Job) -> int:
    return view.usage.prompt_tokens + view.usage.completion_tokens


def _started(job_id: JobId, log: EventReader) -> AttemptStarted | None:
    """Return the first attempt; later ones find its blocks in the cache."""
    for recorded in log.load(StreamName(job_id)):
        if recorded.type == AttemptStarted.__name__:
            event = decode_recorded(recorded)
            assert isinstance(event, AttemptStarted)
            return event
    return None


def _request(view: Job, payloads: PayloadStore) -> ChatRequest | None:
    try:
        return ChatRequest.from_bytes(payloads.get(Digest(view.submitted.request)))
    except TEXT_LOST:
        return None


#: Ended jobs that are kept.
KEPT_MAX: Final = 100
#: Events that one read of the log returns.
PAGE_EVENTS: Final = 500
#: Events since the last call from which on the jobs are read anew.
BEHIND_MAX: Final = 10_000
#: Jobs whose cache is diagnosed in one call, since each reads the texts of several requests.
DIAGNOSED_MAX: Final = 8
_ENDS: Final = tuple(one.__name__ for one in (JobCompleted, JobFailed, JobCancelled, JobExpired))
_WANTED: Final = EventFilter(types=(*_ENDS, JobRetried.__name__))


class EndedJob:
    """A job that has ended, and what it found in the cache, once that is known."""

    def __init__(self, view: Job) -> None:
        self.view = view
        self.diagnosis: CacheDiagnosis | None = None
        self.is_diagnosed = False


@dataclass(slots=True, eq=False)
class RecentEnds:
    """The last ended jobs; the caller holds a lock.

    The first call reads the jobs that were accepted last; later calls read the events since then.
    """

    log: EventReader
    views: JobViews
    diagnose: Callable[[JobId], CacheDiagnosis | None]
    _position: int | None = field(default=None, init=False)
    #: By job, the one that ended last at the end.
    _ended: OrderedDict[JobId, EndedJob] = field(default_factory=OrderedDict, init=False)

    def latest(self, limit: int, owner: Owner | None = None) -> tuple[EndedJob, ...]:
        """Return the jobs that ended last, the latest first.

        Raises:
            LogUnavailable: The log cannot be read.
        """
        head, position = self.log.head().position, self._position
        if position is None or head - position > BEHIND_MAX:
            self._begin()
            position = head
        self._position = max(self._follow(position), head)
        ended = reversed(self._ended.values())
        shown = [one for one in ended if owner is None or one.view.submitted.owner == owner][:limit]
        for job in [one for one in shown if not one.is_diagnosed][:DIAGNOSED_MAX]:
            job.diagnosis, job.is_diagnosed = self.diagnose(job.view.id), True
        return tuple(shown)

    def _begin(self) -> None:
        self._ended.clear()
        views = [one for one in self.views.page(limit=KEPT_MAX).jobs if one.status.is_terminal]
        for view in sorted(views, key=lambda one: one.position):
            self._ended[view.id] = EndedJob(view)

    def _follow(self, position: int) -> int:
        is_behind = True
        while is_behind:
            page = self.log.select(_WANTED, after=position, limit=PAGE_EVENTS)
            for recorded in page[-KEPT_MAX:]:
                self._add(JobId(recorded.stream))
            position = page[-1].position if page else position
            is_behind = len(page) == PAGE_EVENTS
        return position

    def _add(self, job_id: JobId) -> None:
        self._ended.pop(job_id, None)
        view = self.views.get(job_id)
        if view is None or not view.status.is_terminal:
            return  # it was retried
        self._ended[job_id] = EndedJob(view)
        if len(self._ended) > KEPT_MAX:
            self._ended.popitem(last=False)
