"""Bodies and replies of ``/admin/engine`` and of the admission of jobs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.schemas.base import RequestBody, whole
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
