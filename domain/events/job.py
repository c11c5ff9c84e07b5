"""Events of a job, on its stream ``job-…``."""

from __future__ import annotations

from dataclasses import dataclass

from domain.values import (
    AgentId,
    Digest,
    JobId,
    Owner,
    Predecessor,
    Priority,
    PromptEncoding,
    Sampling,
    SamplingWish,
    StopReason,
    Timings,
    Usage,
    WorkerId,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    """A request was accepted; from here on it is never lost.

    Attributes:
        protocol: The dialect of the answer, e.g. ``anthropic``, ``openai-chat`` or ``jobs``.
        model: The name the caller used.
        request: Digest of the canonical ``ChatRequest``.
        sampling: The values of the caller, with the drawn seed.
        attempts_max: Attempts that may die or fail before the job fails for good.
        agent: Its agent, if known.
        client_name: Digest of the text that names the client (its User-Agent), for the operator.
        idempotency: Digest of the idempotency key, if there was one; no two jobs have the same.
        deadline: RFC 3339 instant after which it must not start, if there is one.
        finish_deadline: RFC 3339 instant after which it must not run, if there is one.
        asked: The digest of ``ChatRequest.asked``, equal for requests with the same contents.
        ordered: Whether its agent wants it started after those accepted before it. The queue keeps
            that order for every job; false (lines of batches) means that no client relies on it.
        worker_deaths_max: Workers in a row that may die on it before it emits a token.
        webhook: URL that receives the end of the job, if the caller named one.
        wire: Digest of the request in the form of its dialect, for protocols that return it.
        warning: Digest of the text that names what of the request has no effect, if anything has.
        bound_model: Name of the registered model that must answer it; ``None`` follows the model
            that is loaded.
        waits_for_model: Whether it waits for a model that is not loaded. A request whose client
            waits on an open connection ends with an error instead.
        trace: W3C ``traceparent`` of the span of its request.
        trace_link: The same of the request that led to it in another trace: that of its batch.
        owner: Name of the API key of the request; ``None`` without keys.
        after: The jobs that it waits for.
        is_skippable: Whether it ends as cancelled, not as failed, where one of them ended otherwise
            than it should.
        start_after: RFC 3339 instant before which it is held, if it was in the future.
        cache_owner: Only prompts with the same one share cached blocks with it, or whole blocks
            only where it is one of ``sharing_blocks``.
        labels: By which its caller finds it; see ``domain.job.listing.labels_of``.
        urgency: From 0 to 9; the highest is first among the waiting jobs of one line.
        unique: Digest of what no other open or completed job has; see ``Unique``.
        unique_until: RFC 3339 instant from which another job may have it.
        parent: The job whose answer it continues, after the first ``parent_tokens`` tokens.
        parent_output: Digest of that answer.
        parent_fingerprint: Fingerprint of the model that gave it.
    """

    protocol: str
    model: str
    request: Digest
    sampling: SamplingWish
    max_tokens: int
    priority: Priority
    attempts_max: int
    agent: AgentId | None = None
    client_name: Digest | None = None
    idempotency: Digest | None = None
    deadline: str | None = None
    finish_deadline: str | None = None
    asked: Digest | None = None
    ordered: bool = True
    #: A fixed number: records leave it out where it is this one, whatever a process would set.
    worker_deaths_max: int = 2
    webhook: str | None = None
    wire: Digest | None = None
    warning: Digest | None = None
    bound_model: str | None = None
    waits_for_model: bool = False
    trace: str | None = None
    trace_link: str | None = None
    owner: Owner | None = None
    cache_owner: Owner | None = None
    labels: tuple[str, ...] = ()
    urgency: int = 0
    unique: Digest | None = None
    unique_until: str | None = None
    start_after: str | None = None
    parent: JobId | None = None
    parent_tokens: int = 0
    parent_output: Digest | None = None
    parent_fingerprint: str | None = None
    after: tuple[Predecessor, ...] = ()
    is_skippable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequested:
    """The job computes vectors of texts; directly after its ``JobSubmitted``.

    Attributes:
        dimensions: Elements of each vector; ``None`` for all that the model computes.
    """

    texts: int
    dimensions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReleased:
    """A held job was put into its queue: what it waited for has come.

    Attributes:
        request: Digest of the request with the answers of earlier jobs in it, if it has such.
    """

    request: Digest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """A worker took the job; every later item of the job carries this attempt number.

    Attributes:
        attempt: From 1, without gaps.
        model: Id of the model that answers.
        fingerprint: Digest of the weights and code that compute the answer.
        prompt_tokens: Length of the rendered prompt.
        cached_tokens: Part of it that the cache held when the engine got the attempt; the usage
            of the end event has the part that was reused.
        cache_source: ``none``, ``ram`` or ``disk``.
        first_item: Number of the first stream item that this attempt writes.
        sampling: Sampling of this attempt: the caller's values over the model's defaults.
        resumed_tokens: Tokens already emitted by earlier attempts.
        prompt_hash: ``hash_ids`` of the rendered prompt.
        thinking_limit: Tokens of reasoning after which it is closed; later attempts use the same.
        known_tokens: Part of the prompt that the cache knew. More than ``cached_tokens`` where
            windows or states of the model can go on only from an earlier checkpoint.
        encoding: How the prompt's text was encoded; later attempts use the same.
    """

    attempt: int
    worker: WorkerId
    model: str
    fingerprint: str
    prompt_tokens: int
    cached_tokens: int
    cache_source: str
    first_item: int
    sampling: Sampling
    resumed_tokens: int = 0
    prompt_hash: str | None = None
    thinking_limit: int | None = None
    known_tokens: int = 0
    encoding: PromptEncoding = PromptEncoding.MARKS_READ


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed:
    """An attempt ended without an answer; the job may get another."""

    attempt: int
    error: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelRequested:
    """A cancellation was requested; the reason is ``api``, ``client_gone``, ``deadline``, etc."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelled:
    """The job stopped on request; its partial answer stays readable.

    ``attempt`` is 0 when it never started; ``timings`` are unknown then.
    """

    attempt: int
    usage: Usage
    output: Digest | None = None
    timings: Timings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCompleted:
    """The answer is complete.

    Attributes:
        stop_reason: Why the generation ended.
        stop_sequence: The stop text that ended it, if one did.
        output: Digest of the output payload.
        token_hash: ``hash_ids`` of the generated tokens.
    """

    attempt: int
    stop_reason: StopReason
    usage: Usage
    output: Digest
    token_hash: str
    timings: Timings
    stop_sequence: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    """The job ended without an answer."""

    error: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExpired:
    """A deadline passed before the job could start, or before it was done.

    ``attempt`` is 0 when none was running; a partial answer stays readable. ``absent_model`` is set
    where no deadline passed, but that model was not loaded for too long. ``timings`` are unknown
    where none was running.
    """

    deadline: str
    attempt: int = 0
    usage: Usage = Usage()
    output: Digest | None = None
    absent_model: str | None = None
    timings: Timings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRetried:
    """A job that ended without an answer was put back into its queue."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAttached:
    """A repeated request joined this job instead of starting another.

    Attributes:
        reason: ``idempotency_key``, ``unique``, ``retry``, ``same_session`` or ``same_answer``.
        trace: W3C ``traceparent`` of the span of that request.
    """

    reason: str
    request_id: str | None = None
    trace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHidden:
    """The caller deleted the answer: the routes of its dialect no longer return it.

    Texts that no other owner needs are erased soon after.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRelabelled:
    """The caller replaced the metadata of a stored answer.

    Attributes:
        wire: Digest of the request in the form of its dialect, with the new metadata.
    """

    wire: Digest


JobEvent = (
    JobSubmitted
    | EmbeddingRequested
    | JobAttached
    | JobReleased
    | AttemptStarted
    | AttemptFailed
    | JobCancelRequested
    | JobCancelled
    | JobCompleted
    | JobFailed
    | JobExpired
    | JobRetried
    | JobHidden
    | JobRelabelled
)
