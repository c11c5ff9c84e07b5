"""What the routes of batches need, over a log in memory."""

from __future__ import annotations

from api.background.batch_lines import BatchLines
from api.background.batches import BatchServices
from api.protocols.shared.parsed_request import RequestDefaults
from api.services import Services
from domain.usecases.batches.driver import BatchDriver, advance_batches
from ops.clock import RandomIds
from tests.support.fakes.batches import InMemoryBatchViews
from tests.support.fakes.event_log import InMemoryEventLog


def batch_desk(log: InMemoryEventLog) -> BatchServices:
    """Return a desk whose driver a test moves by ``advance``."""
    views = InMemoryBatchViews(log)
    lines = BatchLines(
        payloads=log,
        views=views,
        defaults=RequestDefaults(ids=RandomIds(), max_tokens=64),
        lines_max=100,
    )
    return BatchServices(views=views, lines=lines, wake=lambda: None)


def advance(services: Services) -> int:
    """Take every open batch a step further; return how many are still open."""
    driver = BatchDriver(
        log=services.log,
        payloads=services.payloads,
        views=services.batches.views,
        jobs=services.views,
        submission=services.submission,
        cancellation=services.cancellation,
        ids=services.ids,
        clock=services.clock,
        protocol=services.batches.lines,
    )
    return advance_batches(driver)
