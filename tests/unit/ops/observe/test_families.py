"""The table of families follows the rules of Prometheus, and has all that the contracts name."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from ops.observe.families import ALIAS_LABELS, FAMILIES, SECTIONS, Family, Kind

CONTRACT = (
    "request_total",
    "request_duration_seconds",
    "time_to_first_token_seconds",
    "request_queue_depth",
    "batch_size",
    "tokens_generated_total",
    "tokens_per_second",
    "memory_used_bytes",
    "cache_hit_total",
    "cache_miss_total",
    "pool_utilization_ratio",
    "eviction_total",
    "agents_active",
    "model_swap_duration_seconds",
    "cache_persist_duration_seconds",
)
VLLM = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
)
EACH = pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)


def test_families_of_the_contract_exist() -> None:
    assert set(CONTRACT) - set(FAMILIES) == set()
    assert FAMILIES["request_total"].labels == ("model", "agent_id", "status")
    assert "tier" in FAMILIES["eviction_total"].labels


def test_families_that_vllm_has_too_know_its_names() -> None:
    assert Counter(one.vllm for one in FAMILIES.values() if one.vllm) == Counter(VLLM)


def test_names_and_helps_are_unique() -> None:
    families = [family for section in SECTIONS.values() for family in section]
    assert len(families) == len(FAMILIES)
    assert len({family.help for family in families}) == len(families)


def test_names_differ_without_the_suffix_of_counters_too() -> None:
    """OpenMetrics drops it: a gauge and a counter of one name would be one family."""
    names = [
        name.removesuffix("_total")
        for family in FAMILIES.values()
        for name in (family.full_name, family.alias)
        if name
    ]
    assert [name for name, count in Counter(names).items() if count > 1] == []


@EACH
def test_family_is_well_formed(family: Family) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", family.name)
    assert (family.kind is Kind.COUNTER) == family.name.endswith("_total")
    assert bool(family.bounds) == (family.kind is Kind.HISTOGRAM)
    assert list(family.bounds) == sorted(set(family.bounds))
    assert family.help.endswith(".")
    for unit in ("seconds", "bytes", "ratio"):
        ends = family.name.removesuffix("_total").endswith("_" + unit)
        assert ends == (family.unit == unit), family.unit
    assert len(set(family.labels) - ALIAS_LABELS.keys()) <= 3
