"""What a metric family is; ``ops.observe.families`` lists all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

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

    @property
    def sample_names(self) -> tuple[str, ...]:
        """The names of its samples in a scrape."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.full_name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.full_name,)
