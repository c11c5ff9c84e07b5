"""Replies of ``/admin/overview``, ``/history`` and ``/usage``; no field holds a prompt text."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.dialects.replies import WaitingName
from api.operate.engine_bodies import SwapObject

ServiceState = Literal[
    "ready",
    "loading",
    "unloaded",
    "swapping",
    "draining",
    "paused",
    "stuck",
    "down",
]
WorkerStateName = Literal[
    "ready",
    "loading",
    "unloaded",
    "swapping",
    "draining",
    "stuck",
    "dead",
]
Phase = Literal["start", "restore", "prefill", "decode"]


class OverviewMemory(TypedDict):
    """Memory of the engine in bytes.

    ``live`` are contexts of running jobs, ``kept`` are contexts that later prompts may continue,
    and ``pinned`` is the part of both that cannot be freed at once. ``live`` and ``kept`` together
    stay below ``budget``. ``soft`` and ``hard`` are marks for ``weights`` and ``pinned`` together:
    from ``soft`` on contexts are saved in a hurry, at ``hard`` new jobs wait for memory.
    ``ceiling`` is the most that the engine takes, with the memory of a step.
    """

    weights: int
    live: int
    kept: int
    pinned: int
    budget: int
    soft: int
    hard: int
    ceiling: int


class OverviewDisk(TypedDict):
    """Contexts on the disk; sizes in bytes."""

    state: Literal["on", "paused", "scanning", "off"]
    used: int
    budget: int
    blocks: int


class OverviewRates(TypedDict):
    """Rates over the last seconds; ``null`` while nothing was measured.

    ``tokens_per_s`` are generated and ``prompt_tokens_per_s`` computed tokens of prompts.
    ``first_token_ms`` is the mean time to the first token, and ``cached_share`` the share of the
    prompts that the cache held, from 0 to 1; both over the last minute.
    """

    tokens_per_s: float
    prompt_tokens_per_s: float
    running: int
    queue_depth: int
    first_token_ms: float | None
    cached_share: float | None


class OverviewWorker(TypedDict):
    """A worker as it last reported.

    ``model`` is the name of the model that it has, loads or swaps to. A worker that is ``dead`` is
    shown for a while; ``age_s`` is the time since its reports ended. ``step`` is the step in which
    the engine of a ``stuck`` worker is. ``running`` counts without those that wait in the engine.
    """

    id: str
    state: WorkerStateName
    model: str | None
    pid: int
    age_s: float
    step: str | None
    running: int
    places: int | None
    waiting: int
    tokens_per_s: float
    prompt_tokens_per_s: float
    memory: OverviewMemory | None
    disk: OverviewDisk | None


class RunningRow(TypedDict):
    """A job that a worker runs.

    ``read_tokens`` of ``prompt_tokens`` are computed or restored; ``cached_tokens`` of them come
    from the cache. ``eta_s`` is the estimated time to the end.
    """

    job: str
    agent: str | None
    model: str
    worker: str | None
    priority: Literal["interactive", "batch"]
    attempt: int
    phase: Phase
    prompt_tokens: int
    read_tokens: int
    cached_tokens: int
    generated_tokens: int
    max_tokens: int | None
    tokens_per_s: float | None
    eta_s: float | None
    cancel_requested: bool
    created_at: str
    started_at: str | None


class WaitingRow(TypedDict):
    """A job that waits.

    ``position`` is the number of jobs that start before it. ``reason`` is what it needs; ``agent``
    stands for an earlier job of the same agent. ``eta_s`` is the estimated time to its start.
    """

    job: str
    agent: str | None
    model: str
    priority: Literal["interactive", "batch"]
    position: int | None
    reason: WaitingName | Literal["agent"]
    eta_s: float | None
    attempt: int
    cancel_requested: bool
    created_at: str


class MissReason(TypedDict):
    """Why the cache held no more of a prompt.

    ``cause`` is a cause as in the ``cache`` part of a job, and ``place`` where the prompts differ.
    """

    cause: str
    place: str
    missed_tokens: int


class FinishedRow(TypedDict):
    """A job that has ended lately; ``first_token_ms`` counts from the acceptance of the job."""

    job: str
    agent: str | None
    model: str
    outcome: Literal["completed", "failed", "cancelled", "expired"]
    stop_reason: str | None
    error: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first_token_ms: float | None
    total_ms: float
    miss: MissReason | None
    created_at: str
    finished_at: str


class OverviewObject(TypedDict):
    """What the service does now; clients ignore fields that they do not know.

    ``problem`` is one sentence on why ``state`` is not ``ready``. ``memory`` and ``disk`` are
    sums over ``workers``; ``disk_free`` is the free space of the disk of the log, in bytes.
    ``running`` begins with the oldest job, ``waiting`` with the one that starts next and
    ``finished`` with the latest; they hold the first rows only, while ``rates`` counts all jobs.
    """

    object: Literal["overview"]
    at: str
    version: str
    state: ServiceState
    problem: str | None
    model: str | None
    admission: Literal["open", "paused", "draining"]
    swap: SwapObject | None
    rates: OverviewRates
    memory: OverviewMemory | None
    disk: OverviewDisk | None
    disk_free: int
    workers: list[OverviewWorker]
    running: list[RunningRow]
    waiting: list[WaitingRow]
    finished: list[FinishedRow]


class HistoryPoint(TypedDict):
    """Means over one step that begins at ``t``, seconds since 1970; ``null``: nothing measured."""

    t: int
    tokens_per_s: float | None
    prompt_tokens_per_s: float | None
    running: float | None
    queue_depth: float | None
    first_token_ms: float | None
    cached_share: float | None


class HistoryObject(TypedDict):
    """Rates of the last time, oldest first; steps in which nothing was measured may be missing."""

    object: Literal["history"]
    range: Literal["5m", "1h", "24h"]
    step_s: int
    points: list[HistoryPoint]


class UsageMeans(TypedDict):
    """Mean durations in milliseconds; ``null`` where none is known."""

    queue: float | None
    restore: float | None
    prefill: float | None
    first_token: float | None
    decode: float | None
    total: float | None


class UsageSums(TypedDict):
    """Sums of ended jobs; an empty ``name`` stands for jobs without an agent or a model."""

    name: str
    jobs: int
    completed: int
    failed: int
    cancelled: int
    expired: int
    attempts: int
    failed_attempts: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    kept_tokens: int
    hits: int
    ram_tokens: int
    disk_tokens: int
    misses_diverged: int
    misses_gone: int
    misses_model_changed: int
    missed_tokens: int
    started_jobs: int
    timed_jobs: int
    cached_ratio: float
    mean_ms: UsageMeans
    decode_tokens_per_s: float | None


class UsageObject(TypedDict):
    """A report of usage; ``total`` has the rows that the limit leaves out, too."""

    object: Literal["usage"]
    by: str
    since: str | None
    data: list[UsageSums]
    total: UsageSums
    has_more: bool
