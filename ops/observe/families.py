"""The table of all metric families; the scrape, ``docs/metrics.md`` and the checks read it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from domain.usage.figures import BOUNDS_US, Measure
from ops.observe.family import Family, Kind, Source

#: Bounds for writes of a group of blocks to the disk, in seconds.
PERSIST_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
#: Bounds for commits of the event log, in seconds.
COMMIT_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
#: Bounds for swaps of the model, in seconds.
SWAP_BOUNDS_S: Final = (1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
#: Bounds for the sequences that get a token in one step.
BATCH_BOUNDS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 32)


def _bounds(measure: Measure) -> tuple[float, ...]:
    """Return the bounds of a measure of the usage projection, in seconds."""
    return tuple(bound_us / 1e6 for bound_us in BOUNDS_US[measure])


#: Bounds of the histograms.
_BOUNDS: Final[Mapping[str, tuple[float, ...]]] = MappingProxyType(
    {
        "request_duration_seconds": _bounds(Measure.TOTAL),
        "time_to_first_token_seconds": _bounds(Measure.FIRST_TOKEN),
        "request_queue_time_seconds": _bounds(Measure.QUEUE),
        "request_prefill_time_seconds": _bounds(Measure.PREFILL),
        "request_decode_time_seconds": _bounds(Measure.DECODE),
        "inter_token_latency_seconds": _bounds(Measure.INTER_TOKEN),
        "cache_restore_duration_seconds": _bounds(Measure.RESTORE),
        "cache_persist_duration_seconds": PERSIST_BOUNDS_S,
        "model_swap_duration_seconds": SWAP_BOUNDS_S,
        "log_commit_duration_seconds": COMMIT_BOUNDS_S,
        "batch_size": BATCH_BOUNDS,
    }
)
#: Families of vLLM with the same meaning.
_VLLM: Final[Mapping[str, str]] = MappingProxyType(
    {
        "request_success_total": "request_success_total",
        "prompt_tokens_total": "prompt_tokens_total",
        "tokens_generated_total": "generation_tokens_total",
        "prefix_cache_queries_total": "prefix_cache_queries_total",
        "prefix_cache_hits_total": "prefix_cache_hits_total",
        "request_duration_seconds": "e2e_request_latency_seconds",
        "time_to_first_token_seconds": "time_to_first_token_seconds",
        "request_queue_time_seconds": "request_queue_time_seconds",
        "request_prefill_time_seconds": "request_prefill_time_seconds",
        "request_decode_time_seconds": "request_decode_time_seconds",
        "inter_token_latency_seconds": "inter_token_latency_seconds",
        "request_queue_depth": "num_requests_waiting",
        "requests_running": "num_requests_running",
        "spec_decode_num_drafts_total": "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total": "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total": "spec_decode_num_accepted_tokens_total",
        "pool_utilization_ratio": "kv_cache_usage_perc",
    }
)


def _family(sample: str, unit: str, text: str, *, source: Source) -> Family:
    """Return a family by its name, with the labels of its samples in braces."""
    name, _, labels = sample.removesuffix("}").partition("{")
    kind = Kind.COUNTER if name.endswith("_total") else Kind.GAUGE
    return Family(
        name=name,
        kind=Kind.HISTOGRAM if name in _BOUNDS else kind,
        unit=unit,
        help=text,
        source=source,
        labels=tuple(labels.split(",")) if labels else (),
        vllm=_VLLM.get(name, ""),
        bounds=_BOUNDS.get(name, ()),
    )


_log = partial(_family, source=Source.LOG)
_worker = partial(_family, source=Source.WORKER)
_api = partial(_family, source=Source.API)

_REQUESTS: Final = (
    _log("request_total{model,agent_id,status}", "jobs", "Jobs that have ended, by their outcome."),
    _log("request_success_total{model}", "jobs", "Jobs that have completed."),
    _log(
        "request_attempts_total{model}",
        "attempts",
        "Attempts that have begun; more than jobs where workers died or steps failed.",
    ),
    _log(
        "prompt_tokens_total{model,agent_id}",
        "tokens",
        "Tokens of the prompts of jobs that have ended, those from the cache included.",
    ),
    _log(
        "tokens_generated_total{model,agent_id}",
        "tokens",
        "Tokens of the answers of jobs that have ended, reasoning included.",
    ),
    _log(
        "reasoning_tokens_total{model,agent_id}",
        "tokens",
        "Tokens of the answers that are reasoning.",
    ),
    _log(
        "prefix_cache_queries_total{model}",
        "tokens",
        "Prompt tokens that were looked up in the cache.",
    ),
    _log(
        "prefix_cache_hits_total{model}",
        "tokens",
        "Prompt tokens that came from the cache instead of being computed.",
    ),
    _log(
        "request_duration_seconds{model}",
        "seconds",
        "Time from the acceptance of a job to its end.",
    ),
    _log(
        "time_to_first_token_seconds{model}",
        "seconds",
        "Time from when an engine took a job to the first token of its answer; the queue comes"
        " before.",
    ),
    _log(
        "request_queue_time_seconds{model}",
        "seconds",
        "Time from the acceptance of a job to its first attempt.",
    ),
    _log(
        "request_prefill_time_seconds{model}",
        "seconds",
        "Time in which the prompt of a job was read, the part from the cache included.",
    ),
    _log(
        "request_decode_time_seconds{model}",
        "seconds",
        "Time from the first token of an answer to its last.",
    ),
    _log(
        "inter_token_latency_seconds{model}",
        "seconds",
        "Mean time between two tokens of an answer; each answer counts once.",
    ),
)
_QUEUE: Final = (
    _log("request_queue_depth{priority}", "jobs", "Jobs that wait for a worker."),
    _log(
        "request_queue_oldest_seconds{priority}",
        "seconds",
        "Age of the oldest job that waits for a worker; 0 if none waits.",
    ),
    _log("requests_running", "jobs", "Jobs whose attempt has begun."),
    _log("agents_active", "agents", "Agents with a job that waits or runs."),
)
_ENGINE: Final = (
    _worker(
        "batch_size{worker}", "sequences", "Sequences that got a token in one step of a worker."
    ),
    _worker("batch_places{worker}", "sequences", "Sequences that run at once at most."),
    _worker(
        "engine_waiting{worker,reason}",
        "jobs",
        "Jobs that a worker has taken and that wait in its engine, by what they wait for.",
    ),
    _worker(
        "tokens_per_second{worker}",
        "tokens per second",
        "Tokens that a worker generated since its pulse before, per second.",
    ),
    _worker(
        "grammar_cache_bytes{worker}",
        "bytes",
        "Memory of the compiled grammars that a worker keeps.",
    ),
    _worker(
        "engine_generated_tokens_total{worker}",
        "tokens",
        "Tokens that an engine has generated, those of unfinished attempts included.",
    ),
    _worker(
        "engine_prefill_tokens_total{worker}",
        "tokens",
        "Prompt tokens that an engine has computed.",
    ),
    _worker(
        "spec_decode_num_drafts_total{worker}",
        "drafts",
        "Drafts of speculation that were verified.",
    ),
    _worker("spec_decode_num_draft_tokens_total{worker}", "tokens", "Tokens of verified drafts."),
    _worker(
        "spec_decode_num_accepted_tokens_total{worker}",
        "tokens",
        "Tokens of verified drafts that the model drew.",
    ),
)
_CACHE: Final = (
    _log(
        "cache_hit_total{model}",
        "prompts",
        "Prompts of agents that began with tokens of the cache.",
    ),
    _log(
        "cache_miss_total{model,reason}",
        "prompts",
        "Prompts of agents that did not reuse all of the saved context: it diverged, its blocks"
        " were gone, or the model_changed.",
    ),
    _log(
        "cache_restored_tokens_total{model,source}",
        "tokens",
        "Tokens of agents that were restored, by where they were: ram or disk.",
    ),
    _log(
        "cache_missed_tokens_total{model}",
        "tokens",
        "Saved tokens of agents that were computed again.",
    ),
    _log(
        "cache_restore_duration_seconds{model}",
        "seconds",
        "Time in which a context of an agent was read and assembled.",
    ),
    _worker(
        "pool_utilization_ratio{worker}",
        "ratio",
        "Share of the memory for contexts that is in use, from 0 to 1.",
    ),
    _worker(
        "pool_pinned_ratio{worker}",
        "ratio",
        "Share of the memory for contexts that cannot be freed at once, from 0 to 1.",
    ),
    _worker("pool_blocks{worker}", "blocks", "Blocks of contexts in memory."),
    _worker(
        "memory_used_bytes{worker,kind}",
        "bytes",
        "Memory of a worker: weights, contexts of running jobs (live), kept contexts (kept).",
    ),
    _worker(
        "memory_limit_bytes{worker,kind}",
        "bytes",
        "Limits: of contexts (contexts), and of weights, contexts and a step together (ceiling).",
    ),
    _worker(
        "eviction_total{worker,tier}",
        "blocks",
        "Blocks that were evicted from the tier ram or disk.",
    ),
    _worker(
        "memory_wait_seconds{worker}",
        "seconds",
        "Time that an interactive job has waited for memory, of those that wait the longest.",
    ),
    _worker("disk_cache_used_bytes{worker}", "bytes", "Files of contexts on the disk."),
    _worker("disk_cache_limit_bytes{worker}", "bytes", "The most that they may take."),
    _worker("disk_cache_blocks{worker}", "blocks", "Blocks on the disk, of all models."),
    _worker(
        "disk_cache_state{worker,state}",
        "flag",
        "1 for the present state of the disk tier: on, paused, scanning or off.",
    ),
    _worker(
        "disk_cache_queued_blocks{worker}", "blocks", "Blocks that wait to be written to disk."
    ),
    _worker(
        "disk_cache_operations_total{worker,outcome}",
        "blocks",
        "Blocks by what the disk tier did with them: written, read, rejected (the content did not"
        " match the name) or dropped (the disk failed or was full).",
    ),
    _worker(
        "disk_cache_bytes_total{worker,outcome}",
        "bytes",
        "Bytes that the disk tier has written or read.",
    ),
    _worker(
        "cache_persist_duration_seconds{worker}",
        "seconds",
        "Time in which a group of blocks was written to the disk and synced.",
    ),
)
_MODELS_AND_WORKERS: Final = (
    _api("build_info{version}", "flag", "1, with the version of the service."),
    _worker("workers{state}", "workers", "Living workers by their state."),
    _worker(
        "worker_info{worker,host,model,state}",
        "flag",
        "1 for each living worker, with its host, its model and its state.",
    ),
    _worker(
        "worker_starts_total{worker}",
        "starts",
        "Starts of a worker that loaded a model; swaps and crashes are starts too.",
    ),
    _log(
        "admission_state{state}", "flag", "1 for what operators have set: open, paused or draining."
    ),
    _log(
        "model_swap_duration_seconds{model}",
        "seconds",
        "Time from the request of a swap until a worker served the model.",
    ),
    _log(
        "model_swap_total{outcome}",
        "swaps",
        "Swaps that have ended: done, rolled_back or superseded.",
    ),
)
_EVENT_LOG: Final = (
    _log("log_events_total", "events", "Events in the log: the position of the last one."),
    _api(
        "log_commit_duration_seconds{process}",
        "seconds",
        "Time of a commit of the log; several appends share one.",
    ),
    _api("log_write_failures_total{process}", "commits", "Commits that the database refused."),
    _api("log_waiting_appends{process}", "appends", "Appends that wait for the next commit."),
    _api("log_disk_free_bytes", "bytes", "Free space on the disk of the event log."),
    _api(
        "log_disk_floor_bytes",
        "bytes",
        "Free space below which new work is refused (disk.free_min_mb).",
    ),
    _api(
        "log_disk_full",
        "flag",
        "1 while new work is refused because the disk of the event log is short of space.",
    ),
)
_FRONT: Final = (
    _api("http_connections_open", "connections", "Open connections of clients."),
    _api(
        "http_requests_in_flight",
        "requests",
        "Requests whose reply is not complete, open streams included.",
    ),
    _api(
        "http_requests_total{route,status}",
        "requests",
        "Replies by the route and the status; unrouted stands for paths without a route.",
    ),
    _log("webhooks_pending", "webhooks", "Webhooks that wait for a try."),
    _log(
        "subscription_lag_events{subscription,owner}",
        "events",
        "Events that a subscription has not acknowledged, up to 1,000; owner is its API key.",
    ),
    _api(
        "webhook_attempts_total{outcome}",
        "tries",
        "Tries of webhooks by what came of them: delivered, pending (it will be tried again) or"
        " failed (it is given up).",
    ),
    _api(
        "scrape_source_up{source}", "flag", "1 if this scrape could read the source: log or broker."
    ),
)
_PROCESSES: Final = (
    _worker(
        "process_resident_memory_bytes{process}",
        "bytes",
        "Resident memory of a process: api, or the worker of that name.",
    ),
    _worker("process_open_fds{process}", "descriptors", "Open file descriptors of a process."),
    _worker("process_threads{process}", "threads", "Threads of a process."),
    _worker(
        "process_start_time_seconds{process}",
        "seconds",
        "Start of a process, in seconds since 1970.",
    ),
)

#: The families by the heading under which the documentation lists them.
SECTIONS: Final[Mapping[str, tuple[Family, ...]]] = MappingProxyType(
    {
        "Requests": _REQUESTS,
        "Queue": _QUEUE,
        "Engine": _ENGINE,
        "Cache": _CACHE,
        "Models and workers": _MODELS_AND_WORKERS,
        "Event log": _EVENT_LOG,
        "Front": _FRONT,
        "Processes": _PROCESSES,
    }
)
#: All families by their name without prefix.
FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {family.name: family for section in SECTIONS.values() for family in section}
)
