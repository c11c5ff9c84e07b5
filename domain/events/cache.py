"""Events of cached contexts, on the streams of agents, workers and models."""

from __future__ import annotations

from dataclasses import dataclass

from domain.values import JobId, WorkerId

# --- agent ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCacheSaved:
    """An agent's context is on disk and survives a power cut.

    Attributes:
        job: The job that left it.
        fingerprint: What the blocks were computed with.
        blocks: Names of the whole blocks in order, 64 hex digits each.
        tail: Name of the block after them that is not full, if there is one.
        tokens: Length of the context.
    """

    job: JobId
    fingerprint: str
    blocks: tuple[str, ...]
    tail: str | None
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCacheRestored:
    """A job of an agent started from what was known of its context.

    Attributes:
        job: The job.
        source: ``ram``, or ``disk`` if any of it came from there for this job.
        tokens: What was not computed.
        disk_tokens: How much of that came from the disk.
        prompt_tokens: Length of the prompt, words of earlier attempts included.
        took_ms: How long reading and putting together took.
    """

    job: JobId
    source: str
    tokens: int
    disk_tokens: int
    prompt_tokens: int
    took_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCacheMissed:
    """A job of an agent had to compute what had been saved of its context.

    Attributes:
        job: The job.
        reason: ``diverged`` (the prompt is another from there on), ``gone`` (the blocks are not
            there any more) or ``model_changed``.
        at_token: Index of the first token that was computed although it had been saved.
        missed_tokens: How many had been saved from there on.
    """

    job: JobId
    reason: str
    at_token: int
    missed_tokens: int


# --- worker --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBlockRejected:
    """A block on disk was not what its name promised; it is deleted and computed again.

    Attributes:
        worker: Who met it.
        block: Its name, 64 hex digits.
        reason: E.g. ``checksum``, ``truncated``, ``wrong_fingerprint``.
        detail: What was found.
        size_bytes: Length of the file.
    """

    worker: WorkerId
    block: str
    reason: str
    detail: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBlocksEvicted:
    """The least recently used blocks made room for others, all since the last such event.

    ``tier`` is ``ram`` or ``disk``; what leaves memory may still be on disk.
    """

    worker: WorkerId
    tier: str
    blocks: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePersistencePaused:
    """The disk took no more: contexts are kept in memory only, and generation goes on.

    Attributes:
        worker: Whose disk.
        error: Name of the error number, e.g. ``ENOSPC``.
        message: Message of the operating system.
        retry_s: Seconds until it is tried again.
    """

    worker: WorkerId
    error: str
    message: str
    retry_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePersistenceResumed:
    """The disk takes blocks again.

    Attributes:
        worker: Whose disk.
        paused_s: Seconds since it stopped.
        dropped: Blocks that were not stored in between.
    """

    worker: WorkerId
    paused_s: float
    dropped: int


# --- model ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeightsChanged:
    """A model of the same name computes with something else than when it was last loaded.

    No context of before is used with it.

    Attributes:
        worker: Who found out.
        model: Id of the model.
        before: Fingerprint of then.
        after: Fingerprint of now.
    """

    worker: WorkerId
    model: str
    before: str
    after: str


AgentCacheEvent = AgentCacheSaved | AgentCacheRestored | AgentCacheMissed
WorkerCacheEvent = (
    CacheBlockRejected | CacheBlocksEvicted | CachePersistencePaused | CachePersistenceResumed
)
CacheEvent = AgentCacheEvent | WorkerCacheEvent | ModelWeightsChanged
