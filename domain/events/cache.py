"""Events of cached contexts, on the streams of agents, workers and models."""

from __future__ import annotations

from dataclasses import dataclass

from domain.values import AgentId, JobId, WorkerId

# --- agent ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCacheSaved:
    """The context of an agent was stored durably on disk.

    Attributes:
        job: The job after which it was stored.
        fingerprint: Fingerprint of the model that computed the blocks.
        blocks: Names of the whole blocks in order, 64 hex digits each.
        tail: Name of the partly filled block after them, if there is one.
        tokens: Length of the context.
        checkpoints: Names of the stored checkpoints of window and state layers on the way.
    """

    job: JobId
    fingerprint: str
    blocks: tuple[str, ...]
    tail: str | None
    tokens: int
    checkpoints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCacheRestored:
    """A job of an agent reused the cached part of its context.

    Attributes:
        source: ``disk`` if any block was read from disk for this job, else ``ram``.
        disk_tokens: Those of them that were read from disk.
        prompt_tokens: Length of the prompt, including the tokens that earlier attempts emitted.
        took_ms: Duration of reading and assembling the blocks.
    """

    job: JobId
    source: str
    tokens: int
    disk_tokens: int
    prompt_tokens: int
    took_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCacheMissed:
    """A job of an agent computed tokens of its context that had been saved.

    Attributes:
        reason: ``diverged`` (the prompt differs from there on), ``gone`` (the blocks were deleted)
            or ``model_changed``.
        at_token: Index of the first saved token that was computed again.
        missed_tokens: Number of saved tokens from there on.
    """

    job: JobId
    reason: str
    at_token: int
    missed_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCacheEvicted:
    """The blocks that only the contexts of an agent used were deleted on request.

    Attributes:
        reason: ``operator``.
    """

    agent: AgentId
    blocks: int
    reason: str


# --- worker --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBlockRejected:
    """The content of a block on disk did not match its name; the file was deleted.

    Attributes:
        worker: The worker that read it.
        block: Its name, 64 hex digits.
        reason: E.g. ``checksum``, ``truncated``, ``wrong_fingerprint``.
    """

    worker: WorkerId
    block: str
    reason: str
    detail: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBlocksEvicted:
    """The least recently used blocks were evicted, counted since the last event of this type.

    ``tier`` is ``ram`` or ``disk``; a block that is evicted from memory may still be on disk.
    """

    worker: WorkerId
    tier: str
    blocks: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePersistencePaused:
    """Writing to disk failed: contexts stay in memory only, and generation continues.

    Attributes:
        error: Name of the error number, e.g. ``ENOSPC``.
        message: Message of the operating system.
        retry_s: Seconds until the next try.
    """

    worker: WorkerId
    error: str
    message: str
    retry_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePersistenceResumed:
    """Writing blocks to disk works again.

    Attributes:
        dropped: Blocks that were not stored during the pause.
    """

    worker: WorkerId
    paused_s: float
    dropped: int


# --- model ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeightsChanged:
    """The fingerprint of a model differs from the one of its last load.

    Contexts of the earlier fingerprint are not reused.

    Attributes:
        before: Fingerprint of the last load.
        after: Fingerprint of this load.
    """

    worker: WorkerId
    model: str
    before: str
    after: str


AgentCacheEvent = AgentCacheSaved | AgentCacheRestored | AgentCacheMissed | AgentCacheEvicted
WorkerCacheEvent = (
    CacheBlockRejected | CacheBlocksEvicted | CachePersistencePaused | CachePersistenceResumed
)
CacheEvent = AgentCacheEvent | WorkerCacheEvent | ModelWeightsChanged
