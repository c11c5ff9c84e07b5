"""Batches over a log in memory."""

from __future__ import annotations

from api.app import App
from api.dialects.batches.lines import BatchLines
from domain.batch.driver import BatchDriver
from domain.model.registry import ModelEntry, ModelRegistry

#: One model, and names that follow the loaded one; others are unknown.
REGISTRY = ModelRegistry(
    [ModelEntry(name="other", source="other")],
    following=("m", "demo", "semantic-*", "claude-*", "gpt-*"),
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
        protocol=BatchLines(app),
    )
    return driver.advance()
