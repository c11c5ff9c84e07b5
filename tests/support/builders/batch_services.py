"""Batches over a log in memory."""

from __future__ import annotations

from api.app import App
from api.dialects.batches.batch_lines import BatchLines
from api.parsed_request import RequestDefaults
from domain.model.registry import ModelEntry, ModelRegistry
from domain.usecases.batches.driver import BatchDriver
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


def advance(app: App) -> int:
    """Advance every open batch by one step and return how many remain open."""
    driver = BatchDriver(
        batches=app.batch_records,
        files=app.file_records,
        jobs=app.views,
        payloads=app.payloads,
        submission=app.job_submission,
        cancellation=app.cancellation,
        clock=app.clock,
        protocol=app.batch_lines,
    )
    return driver.advance()
