"""Families about models, workers, the event log and the front."""

from __future__ import annotations

from typing import Final

from ops.metrics.family import Family, Kind, Source
from ops.metrics.worker_families import COMMIT_BOUNDS_S

#: Bounds for swaps of the model, in seconds.
SWAP_BOUNDS_S: Final = (1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
_PROCESS: Final = ("process",)

SERVICE_FAMILIES: Final = (
    Family(
        name="build_info",
        kind=Kind.GAUGE,
        unit="flag",
        help="1, with the version of the service.",
        source=Source.API,
        labels=("version",),
    ),
    Family(
        name="workers",
        kind=Kind.GAUGE,
        unit="workers",
        help="Living workers by their state.",
        source=Source.WORKER,
        labels=("state",),
    ),
    Family(
        name="worker_info",
        kind=Kind.GAUGE,
        unit="flag",
        help="1 for each living worker, with its host, its model and its state.",
        source=Source.WORKER,
        labels=("worker", "host", "model", "state"),
    ),
    Family(
        name="worker_starts_total",
        kind=Kind.COUNTER,
        unit="starts",
        help="Starts of a worker that loaded a model; swaps and crashes are starts too.",
        source=Source.WORKER,
        labels=("worker",),
    ),
    Family(
        name="admission_state",
        kind=Kind.GAUGE,
        unit="flag",
        help="1 for what operators have set: open, paused or draining.",
        source=Source.LOG,
        labels=("state",),
    ),
    Family(
        name="model_swap_duration_seconds",
        kind=Kind.HISTOGRAM,
        unit="seconds",
        help="Time from the request of a swap until a worker served the model.",
        source=Source.LOG,
        labels=("model",),
        bounds=SWAP_BOUNDS_S,
    ),
    Family(
        name="model_swap_total",
        kind=Kind.COUNTER,
        unit="swaps",
        help="Swaps that have ended: done, rolled_back or superseded.",
        source=Source.LOG,
        labels=("outcome",),
    ),
)
LOG_FAMILIES: Final = (
    Family(
        name="log_events_total",
        kind=Kind.COUNTER,
        unit="events",
        help="Events in the log: the position of the last one.",
        source=Source.LOG,
    ),
    Family(
        name="log_commit_duration_seconds",
        kind=Kind.HISTOGRAM,
        unit="seconds",
        help="Time of a commit of the log; several appends share one.",
        source=Source.API,
        labels=_PROCESS,
        bounds=COMMIT_BOUNDS_S,
    ),
    Family(
        name="log_write_failures_total",
        kind=Kind.COUNTER,
        unit="commits",
        help="Commits that the database refused.",
        source=Source.API,
        labels=_PROCESS,
    ),
    Family(
        name="log_waiting_appends",
        kind=Kind.GAUGE,
        unit="appends",
        help="Appends that wait for the next commit.",
        source=Source.API,
        labels=_PROCESS,
    ),
    Family(
        name="log_disk_free_bytes",
        kind=Kind.GAUGE,
        unit="bytes",
        help="Free space on the disk of the event log.",
        source=Source.API,
    ),
    Family(
        name="log_disk_floor_bytes",
        kind=Kind.GAUGE,
        unit="bytes",
        help="Free space below which new work is refused (disk.free_min_mb).",
        source=Source.API,
    ),
    Family(
        name="log_disk_full",
        kind=Kind.GAUGE,
        unit="flag",
        help="1 while new work is refused because the disk of the event log is short of space.",
        source=Source.API,
    ),
)
API_FAMILIES: Final = (
    Family(
        name="http_connections_open",
        kind=Kind.GAUGE,
        unit="connections",
        help="Open connections of clients.",
        source=Source.API,
    ),
    Family(
        name="http_requests_in_flight",
        kind=Kind.GAUGE,
        unit="requests",
        help="Requests whose reply is not complete, open streams included.",
        source=Source.API,
    ),
    Family(
        name="http_requests_total",
        kind=Kind.COUNTER,
        unit="requests",
        help="Replies by the route and the status; unrouted stands for paths without a route.",
        source=Source.API,
        labels=("route", "status"),
    ),
    Family(
        name="webhooks_pending",
        kind=Kind.GAUGE,
        unit="webhooks",
        help="Webhooks that wait for a try.",
        source=Source.LOG,
    ),
    Family(
        name="webhook_attempts_total",
        kind=Kind.COUNTER,
        unit="tries",
        help="Tries of webhooks by what came of them: delivered, pending (it will be tried again)"
        " or failed (it is given up).",
        source=Source.API,
        labels=("outcome",),
    ),
    Family(
        name="scrape_source_up",
        kind=Kind.GAUGE,
        unit="flag",
        help="1 if this scrape could read the source: log or broker.",
        source=Source.API,
        labels=("source",),
    ),
)
