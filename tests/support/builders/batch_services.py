"""Batches over a log in memory."""

from __future__ import annotations

from api.background.batch_lines import BatchLines
from api.protocols.shared.parsed_request import RequestDefaults
from api.services.ports import ApiPorts
from domain.model.registry import ModelEntry, ModelRegistry
from domain.usecases.batches.batches import BatchRecords
from domain.usecases.batches.driver import BatchDriver
from domain.usecases.batches.files import FileRecords
from ops.clock import RandomIds
from tests.support.fakes.batches import InMemoryBatchViews
from tests.support.fakes.event_log import InMemoryEventLog

#: One model, and names that follow the loaded one; others are unknown.
REGISTRY = ModelRegistry(
    [ModelEntry(name="other", source="other")],
    following=("m", "demo", "semantic-*", "claude-*", "gpt-*"),
)


def batch_lines(log: InMemoryEventLog, views: InMemoryBatchViews) -> BatchLines:
    return BatchLines(
        payloads=log,
        views=views,
        defaults=RequestDefaults(ids=RandomIds(), max_tokens=64),
        registry=lambda: REGISTRY,
        lines_max=100,
    )


def advance(ports: ApiPorts) -> int:
    """Advance every open batch by one step and return how many remain open."""
    driver = BatchDriver(
        batches=BatchRecords(log=ports.log, views=ports.batch_views, ids=ports.ids),
        files=FileRecords(log=ports.log, views=ports.batch_views, ids=ports.ids, clock=ports.clock),
        jobs=ports.views,
        payloads=ports.payloads,
        submission=ports.submission,
        cancellation=ports.cancellation,
        clock=ports.clock,
        protocol=ports.batch_lines,
    )
    return driver.advance()
