"""The version of a program as a reader of logs."""

from __future__ import annotations

import pytest

from domain.errors import LogNewer
from domain.log import record
from domain.log.record import READER_VERSION, reader_needed, refuse_newer


def test_every_event_needs_the_version_that_added_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "READABLE_SINCE", {("WorkerDraining", 2): 3})
    assert reader_needed("WorkerDraining", 1) == 1
    assert reader_needed("WorkerDraining", 2) == 3
    assert reader_needed("JobSubmitted", 2) == 1


def test_log_of_a_newer_program_is_refused_with_both_versions() -> None:
    refuse_newer(READER_VERSION)
    with pytest.raises(LogNewer) as refusal:
        refuse_newer(READER_VERSION + 1)
    said = f"it needs reader {READER_VERSION + 1}, this is reader {READER_VERSION}"
    assert said in refusal.value.message
