"""Which events begin work; a disk that is short of space refuses those and takes all others."""

from __future__ import annotations

from domain.events.agent import AgentForked, AgentRegistered
from domain.events.batch import BatchSubmitted, FileCreated
from domain.events.cache import (
    AgentCacheEvicted,
    AgentCacheMissed,
    AgentCacheRestored,
    AgentCacheSaved,
    CacheBlocksEvicted,
)
from domain.events.event import Event
from domain.events.job import AttemptStarted, JobRetried, JobSubmitted

#: What follows from work that was accepted, or can be missing: it waits while the disk is full, so
#: that the reserve remains for ends.
_CAN_WAIT = (
    AttemptStarted,
    AgentCacheSaved,
    AgentCacheRestored,
    AgentCacheMissed,
    AgentCacheEvicted,
    CacheBlocksEvicted,
)


def is_new_work(event: Event) -> bool:
    """Whether an event accepts what a client sends: it takes space now, and more until its end."""
    if isinstance(event, FileCreated):
        return event.content is not None  # the output of a batch is derived and has no content
    return isinstance(
        event, JobSubmitted | JobRetried | BatchSubmitted | AgentRegistered | AgentForked
    )


def begins_work(event: Event) -> bool:
    """Whether an event may not use the reserve of a full disk."""
    return is_new_work(event) or isinstance(event, _CAN_WAIT)
