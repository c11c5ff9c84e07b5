from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from domain.values import StreamName
from domain.webhook.send import WebhookCollector
from ops.clock import RandomIds
from ops.log.admin.archive import archive_log
from ops.log.sql_event_log import open_log
from ops.webhooks.store import SqlWebhookStore
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.builders.log_files import new_log
from tests.support.fakes.time import FakeClock

URL = "https://hooks.example.com/"
LATE = "2026-01-02T00:00:00.000000Z"


def test_a_job_stays_in_the_log_until_its_message_is_made(tmp_path: Path) -> None:
    url, clock = new_log(tmp_path), FakeClock()

    def end_job(name: str, webhook: str | None) -> None:
        facts = replace(submitted(), webhook=webhook)
        events = [draft(facts), draft(started()), draft(completed())]
        log.append(StreamName(name), events, expected_version=0)

    def archive_and_list() -> list[str]:
        archive_log(url, before=LATE, clock=clock, ids=RandomIds())
        streams = {event.stream for event in log.select()}
        return sorted(stream for stream in streams if stream.startswith("job-"))

    with open_log(url, clock=clock) as log, closing(SqlWebhookStore(url)) as store:
        end_job("job-1", None)
        end_job("job-2", URL)
        end_job("job-3", None)
        # The last event of all stays, and its job with it, so that the next one can follow it.
        assert archive_and_list() == ["job-2", "job-3"]
        collector = WebhookCollector(
            log=log,
            store=store,
            ids=RandomIds(),
            clock=clock,
            describe_job=lambda view: {"id": view.id},
            describe_batch=lambda batch: {"id": batch.id},
        )
        collector.collect(after=store.position())
        assert [one.subject for one in store.page(limit=9)] == ["job-2"]
        end_job("job-4", None)
        assert archive_and_list() == ["job-4"]
