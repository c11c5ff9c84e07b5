"""``Event``: every type that the log may hold, in one union, and which of them begin work.

Events are past-tense facts: frozen, keyword-only and small. Texts are payloads, events hold their
digests.
"""

from __future__ import annotations

from domain.events.agent import AgentChanged, AgentEvent, AgentForked, AgentRegistered
from domain.events.batch import (
    BatchEvent,
    BatchSubmitted,
    FileCreated,
    FileEvent,
    WebhookEvent,
)
from domain.events.cache import (
    AgentCacheEvicted,
    AgentCacheMissed,
    AgentCacheRestored,
    AgentCacheSaved,
    CacheBlocksEvicted,
    CacheEvent,
)
from domain.events.job import AttemptStarted, JobEvent, JobRetried, JobSubmitted
from domain.events.model import ModelEvent
from domain.events.schedule import ScheduleAdded, ScheduleEvent
from domain.events.subscription import (
    SubscriptionCreated,
    SubscriptionDelivered,
    SubscriptionEvent,
)
from domain.events.worker import EngineEvent, LogEvent, WorkerEvent

Event = (
    JobEvent
    | ModelEvent
    | WorkerEvent
    | CacheEvent
    | AgentEvent
    | LogEvent
    | FileEvent
    | BatchEvent
    | WebhookEvent
    | EngineEvent
    | ScheduleEvent
    | SubscriptionEvent
)

#: What follows from work that was accepted, or can be missing: it waits while the disk is full, so
#: that the reserve remains for ends.
_CAN_WAIT = (
    AttemptStarted,
    AgentCacheSaved,
    AgentCacheRestored,
    AgentCacheMissed,
    AgentCacheEvicted,
    CacheBlocksEvicted,
    SubscriptionDelivered,
)


def is_new_work(event: Event) -> bool:
    """Whether an event accepts what a client sends: it takes space now, and more until its end."""
    if isinstance(event, FileCreated):
        return event.content is not None  # the output of a batch is derived and has no content
    return isinstance(
        event,
        JobSubmitted
        | JobRetried
        | BatchSubmitted
        | AgentRegistered
        | AgentChanged
        | AgentForked
        | ScheduleAdded
        | SubscriptionCreated,
    )


def begins_work(event: Event) -> bool:
    """Whether an event may not use the reserve of a full disk."""
    return is_new_work(event) or isinstance(event, _CAN_WAIT)
