"""What a job found in the cache, and why it did not find more; from the log alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from domain.chat.divergence import Cause, PromptDivergence, diverge, shared_parts
from domain.chat.request import ChatRequest
from domain.errors import PayloadMissing
from domain.events.job import AttemptStarted
from domain.job.listing import JobViews
from domain.job.view import JobView
from domain.log.codec import decode_event
from domain.log.ports import PayloadStore
from domain.log.record import RecordedEvent
from domain.values import Digest, JobId, StreamName

#: Earlier jobs among which the nearest prefix is looked for.
LOOKED_AT_MAX: Final = 8
#: Fewer tokens are no miss: the last ones of a prompt are always computed.
MISSED_TOKENS_MIN: Final = 16


class Streams(Protocol):
    """The reading half of ``EventLog``, as far as it is needed here."""

    def load(self, stream: StreamName) -> tuple[RecordedEvent, ...]:
        """Return the events of a stream in order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheDiagnosis:
    """What was known of a prompt.

    Attributes:
        prompt_tokens: Its length.
        cached_tokens: How much of it was not computed; the index of the first token that was.
        source: ``none``, ``ram`` or ``disk``.
        missed_tokens: What the nearest earlier context had beyond that.
        compared_with: The job that left this context.
        divergence: Where the two part, if anything was missed.
    """

    prompt_tokens: int
    cached_tokens: int
    source: str
    missed_tokens: int = 0
    compared_with: JobId | None = None
    divergence: PromptDivergence | None = None


class _Asked(NamedTuple):
    """The newer of two requests; only jobs of its own agent are compared where it names one."""

    request: ChatRequest
    started: AttemptStarted
    is_named: bool


def explain(
    job_id: JobId, *, views: JobViews, log: Streams, payloads: PayloadStore
) -> CacheDiagnosis | None:
    """Return what a job found in the cache; ``None`` before its first attempt.

    It is compared with the latest jobs of the same agent, or of everybody where it has none.
    """
    view, started = views.get(job_id), _started(job_id, log)
    if view is None or started is None:
        return None
    found = CacheDiagnosis(
        prompt_tokens=started.prompt_tokens,
        cached_tokens=view.usage.cached_tokens or started.cached_tokens,
        source=started.cache_source,
    )
    earlier = views.page(limit=LOOKED_AT_MAX, before=job_id, agent=view.agent).jobs
    left = [one for one in earlier if _context_tokens(one) - found.cached_tokens > 0]
    if not left or found.prompt_tokens - found.cached_tokens < MISSED_TOKENS_MIN:
        return found
    request = _request(view, payloads)
    if request is None:
        return found
    asked = _Asked(request, started, is_named=view.agent is not None)
    nearest = _nearest(left, request, payloads)
    if nearest is not None and not asked.is_named and not shared_parts(nearest[1], request):
        # A stranger's, which happened to be there: it says nothing of this prompt.
        return found
    return _compared(found, asked, nearest, log)


def _compared(
    found: CacheDiagnosis,
    asked: _Asked,
    nearest: tuple[JobView, ChatRequest] | None,
    log: Streams,
) -> CacheDiagnosis:
    if nearest is None:
        return found
    view, before = nearest
    missed = min(_context_tokens(view), found.prompt_tokens) - found.cached_tokens
    if missed < MISSED_TOKENS_MIN:
        return found
    other = _started(view.id, log)
    if other is not None and other.fingerprint != asked.started.fingerprint:
        divergence: PromptDivergence | None = PromptDivergence(
            cause=Cause.MODEL_CHANGED, place="model"
        )
    else:
        divergence = diverge(before, asked.request, answered_by=view.id, same_agent=asked.is_named)
    return CacheDiagnosis(
        prompt_tokens=found.prompt_tokens,
        cached_tokens=found.cached_tokens,
        source=found.source,
        missed_tokens=missed,
        compared_with=view.id,
        # The prompt goes on from the earlier one, so what it left is not there any more.
        divergence=divergence or PromptDivergence(cause=Cause.BLOCKS_GONE, place="cache"),
    )


def _nearest(
    views: Iterable[JobView], request: ChatRequest, payloads: PayloadStore
) -> tuple[JobView, ChatRequest] | None:
    known = ((view, _request(view, payloads)) for view in views)
    candidates = [(view, before) for view, before in known if before is not None]
    # Of equals the newest, which comes first.
    return max(candidates, key=lambda one: shared_parts(one[1], request), default=None)


def _context_tokens(view: JobView) -> int:
    return view.usage.prompt_tokens + view.usage.completion_tokens


def _started(job_id: JobId, log: Streams) -> AttemptStarted | None:
    """Return the first attempt: later ones find what it has read."""
    for recorded in log.load(StreamName(job_id)):
        if recorded.type == AttemptStarted.__name__:
            event = decode_event(recorded.type, recorded.schema_version, recorded.data)
            assert isinstance(event, AttemptStarted)
            return event
    return None


def _request(view: JobView, payloads: PayloadStore) -> ChatRequest | None:
    try:
        return ChatRequest.from_bytes(payloads.get(Digest(view.request)))
    except PayloadMissing:
        return None
