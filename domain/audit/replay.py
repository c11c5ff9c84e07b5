"""Jobs of the log as they were: at a position, and as a request that is computed again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from domain.chat.stored_answer import StoredAnswer
from domain.events.event import Event
from domain.events.job import (
    AttemptStarted,
    EmbeddingRequested,
    JobCompleted,
    JobRetried,
    JobSubmitted,
)
from domain.job.state import Job, fold_recorded, is_job_event, job_id_of, request_of
from domain.kv.hashing import hash_ids
from domain.log.codec import decode_recorded
from domain.log.record import GENESIS_HASH, LogHead, RecordedEvent
from domain.values import Digest, JobId, JobStatus


class Verdict(StrEnum):
    """The result of a replay; ``REPLAYED`` is one that was not compared with the answer.

    ``PARTED`` is the answer of another model with another text.
    """

    SAME = "same"
    DIVERGED = "diverged"
    REFUSED = "refused"
    REPLAYED = "replayed"
    PARTED = "parted"


class Refusal(StrEnum):
    """Why an answer cannot be replayed."""

    NOT_IN_LOG = "not_in_log"
    NOT_COMPLETED = "not_completed"
    UNREADABLE = "unreadable"
    SEVERAL_MODELS = "several_models"
    PAYLOAD_GONE = "payload_gone"
    PAYLOAD_CHANGED = "payload_changed"
    MODEL_DIFFERS = "model_differs"
    PROMPT_DIFFERS = "prompt_differs"
    CANNOT_COMPUTE = "cannot_compute"
    NO_TEXT = "no_text"
    FORKED = "forked"


class ReplayRefused(Exception):
    """The answer cannot be replayed."""

    def __init__(self, reason: Refusal, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Everything that determined an answer, and the facts of that answer.

    Attributes:
        request: Digest of the canonical request.
        started: The last attempt.
    """

    job: JobId
    request: Digest
    started: AttemptStarted
    completed: JobCompleted


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A token that one of the two answers has at an index.

    Attributes:
        id: The token; ``None`` where the answer had ended.
        logprob: Natural logarithm of its likelihood in the replay.
    """

    id: int | None
    text: str
    logprob: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayDivergence:
    """The first token at which the replay differs from the answer.

    Attributes:
        index: Index of the token in the answer, from 0; its length if only the ending differs.
        gap: Difference of the two log-probabilities, replayed minus stored.
        draw_gap: By how much the stored token missed the draw, in log-probability at the request's
            temperature, noise included. A value as small as a rounding error means a near tie.
        context: The end of the text before the token.
    """

    index: int
    stored: Candidate
    replayed: Candidate
    gap: float | None
    draw_gap: float | None
    context: str


#: Characters of a text that are shown before and after the place where two answers part.
SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """Where the text of another model's answer parts from the stored one.

    Attributes:
        chars: Length of their common beginning.
        context: Its end.
        stored: What follows in the stored answer, at most ``SHOWN_CHARS``; "" where it ends.
        replayed: The same of the other answer.
    """

    chars: int
    context: str
    stored: str
    replayed: str


def parting_of(stored: str, replayed: str) -> Parting | None:
    """Return where two texts part, ``None`` if they are equal."""
    if stored == replayed:
        return None
    pairs = enumerate(zip(stored, replayed, strict=False))
    shorter = min(len(stored), len(replayed))
    chars = next((place for place, (one, other) in pairs if one != other), shorter)
    return Parting(
        chars=chars,
        context=stored[max(0, chars - SHOWN_CHARS) : chars],
        stored=stored[chars : chars + SHOWN_CHARS],
        replayed=replayed[chars : chars + SHOWN_CHARS],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The result of one replay.

    Attributes:
        message: One sentence for people.
        fingerprint: Fingerprint of the model that answered.
        tokens: Number of equal tokens, or of replayed ones.
        token_hash: ``hash_ids`` of the replayed tokens.
        cached_tokens: Prompt tokens that the answer took from the cache; the replay computes all.
        took_ms: Duration in milliseconds, without loading the model.
        versions: Libraries of the replay.
        versions_then: Libraries of the worker that answered.
    """

    job: JobId
    verdict: Verdict
    message: str
    reason: Refusal | None = None
    model: str | None = None
    fingerprint: str | None = None
    tokens: int = 0
    token_hash: str | None = None
    attempts: int = 0
    cached_tokens: int = 0
    divergence: ReplayDivergence | None = None
    parting: Parting | None = None
    text: str | None = None
    took_ms: float = 0.0
    versions: str | None = None
    versions_then: str | None = None


def read_recording(job: JobId, events: Sequence[RecordedEvent]) -> Recording:
    """Return the recording of a job's answer.

    Args:
        events: All events of its stream.

    Raises:
        ReplayRefused: There is no complete answer, several models computed it, or it has no text.
    """
    decoded = _decoded(events)
    if not decoded or not isinstance(decoded[0], JobSubmitted):
        raise ReplayRefused(Refusal.NOT_IN_LOG, f"job {job} is not in the log")
    if any(isinstance(event, EmbeddingRequested) for event in decoded):
        raise ReplayRefused(Refusal.NO_TEXT, f"job {job} computed vectors and generated no text")
    if decoded[0].parent_tokens:
        parent, count = decoded[0].parent, decoded[0].parent_tokens
        message = f"job {job} took over {count:,} tokens of {parent}; replay that one"
        raise ReplayRefused(Refusal.FORKED, message)
    ends = [event for event in decoded if isinstance(event, JobCompleted)]
    attempts = _attempts(decoded)
    if not ends or not attempts:
        message = f"job {job} has no whole answer: it has not completed"
        raise ReplayRefused(Refusal.NOT_COMPLETED, message)
    _require_one_model(attempts)
    request = request_of(decoded)
    return Recording(job=job, request=request, started=attempts[-1], completed=ends[-1])


def read_answer(recording: Recording, payload: bytes) -> StoredAnswer:
    """Return the stored answer.

    Raises:
        ReplayRefused: The payload is not the one that the log names.
    """
    answer = StoredAnswer.from_bytes(payload)
    if (
        answer.token_ids is not None
        and hash_ids(answer.token_ids) != recording.completed.token_hash
    ):
        message = "the stored tokens are not those whose hash stands in the log"
        raise ReplayRefused(Refusal.PAYLOAD_CHANGED, message)
    return answer


def check_prompt(recording: Recording, tokens: Sequence[int]) -> None:
    """Check a prompt rendered now against the prompt of the answer.

    Raises:
        ReplayRefused: They differ.
    """
    if len(tokens) != recording.started.prompt_tokens:
        message = (
            f"the request renders to {len(tokens):,} tokens now and did to"
            f" {recording.started.prompt_tokens:,} then"
        )
        raise ReplayRefused(Refusal.PROMPT_DIFFERS, message)
    if (
        recording.started.prompt_hash is not None
        and hash_ids(tokens) != recording.started.prompt_hash
    ):
        message = "the request renders to other tokens now than then"
        raise ReplayRefused(Refusal.PROMPT_DIFFERS, message)


def _decoded(events: Sequence[RecordedEvent]) -> list[Event]:
    try:
        return [decode_recorded(one) for one in events]
    except ValueError as error:
        raise ReplayRefused(Refusal.UNREADABLE, str(error)) from error


def _attempts(events: Sequence[Event]) -> list[AttemptStarted]:
    """Return the attempts whose tokens are in the answer: a retry drops the earlier ones."""
    attempts: list[AttemptStarted] = []
    for event in events:
        if isinstance(event, JobRetried):
            attempts = []
        elif isinstance(event, AttemptStarted):
            attempts = [*attempts, event] if event.resumed_tokens else [event]
    return attempts


def _require_one_model(attempts: Sequence[AttemptStarted]) -> None:
    if len({attempt.fingerprint for attempt in attempts}) > 1:
        message = "the answer was begun by one model and continued by another"
        raise ReplayRefused(Refusal.SEVERAL_MODELS, message)
    if len({attempt.sampling for attempt in attempts}) > 1:
        message = "the answer was begun and continued with different rules for drawing tokens"
        raise ReplayRefused(Refusal.SEVERAL_MODELS, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsAsOf:
    """The list of jobs at a position of the log.

    Attributes:
        head: The last event.
        at: RFC 3339 instant of its record; ``None`` for an empty log.
        jobs: Newest acceptance first, as the jobs projection lists them.
    """

    head: LogHead
    at: str | None
    jobs: tuple[Job, ...]

    def counts(self) -> dict[JobStatus, int]:
        """Return the number of jobs by status, every status named."""
        counts = dict.fromkeys(JobStatus, 0)
        for job in self.jobs:
            counts[job.status] += 1
        return counts


def fold_jobs_as_of(events: Iterable[RecordedEvent]) -> JobsAsOf:
    """Return the list of jobs after all events of a log, or of some jobs, from the first on."""
    views: dict[JobId, Job] = {}
    last: RecordedEvent | None = None
    for last in events:
        if is_job_event(last):
            job_id = job_id_of(last)
            views[job_id] = fold_recorded(views.get(job_id), last)
    return JobsAsOf(
        head=LogHead(position=last.position, hash=last.hash)
        if last
        else LogHead(position=0, hash=GENESIS_HASH),
        at=last.recorded_at if last else None,
        jobs=tuple(reversed(views.values())),
    )
