"""Families about the engines and the caches of the workers; their pulses carry the values."""

from __future__ import annotations

from typing import Final

from ops.metrics.family import Family, Kind, Source

_WORKER: Final = ("worker",)
#: Bounds for writes of a group of blocks to the disk, in seconds.
PERSIST_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
#: Bounds for commits of the event log, in seconds.
COMMIT_BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


def _worker(
    kind: Kind, name: str, unit: str, text: str, label: str = "", *, vllm: str = ""
) -> Family:
    """Return a family of every worker, with at most one label of its own."""
    return Family(
        name=name,
        kind=kind,
        unit=unit,
        help=text,
        source=Source.WORKER,
        labels=(*_WORKER, label) if label else _WORKER,
        vllm=vllm,
    )


ENGINE_FAMILIES: Final = (
    _worker(Kind.GAUGE, "batch_size", "sequences", "Sequences in the batch of a worker."),
    _worker(Kind.GAUGE, "batch_places", "sequences", "Sequences that run at once at most."),
    _worker(
        Kind.GAUGE,
        "engine_waiting",
        "jobs",
        "Jobs that a worker has taken and that wait in its engine, by what they wait for.",
        "reason",
    ),
    _worker(
        Kind.GAUGE,
        "tokens_per_second",
        "tokens per second",
        "Tokens that a worker generated since its pulse before, per second.",
    ),
    _worker(
        Kind.GAUGE,
        "grammar_cache_bytes",
        "bytes",
        "Memory of the compiled grammars that a worker keeps.",
    ),
    _worker(
        Kind.COUNTER,
        "engine_generated_tokens_total",
        "tokens",
        "Tokens that an engine has generated, those of unfinished attempts included.",
    ),
    _worker(
        Kind.COUNTER,
        "engine_prefill_tokens_total",
        "tokens",
        "Prompt tokens that an engine has computed.",
    ),
    _worker(
        Kind.COUNTER,
        "spec_decode_num_drafts_total",
        "drafts",
        "Drafts of speculation that were verified.",
        vllm="spec_decode_num_drafts_total",
    ),
    _worker(
        Kind.COUNTER,
        "spec_decode_num_draft_tokens_total",
        "tokens",
        "Tokens of verified drafts.",
        vllm="spec_decode_num_draft_tokens_total",
    ),
    _worker(
        Kind.COUNTER,
        "spec_decode_num_accepted_tokens_total",
        "tokens",
        "Tokens of verified drafts that the model drew.",
        vllm="spec_decode_num_accepted_tokens_total",
    ),
)
CACHE_FAMILIES: Final = (
    _worker(
        Kind.GAUGE,
        "pool_utilization_ratio",
        "ratio",
        "Share of the memory for contexts that is in use, from 0 to 1.",
        vllm="kv_cache_usage_perc",
    ),
    _worker(
        Kind.GAUGE,
        "pool_pinned_ratio",
        "ratio",
        "Share of the memory for contexts that cannot be freed at once, from 0 to 1.",
    ),
    _worker(Kind.GAUGE, "pool_blocks", "blocks", "Blocks of contexts in memory."),
    _worker(
        Kind.GAUGE,
        "memory_used_bytes",
        "bytes",
        "Memory of a worker: weights, contexts of running jobs (live), kept contexts (kept).",
        "kind",
    ),
    _worker(
        Kind.GAUGE,
        "memory_limit_bytes",
        "bytes",
        "Limits: of contexts (contexts), and of weights, contexts and a step together (ceiling).",
        "kind",
    ),
    _worker(
        Kind.COUNTER,
        "eviction_total",
        "blocks",
        "Blocks that were evicted from the tier ram or disk.",
        "tier",
    ),
    _worker(
        Kind.GAUGE,
        "memory_wait_seconds",
        "seconds",
        "Time that an interactive job has waited for memory, of those that wait the longest.",
    ),
    _worker(Kind.GAUGE, "disk_cache_used_bytes", "bytes", "Files of contexts on the disk."),
    _worker(Kind.GAUGE, "disk_cache_limit_bytes", "bytes", "The most that they may take."),
    _worker(Kind.GAUGE, "disk_cache_blocks", "blocks", "Blocks on the disk, of all models."),
    _worker(
        Kind.GAUGE,
        "disk_cache_state",
        "flag",
        "1 for the present state of the disk tier: on, paused, scanning or off.",
        "state",
    ),
    _worker(
        Kind.GAUGE, "disk_cache_queued_blocks", "blocks", "Blocks that wait to be written to disk."
    ),
    _worker(
        Kind.COUNTER,
        "disk_cache_operations_total",
        "blocks",
        "Blocks by what the disk tier did with them: written, read, rejected (the content did not"
        " match the name) or dropped (the disk failed or was full).",
        "outcome",
    ),
    _worker(
        Kind.COUNTER,
        "disk_cache_bytes_total",
        "bytes",
        "Bytes that the disk tier has written or read.",
        "outcome",
    ),
    Family(
        name="cache_persist_duration_seconds",
        kind=Kind.HISTOGRAM,
        unit="seconds",
        help="Time in which a group of blocks was written to the disk and synced.",
        source=Source.WORKER,
        labels=_WORKER,
        bounds=PERSIST_BOUNDS_S,
    ),
)
PROCESS_FAMILIES: Final = (
    Family(
        name="process_resident_memory_bytes",
        kind=Kind.GAUGE,
        unit="bytes",
        help="Resident memory of a process: api, or the worker of that name.",
        source=Source.WORKER,
        labels=("process",),
    ),
    Family(
        name="process_open_fds",
        kind=Kind.GAUGE,
        unit="descriptors",
        help="Open file descriptors of a process.",
        source=Source.WORKER,
        labels=("process",),
    ),
    Family(
        name="process_threads",
        kind=Kind.GAUGE,
        unit="threads",
        help="Threads of a process.",
        source=Source.WORKER,
        labels=("process",),
    ),
    Family(
        name="process_start_time_seconds",
        kind=Kind.GAUGE,
        unit="seconds",
        help="Start of a process, in seconds since 1970.",
        source=Source.WORKER,
        labels=("process",),
    ),
)
