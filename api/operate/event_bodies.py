"""Types of replies about the event log."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.dialects.replies import JobObject


class EventObject(TypedDict):
    """An event of the log.

    ``data`` has digests of the texts that a client wrote; ``texts`` has those that are not erased,
    by the name of their field.
    """

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
    texts: dict[str, Any]


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
    Events up to ``archived_through`` are in archives, which ``semantic log verify`` checks.
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


class JobStep(TypedDict):
    """A step of a job; ``position`` is ``null`` for what a worker measured between two events.

    ``after_ms`` counts from the acceptance, ``took_ms`` is the duration where it is known.
    """

    what: str
    at: str
    after_ms: float
    text: str
    took_ms: float | None
    attempt: int | None
    position: int | None


class JobBar(TypedDict):
    """A stretch of time of an attempt, in milliseconds since the acceptance.

    ``to_ms`` is ``null`` while it lasts. ``run`` stands for phases that are not recorded, because
    the attempt runs or ended without an answer, ``lost`` for an attempt whose worker died.
    """

    kind: Literal["queued", "restore", "prefill", "decode", "run", "lost"]
    attempt: int
    from_ms: float
    to_ms: float | None


class JobTimeline(TypedDict):
    """Where the time of a job went; ``at`` is the instant of this reply."""

    object: Literal["job.timeline"]
    job: str
    at: str
    ended: bool
    total_ms: float
    queued_ms: float
    attempts: int
    steps: list[JobStep]
    bars: list[JobBar]
