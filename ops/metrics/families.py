"""The table of all metric families; the scrape, ``docs/metrics.md`` and the checks use it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ops.metrics.family import Family
from ops.metrics.request_families import QUEUE_FAMILIES, REQUEST_FAMILIES, REUSE_FAMILIES
from ops.metrics.service_families import API_FAMILIES, LOG_FAMILIES, SERVICE_FAMILIES
from ops.metrics.worker_families import CACHE_FAMILIES, ENGINE_FAMILIES, PROCESS_FAMILIES

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
