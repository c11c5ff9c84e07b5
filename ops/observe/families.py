"""Metric families, and the table of all; the scrape, ``docs/metrics.md`` and the checks read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from domain.usage.figures import BOUNDS_US, Measure

#: Before the name of each family.
PREFIX: Final = "semantic_"
#: Before the name of each alias.
ALIAS_PREFIX: Final = "vllm:"
#: Labels of aliases that have another name than ours; an alias has no further label.
ALIAS_LABELS: Final[Mapping[str, str]] = MappingProxyType(
    {"model": "model_name", "worker": "engine"}
)


class Kind(StrEnum):
    """The type of a family, in the words of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Source(StrEnum):
    """Where the values of a family come from.

    ``log``: tables of the event log, the same for every api process. ``worker``: the pulse of each
    worker. ``api``: the process that is scraped.
    """

    LOG = "log"
    WORKER = "worker"
    API = "api"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A metric family.

    Attributes:
        name: Without ``PREFIX``; of a counter with ``_total``.
        unit: What one of its values counts, in the plural.
        help: One sentence.
        labels: Names of the labels of each sample.
        vllm: Name of the vLLM metric with the same meaning, without ``ALIAS_PREFIX``; empty if
            there is none.
        bounds: Upper bounds of the buckets of a histogram, ascending, without infinity.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    source: Source
    labels: tuple[str, ...] = ()
    vllm: str = ""
    bounds: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """The name in a scrape."""
        return PREFIX + self.name

    @property
    def alias(self) -> str:
        """The name of the alias in a scrape; empty if there is none."""
        return ALIAS_PREFIX + self.vllm if self.vllm else ""


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
#: What each family means, by its source, its name with the labels of its samples in braces, and
#: the unit of its values; under the headings of the documentation.
_MEANINGS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "Requests": {
            "log request_total{model,agent_id,status} jobs": (
                "Jobs that have ended, by their outcome."
            ),
            "log request_success_total{model} jobs": "Jobs that have completed.",
            "log request_attempts_total{model} attempts": (
                "Attempts that have begun; more than jobs where workers died or steps failed."
            ),
            "log prompt_tokens_total{model,agent_id} tokens": (
                "Tokens of the prompts of jobs that have ended, those from the cache included."
            ),
            "log tokens_generated_total{model,agent_id} tokens": (
                "Tokens of the answers of jobs that have ended, reasoning included."
            ),
            "log reasoning_tokens_total{model,agent_id} tokens": (
                "Tokens of the answers that are reasoning."
            ),
            "log prefix_cache_queries_total{model} tokens": (
                "Prompt tokens that were looked up in the cache."
            ),
            "log prefix_cache_hits_total{model} tokens": (
                "Prompt tokens that came from the cache instead of being computed."
            ),
            "log request_duration_seconds{model} seconds": (
                "Time from the acceptance of a job to its end."
            ),
            "log time_to_first_token_seconds{model} seconds": (
                "Time from when an engine took a job to the first token of its answer; the queue"
                " comes before."
            ),
            "log request_queue_time_seconds{model} seconds": (
                "Time from the acceptance of a job to its first attempt."
            ),
            "log request_prefill_time_seconds{model} seconds": (
                "Time in which the prompt of a job was read, the part from the cache included."
            ),
            "log request_decode_time_seconds{model} seconds": (
                "Time from the first token of an answer to its last."
            ),
            "log inter_token_latency_seconds{model} seconds": (
                "Mean time between two tokens of an answer; each answer counts once."
            ),
        },
        "Queue": {
            "log request_queue_depth{priority} jobs": "Jobs that wait for a worker.",
            "log request_queue_oldest_seconds{priority} seconds": (
                "Age of the oldest job that waits for a worker; 0 if none waits."
            ),
            "log requests_running jobs": "Jobs whose attempt has begun.",
            "log agents_active agents": "Agents with a job that waits or runs.",
        },
        "Engine": {
            "worker batch_size{worker} sequences": "Sequences that got a token in one"
            " step of a worker.",
            "worker batch_places{worker} sequences": "Sequences that run at once at most.",
            "worker engine_waiting{worker,reason} jobs": (
                "Jobs that a worker has taken and that wait in its engine, by what they wait for."
            ),
            "worker tokens_per_second{worker} tokens per second": (
                "Tokens that a worker generated since its pulse before, per second."
            ),
            "worker grammar_cache_bytes{worker} bytes": (
                "Memory of the compiled grammars that a worker keeps."
            ),
            "worker engine_generated_tokens_total{worker} tokens": (
                "Tokens that an engine has generated, those of unfinished attempts included."
            ),
            "worker engine_prefill_tokens_total{worker} tokens": (
                "Prompt tokens that an engine has computed."
            ),
            "worker spec_decode_num_drafts_total{worker} drafts": (
                "Drafts of speculation that were verified."
            ),
            "worker spec_decode_num_draft_tokens_total{worker} tokens": (
                "Tokens of verified drafts."
            ),
            "worker spec_decode_num_accepted_tokens_total{worker} tokens": (
                "Tokens of verified drafts that the model drew."
            ),
        },
        "Cache": {
            "log cache_hit_total{model} prompts": (
                "Prompts of agents that began with tokens of the cache."
            ),
            "log cache_miss_total{model,reason} prompts": (
                "Prompts of agents that did not reuse all of the saved context: it diverged, its"
                " blocks were gone, or the model_changed."
            ),
            "log cache_restored_tokens_total{model,source} tokens": (
                "Tokens of agents that were restored, by where they were: ram or disk."
            ),
            "log cache_missed_tokens_total{model} tokens": (
                "Saved tokens of agents that were computed again."
            ),
            "log cache_restore_duration_seconds{model} seconds": (
                "Time in which a context of an agent was read and assembled."
            ),
            "worker pool_utilization_ratio{worker} ratio": (
                "Share of the memory for contexts that is in use, from 0 to 1."
            ),
            "worker pool_pinned_ratio{worker} ratio": (
                "Share of the memory for contexts that cannot be freed at once, from 0 to 1."
            ),
            "worker pool_blocks{worker} blocks": "Blocks of contexts in memory.",
            "worker memory_used_bytes{worker,kind} bytes": (
                "Memory of a worker: weights, contexts of running jobs (live), kept contexts"
                " (kept)."
            ),
            "worker memory_limit_bytes{worker,kind} bytes": (
                "Limits: of contexts (contexts), and of weights, contexts and a step together"
                " (ceiling)."
            ),
            "worker eviction_total{worker,tier} blocks": (
                "Blocks that were evicted from the tier ram or disk."
            ),
            "worker memory_wait_seconds{worker} seconds": (
                "Time that an interactive job has waited for memory, of those that wait the"
                " longest."
            ),
            "worker disk_cache_used_bytes{worker} bytes": "Files of contexts on the disk.",
            "worker disk_cache_limit_bytes{worker} bytes": "The most that they may take.",
            "worker disk_cache_blocks{worker} blocks": "Blocks on the disk, of all models.",
            "worker disk_cache_state{worker,state} flag": (
                "1 for the present state of the disk tier: on, paused, scanning or off."
            ),
            "worker disk_cache_queued_blocks{worker} blocks": (
                "Blocks that wait to be written to disk."
            ),
            "worker disk_cache_operations_total{worker,outcome} blocks": (
                "Blocks by what the disk tier did with them: written, read, rejected (the content"
                " did not match the name) or dropped (the disk failed or was full)."
            ),
            "worker disk_cache_bytes_total{worker,outcome} bytes": (
                "Bytes that the disk tier has written or read."
            ),
            "worker cache_persist_duration_seconds{worker} seconds": (
                "Time in which a group of blocks was written to the disk and synced."
            ),
        },
        "Models and workers": {
            "api build_info{version} flag": "1, with the version of the service.",
            "worker workers{state} workers": "Living workers by their state.",
            "worker worker_info{worker,host,model,state} flag": (
                "1 for each living worker, with its host, its model and its state."
            ),
            "worker worker_starts_total{worker} starts": (
                "Starts of a worker that loaded a model; swaps and crashes are starts too."
            ),
            "log admission_state{state} flag": (
                "1 for what operators have set: open, paused or draining."
            ),
            "log model_swap_duration_seconds{model} seconds": (
                "Time from the request of a swap until a worker served the model."
            ),
            "log model_swap_total{outcome} swaps": (
                "Swaps that have ended: done, rolled_back or superseded."
            ),
        },
        "Event log": {
            "log log_events_total events": "Events in the log: the position of the last one.",
            "api log_commit_duration_seconds{process} seconds": (
                "Time of a commit of the log; several appends share one."
            ),
            "api log_write_failures_total{process} commits": "Commits that the database refused.",
            "api log_waiting_appends{process} appends": "Appends that wait for the next commit.",
            "api log_disk_free_bytes bytes": "Free space on the disk of the event log.",
            "api log_disk_floor_bytes bytes": (
                "Free space below which new work is refused (disk.free_min_mb)."
            ),
            "api log_disk_full flag": (
                "1 while new work is refused because the disk of the event log is short of space."
            ),
        },
        "Front": {
            "api http_connections_open connections": "Open connections of clients.",
            "api http_requests_in_flight requests": (
                "Requests whose reply is not complete, open streams included."
            ),
            "api http_requests_total{route,status} requests": (
                "Replies by the route and the status; unrouted stands for paths without a route."
            ),
            "log webhooks_pending webhooks": "Webhooks that wait for a try.",
            "log subscription_lag_events{subscription,owner} events": (
                "Events that a subscription has not acknowledged, up to 1,000; owner is its API"
                " key."
            ),
            "api webhook_attempts_total{outcome} tries": (
                "Tries of webhooks by what came of them: delivered, pending (it will be tried"
                " again) or failed (it is given up)."
            ),
            "api scrape_source_up{source} flag": (
                "1 if this scrape could read the source: log or broker."
            ),
        },
        "Processes": {
            "worker process_resident_memory_bytes{process} bytes": (
                "Resident memory of a process: api, or the worker of that name."
            ),
            "worker process_open_fds{process} descriptors": "Open file descriptors of a process.",
            "worker process_threads{process} threads": "Threads of a process.",
            "worker process_start_time_seconds{process} seconds": (
                "Start of a process, in seconds since 1970."
            ),
        },
    }
)


def _family(described: str, text: str) -> Family:
    """Return the family of an entry of ``_MEANINGS``."""
    source, sample, unit = described.split(" ", 2)
    name, _, labels = sample.removesuffix("}").partition("{")
    kind = Kind.COUNTER if name.endswith("_total") else Kind.GAUGE
    return Family(
        name=name,
        kind=Kind.HISTOGRAM if name in _BOUNDS else kind,
        unit=unit,
        help=text,
        source=Source(source),
        labels=tuple(labels.split(",")) if labels else (),
        vllm=_VLLM.get(name, ""),
        bounds=_BOUNDS.get(name, ()),
    )


#: The families by the heading under which the documentation lists them.
SECTIONS: Final[Mapping[str, tuple[Family, ...]]] = MappingProxyType(
    {
        title: tuple(_family(described, text) for described, text in meanings.items())
        for title, meanings in _MEANINGS.items()
    }
)
#: All families by their name without prefix.
FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {family.name: family for section in SECTIONS.values() for family in section}
)
