"""What of an agent's saved context a job had to compute again, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from domain.events.cache import AgentCacheSaved
from worker.cachestore.reports import ContextStarted

#: Fewer tokens are no miss: the last turn's end is often written in another way in the next.
MISSED_TOKENS_MIN = 16


@dataclass(frozen=True, slots=True)
class Miss:
    """The fields are those of ``AgentCacheMissed``."""

    reason: str
    at_token: int
    missed_tokens: int


def miss_of(started: ContextStarted, saved: AgentCacheSaved | None) -> Miss | None:
    """Return what a job missed of the context that its agent had last saved.

    An agent with nothing saved misses nothing, nor does one whose prompt ends inside what is.
    """
    if saved is None:
        return None
    if saved.fingerprint != started.fingerprint:
        return Miss("model_changed", 0, saved.tokens)
    size = started.block_tokens
    agreeing = _agreeing(started, saved)
    parts = agreeing < min(len(started.names), len(saved.blocks))
    told = started.diverged_at
    if told is not None and agreeing * size <= told < (agreeing + 1) * size:
        parted_at: int | None = told
    else:
        parted_at = agreeing * size if parts else None
    shared_tokens = min(saved.tokens, started.prompt_tokens)
    if parted_at is not None and parted_at < shared_tokens:
        # What lies before may be gone too; then the earlier loss is the one to tell.
        shared_tokens = parted_at
    if agreeing * size - started.restored_tokens >= MISSED_TOKENS_MIN:
        at_token = started.restored_tokens
        return Miss("gone", at_token, shared_tokens - at_token)
    if parted_at is not None and saved.tokens - parted_at >= MISSED_TOKENS_MIN:
        return Miss("diverged", parted_at, saved.tokens - parted_at)
    return None


def _agreeing(started: ContextStarted, saved: AgentCacheSaved) -> int:
    """Return how many blocks both start with."""
    count = 0
    for name, other in zip(started.names, saved.blocks, strict=False):
        if name.hex() != other:
            break
        count += 1
    return count
