"""Types of replies about the event log."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.schemas.replies import JobObject


class EventObject(TypedDict):
    """An event of the log."""

    position: int
    stream: str
    version: int
    type: str
    schema_version: int
    data: dict[str, Any]
    event_id: str
    correlation_id: str
    causation_id: str | None
    recorded_at: str
    prev_hash: str
    hash: str


class EventList(TypedDict):
    """A page of events.

    In the order of the log; ``after=<next_after>`` returns the next page. Or, with ``before``,
    newest first; ``before=<next_before>`` returns the next page of these.
    """

    object: Literal["list"]
    data: list[EventObject]
    has_more: bool
    next_after: int
    next_before: int | None


class EventMark(TypedDict):
    """A position of the log and the hash of its event; 0 and zeros before the first."""

    position: int
    hash: str


class ChainFault(TypedDict):
    """The first event that does not fit, and the reason."""

    position: int
    message: str


class ChainCheck(TypedDict):
    """The check of a stretch of the hash chain; ``after=<next_after>`` checks the next one.

    ``before`` is the event before the first checked one, ``through`` the last event that fits.
    Events up to ``archived_through`` are in archives, which ``semantic events verify`` checks.
    ``has_more`` is false at the end of the log and after a fault.
    """

    object: Literal["events.check"]
    ok: bool
    events: int
    before: EventMark
    through: EventMark
    head: EventMark
    archived_through: int
    fault: ChainFault | None
    has_more: bool
    next_after: int


class PastModel(TypedDict):
    """A worker and the model that it had loaded."""

    worker: str
    model: str


class PastAgentObject(TypedDict):
    """An agent of the listed jobs; ``context_tokens`` is the length of its saved context."""

    agent_id: str
    jobs: int
    open_jobs: int
    context_tokens: int | None


class PastStateObject(TypedDict):
    """The state after the event at ``position``.

    ``type`` and ``recorded_at`` are those of the event; ``null`` if it is in an archive.
    ``jobs`` has the jobs accepted last before it, newest first; ``counts`` counts these by status.
    """

    object: Literal["events.state"]
    position: int
    type: str | None
    recorded_at: str | None
    head: EventMark
    admission: Literal["open", "paused", "draining"]
    models: list[PastModel]
    counts: dict[str, int]
    jobs: list[JobObject]
    agents: list[PastAgentObject]
    has_more: bool
