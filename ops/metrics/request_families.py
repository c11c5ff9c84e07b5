"""Families about requests; the event log proves their totals."""

from __future__ import annotations

from typing import Final

from domain.usage.histogram import BOUNDS_US, Measure
from ops.metrics.family import Family, Kind, Source

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
