"""Why a job did not restore all of its agent's saved context. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from domain.events.cache import AgentCacheSaved
from worker.cachestore.reports import ContextStarted

#: Fewer tokens are no miss: chat templates often render the end of a turn differently in the next.
MISSED_TOKENS_MIN = 16


@dataclass(frozen=True, slots=True)
class Miss:
    """The fields are those of ``AgentCacheMissed``."""

    reason: str
    at_token: int
    missed_tokens: int


def miss_of(started: ContextStarted, saved: AgentCacheSaved | None) -> Miss | None:
    """Return what a job missed of its agent's last saved context.

    ``None`` if the agent has no saved context, or the prompt ends inside it.
    """
    if saved is None:
        return None
    if saved.fingerprint != started.fingerprint:
        return Miss("model_changed", 0, saved.tokens)
    size = started.block_tokens
    common = _common_blocks(started, saved)
    diverges = common < min(len(started.names), len(saved.blocks))
    diverged_at = started.diverged_at
    if diverged_at is not None and common * size <= diverged_at < (common + 1) * size:
        first_difference: int | None = diverged_at
    else:
        first_difference = common * size if diverges else None
    shared_tokens = min(saved.tokens, started.prompt_tokens)
    if first_difference is not None and first_difference < shared_tokens:
        # Blocks before the difference may be missing too; the earlier loss is reported.
        shared_tokens = first_difference
    if common * size - started.restored_tokens >= MISSED_TOKENS_MIN:
        at_token = started.restored_tokens
        return Miss("gone", at_token, shared_tokens - at_token)
    if first_difference is not None and saved.tokens - first_difference >= MISSED_TOKENS_MIN:
        return Miss("diverged", first_difference, saved.tokens - first_difference)
    return None


def _common_blocks(started: ContextStarted, saved: AgentCacheSaved) -> int:
    """Return how many first blocks are the same."""
    count = 0
    for name, other in zip(started.names, saved.blocks, strict=False):
        if name.hex() != other:
            break
        count += 1
    return count
