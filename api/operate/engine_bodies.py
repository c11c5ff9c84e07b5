"""Bodies for operators: the engine, swaps, the state of the service and webhooks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.http.bodies import RequestBody, whole
from domain.engine.control import BATCH_SIZE_MAX, BATCH_WINDOW_MS_MAX, GAP_MS_MAX

#: Characters of a reason.
REASON_CHARS_MAX = 200
BatchSize = Annotated[int, Field(ge=1, le=BATCH_SIZE_MAX), BeforeValidator(whole)]


class TuningBody(RequestBody):
    """The body of ``PATCH /admin/engine``; ``null`` returns to the setting.

    A value that is not named stays as it is, and unknown names are refused.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    batch_window_ms: Annotated[float, Field(ge=0, le=BATCH_WINDOW_MS_MAX)] | None = None
    max_batch_size: BatchSize | None = None
    gap_max_ms: Annotated[float, Field(ge=0, le=GAP_MS_MAX)] | None = None


class ReasonBody(RequestBody):
    """The body of the operations on the admission of jobs."""

    reason: Annotated[str, Field(min_length=1, max_length=REASON_CHARS_MAX)] | None = None


class EngineFigures(TypedDict):
    """Values of an engine."""

    batch_window_ms: float
    max_batch_size: int
    gap_max_ms: float


class EngineWorker(TypedDict):
    """A worker as it last reported: its values, and how many jobs it runs.

    ``place`` names its data directory and stays the same over restarts. ``model`` is the one that
    it has, loads or swaps to.
    """

    id: str
    place: str | None
    model: str | None
    state: str
    admission: Literal["open", "paused", "draining"]
    running: int
    values: EngineFigures | None


class EngineObject(TypedDict):
    """What operators have changed while the service runs.

    ``values`` are in force: those in ``tuned`` replace the ``settings``. ``running`` and
    ``waiting`` count jobs.
    """

    object: Literal["engine"]
    admission: Literal["open", "paused", "draining"]
    reason: str | None
    since: str | None
    values: EngineFigures
    tuned: list[str]
    settings: EngineFigures
    running: int
    waiting: int
    workers: list[EngineWorker]


class LogHeadObject(TypedDict):
    """The last event of the log: its position and its hash."""

    position: int
    hash: str


class StatusObject(TypedDict):
    """What ``semantic status`` prints.

    ``jobs`` counts the jobs by status. ``model``, ``cache`` and ``drafts`` are of the first worker
    that reports them.
    """

    object: Literal["status"]
    version: str
    model: str | None
    cache: dict[str, Any] | None
    drafts: dict[str, Any] | None
    jobs: dict[str, int]
    queue_depth: int
    log: LogHeadObject


class KeyObject(TypedDict):
    """The key of a request.

    ``name`` is ``null`` without keys. ``may`` has what the operations of the document name in
    ``x-semantic-access``. With ``sees_all``, lists and sums hold the things of all keys.
    """

    object: Literal["key"]
    name: str | None
    scope: Literal["admin", "own", "read"]
    may: list[str]
    sees_all: bool


class SwapTimings(TypedDict):
    """Milliseconds of each phase, ``null`` for those that were not entered or are not over.

    ``notice`` is the time until a worker saw the request, ``restart`` that from the last block on
    the disk to the load by a new process.
    """

    notice: float | None
    drain: float | None
    save: float | None
    restart: float | None
    load: float | None
    total: float | None


class SwapObject(TypedDict):
    """A change of the loaded model.

    ``before`` is the model that served last, to which the workers return if ``model`` cannot be
    loaded; ``why`` then has the reason, unless the key sees only what is its own. ``worker`` is the
    place of the only worker that is meant.
    """

    id: str
    object: Literal["model.swap"]
    model: str
    worker: str | None
    before: str | None
    state: Literal[
        "requested",
        "draining",
        "saving",
        "restarting",
        "loading",
        "done",
        "rolled_back",
        "superseded",
    ]
    reason: str
    why: str | None
    drain_s: float
    losses: int
    created_at: str
    ended_at: str | None
    timings_ms: SwapTimings


class WebhookObject(TypedDict):
    """A message to one receiver about the end of a job or a batch, and its delivery.

    ``error`` and ``status`` belong to the last attempt. During an attempt, ``next_attempt_at`` is
    the time at which the service considers it lost.
    """

    id: str
    object: Literal["webhook"]
    type: str
    subject: str
    url: str
    state: Literal["pending", "delivered", "failed"]
    attempts: int
    created_at: str
    last_attempt_at: str | None
    next_attempt_at: str | None
    status: int | None
    error: str | None


class WebhookList(TypedDict):
    """A page, newest first; ``before=<next_before>`` returns the next one."""

    object: Literal["list"]
    data: list[WebhookObject]
    has_more: bool
    next_before: str | None
