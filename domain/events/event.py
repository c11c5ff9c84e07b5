"""``Event``: every type that the log may hold, in one union.

Events are past-tense facts: frozen, keyword-only and small. Texts are payloads, events hold their
digests.
"""

from __future__ import annotations

from domain.events.agent import AgentEvent
from domain.events.batch import BatchEvent, FileEvent, WebhookEvent
from domain.events.cache import CacheEvent
from domain.events.job import JobEvent
from domain.events.model import ModelEvent
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
)
