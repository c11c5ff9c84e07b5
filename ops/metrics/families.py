"""The table of all metric families; the scrape, ``docs/metrics.md`` and the checks read it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from domain.usage.figures import BOUNDS_US, Measure
from ops.metrics.family import Family, Kind, Source
from ops.metrics.worker_families import (
    CACHE_FAMILIES,
    COMMIT_BOUNDS_S,
    ENGINE_FAMILIES,
    PROCESS_FAMILIES,
)

_MODEL: Final = ("model",)
_MODEL_AGENT: Final = ("model", "agent_id")


def _duration(measure: Measure, name: str, text: str, *, vllm: str = "") -> Family:
    """Return the histogram of a measure of the usage projection."""
    return Family(
        name=name,
        kind=Kind.HISTOGRAM,
        unit="seconds",
        help=text,
        source=Source.LOG,
        labels=_MODEL,
        vllm=vllm,
        bounds=tuple(bound_us / 1e6 for bound_us in BOUNDS_US[measure]),
    )


REQUEST_FAMILIES: Final = (
    Family(
        name="request_total",
        kind=Kind.COUNTER,
        unit="jobs",
        help="Jobs that have ended, by their outcome.",
        source=Source.LOG,
        labels=("model", "agent_id", "status"),
    ),
    Family(
        name="request_success_total",
        kind=Kind.COUNTER,
        unit="jobs",
        help="Jobs that have completed.",
        source=Source.LOG,
        labels=_MODEL,
        vllm="request_success_total",
    ),
    Family(
        name="request_attempts_total",
        kind=Kind.COUNTER,
        unit="attempts",
        help="Attempts that have begun; more than jobs where workers died or steps failed.",
        source=Source.LOG,
        labels=_MODEL,
    ),
    Family(
        name="prompt_tokens_total",
        kind=Kind.COUNTER,
        unit="tokens",
        help="Tokens of the prompts of jobs that have ended, those from the cache included.",
        source=Source.LOG,
        labels=_MODEL_AGENT,
        vllm="prompt_tokens_total",
    ),
    Family(
        name="tokens_generated_total",
        kind=Kind.COUNTER,
        unit="tokens",
        help="Tokens of the answers of jobs that have ended, reasoning included.",
        source=Source.LOG,
        labels=_MODEL_AGENT,
        vllm="generation_tokens_total",
    ),
    Family(
        name="reasoning_tokens_total",
        kind=Kind.COUNTER,
        unit="tokens",
        help="Tokens of the answers that are reasoning.",
        source=Source.LOG,
        labels=_MODEL_AGENT,
    ),
    Family(
        name="prefix_cache_queries_total",
        kind=Kind.COUNTER,
        unit="tokens",
        help="Prompt tokens that were looked up in the cache.",
        source=Source.LOG,
        labels=_MODEL,
        vllm="prefix_cache_queries_total",
    ),
    Family(
        name="prefix_cache_hits_total",
        kind=Kind.COUNTER,
        unit="tokens",
        help="Prompt tokens that came from the cache instead of being computed.",
        source=Source.LOG,
        labels=_MODEL,
        vllm="prefix_cache_hits_total",
    ),
    _duration(
        Measure.TOTAL,
        "request_duration_seconds",
        "Time from the acceptance of a job to its end.",
        vllm="e2e_request_latency_seconds",
    ),
    _duration(
        Measure.FIRST_TOKEN,
        "time_to_first_token_seconds",
        "Time from when an engine took a job to the first token of its answer; the queue comes"
        " before.",
        vllm="time_to_first_token_seconds",
    ),
    _duration(
        Measure.QUEUE,
        "request_queue_time_seconds",
        "Time from the acceptance of a job to its first attempt.",
        vllm="request_queue_time_seconds",
    ),
    _duration(
        Measure.PREFILL,
        "request_prefill_time_seconds",
        "Time in which the prompt of a job was read, the part from the cache included.",
        vllm="request_prefill_time_seconds",
    ),
    _duration(
        Measure.DECODE,
        "request_decode_time_seconds",
        "Time from the first token of an answer to its last.",
        vllm="request_decode_time_seconds",
    ),
    _duration(
        Measure.INTER_TOKEN,
        "inter_token_latency_seconds",
        "Mean time between two tokens of an answer; each answer counts once.",
        vllm="inter_token_latency_seconds",
    ),
)
#: What the cache held of the prompts of agents.
REUSE_FAMILIES: Final = (
    Family(
        name="cache_hit_total",
        kind=Kind.COUNTER,
        unit="prompts",
        help="Prompts of agents that began with tokens of the cache.",
        source=Source.LOG,
        labels=_MODEL,
    ),
    Family(
        name="cache_miss_total",
        kind=Kind.COUNTER,
        unit="prompts",
        help="Prompts of agents that did not reuse all of the saved context: it diverged, its"
        " blocks were gone, or the model_changed.",
        source=Source.LOG,
        labels=("model", "reason"),
    ),
    Family(
        name="cache_restored_tokens_total",
        kind=Kind.COUNTER,
        unit="tokens",
        help="Tokens of agents that were restored, by where they were: ram or disk.",
        source=Source.LOG,
        labels=("model", "source"),
    ),
    Family(
        name="cache_missed_tokens_total",
        kind=Kind.COUNTER,
        unit="tokens",
        help="Saved tokens of agents that were computed again.",
        source=Source.LOG,
        labels=_MODEL,
    ),
    _duration(
        Measure.RESTORE,
        "cache_restore_duration_seconds",
        "Time in which a context of an agent was read and assembled.",
    ),
)
QUEUE_FAMILIES: Final = (
    Family(
        name="request_queue_depth",
        kind=Kind.GAUGE,
        unit="jobs",
        help="Jobs that wait for a worker.",
        source=Source.LOG,
        labels=("priority",),
        vllm="num_requests_waiting",
    ),
    Family(
        name="request_queue_oldest_seconds",
        kind=Kind.GAUGE,
        unit="seconds",
        help="Age of the oldest job that waits for a worker; 0 if none waits.",
        source=Source.LOG,
        labels=("priority",),
    ),
    Family(
        name="requests_running",
        kind=Kind.GAUGE,
        unit="jobs",
        help="Jobs whose attempt has begun.",
        source=Source.LOG,
        vllm="num_requests_running",
    ),
    Family(
        name="agents_active",
        kind=Kind.GAUGE,
        unit="agents",
        help="Agents with a job that waits or runs.",
        source=Source.LOG,
    ),
)


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


#: The families by the heading under which the documentation lists them.
SECTIONS: Final[Mapping[str, tuple[Family, ...]]] = MappingProxyType(
    {
        "Requests": REQUEST_FAMILIES,
        "Queue": QUEUE_FAMILIES,
        "Engine": ENGINE_FAMILIES,
        "Cache": (*REUSE_FAMILIES, *CACHE_FAMILIES),
        "Models and workers": SERVICE_FAMILIES,
        "Event log": LOG_FAMILIES,
        "Front": API_FAMILIES,
        "Processes": PROCESS_FAMILIES,
    }
)
#: All families by their name without prefix.
FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {family.name: family for section in SECTIONS.values() for family in section}
)
