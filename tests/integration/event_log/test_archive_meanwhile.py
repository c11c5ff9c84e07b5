"""Readers of the whole log while another process archives its beginning, and after it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from domain.events.job import JobHidden
from domain.log.text_owners import RetentionCut
from domain.values import StreamName, digest_of
from ops.clock import RandomIds, SystemClock
from ops.log import archives, reader
from ops.log.admin.archive import archive_log
from ops.log.admin.projections_check import ProjectionState, verify_projections
from ops.log.archives import each_event
from ops.log.database import read_pages, reader_engine
from ops.log.erase import text_map
from ops.log.erase.text_map import read_text_map
from ops.log.projections import fold, rebuild
from ops.log.projections.rebuild import rebuild_projections
from ops.log.sql_event_log import open_log
from ops.log.tables import EVENTS
from tests.support.builders.job_events import TEXTS, completed, draft, started, submitted
from tests.support.builders.log_files import fill, new_log
from tests.support.polling import scaled, unscaled

#: Later than every event.
ALWAYS = "9999-01-01T00:00:00.000000Z"
JOBS = 6
PAGE_EVENTS = 2


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = new_log(tmp_path)
    with open_log(url, clock=SystemClock()) as log:
        fill(log, JOBS)
    return url


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = reader_engine(url)
    yield engine
    engine.dispose()


def _archive(url: str) -> None:
    archived = archive_log(url, before=ALWAYS, clock=SystemClock(), ids=RandomIds())
    assert archived.removed


def test_a_rebuild_folds_what_is_archived_meanwhile(
    url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (rebuild, fold):
        monkeypatch.setattr(module, "CATCH_UP_EVENTS_MAX", PAGE_EVENTS)
    archiving = threading.Thread(target=_archive, args=(url,))

    def archive_once(_position: int, _head: int) -> None:
        if archiving.ident is None:
            archiving.start()
            archiving.join(unscaled(1, reason="it ends sooner unless it waits for the rebuild"))

    rebuild_projections(url, progress=archive_once)
    archiving.join(scaled(60))
    assert not archiving.is_alive()
    assert verify_projections(engine, url) is ProjectionState.VERIFIED
    with open_log(url, clock=SystemClock()) as log:
        assert len(log.views.page(limit=100).jobs) == JOBS
        assert log.views.unfinished() == ()


def test_every_event_is_read_once_while_they_are_archived(
    url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (archives, reader):
        monkeypatch.setattr(module, "PAGE_EVENTS", PAGE_EVENTS)
    events = each_event(engine, url)
    positions = [next(events).position]
    _archive(url)
    positions += [event.position for event in events]
    assert positions == list(range(1, 3 * JOBS + 2)), "with the event of the archive"


def test_no_text_loses_its_owner_while_its_events_are_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_log(tmp_path)
    wire = b"the request as it was written"
    # No table but that of the events names it.
    asked = replace(submitted(), wire=digest_of(wire))
    texts = TEXTS | {digest_of(wire): wire}
    with open_log(url, clock=SystemClock()) as log:
        events = [draft(asked), draft(started()), draft(completed())]
        log.append(StreamName("job-1"), events, expected_version=0, payloads=texts)
        fill(log, 1)
    engine = reader_engine(url)
    expected = read_text_map(engine, url).owners.texts
    pages = read_pages

    def archived_first(engine: Engine, query: Any, key: Any, **limits: Any) -> Any:
        if key is EVENTS.c.position:
            _archive(url)
        return pages(engine, query, key, **limits)

    monkeypatch.setattr(text_map, "read_pages", archived_first)
    found = read_text_map(engine, url)
    engine.dispose()
    assert found.is_complete
    assert digest_of(wire) in expected["job-1"]
    assert found.owners.texts["job-1"] >= expected["job-1"]


def test_a_hidden_job_needs_no_text_after_its_events_were_archived(tmp_path: Path) -> None:
    url = new_log(tmp_path)
    with open_log(url, clock=SystemClock()) as log:
        events = [draft(submitted()), draft(started()), draft(completed()), draft(JobHidden())]
        log.append(StreamName("job-1"), events, expected_version=0, payloads=TEXTS)
        log.append(StreamName("job-2"), [draft(submitted())], expected_version=0, payloads=TEXTS)
    _archive(url)
    engine = reader_engine(url)
    found = read_text_map(engine, url)
    engine.dispose()
    assert list(found.owners.released(RetentionCut())) == ["job-1"]
