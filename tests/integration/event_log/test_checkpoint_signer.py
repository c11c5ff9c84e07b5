from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from domain.log.checkpoints import SignedCheckpoint
from ops.clock import SystemClock
from ops.log.admin.checkpoint_files import CheckpointFiles
from ops.log.sql_event_log import open_log
from ops.settings.settings import Settings
from ops.supervisor.checkpoint_signer import CheckpointSigner
from tests.support.builders.log_files import fill, new_log, raw_connection
from tests.support.polling import scaled


def _signer(directory: Path, *, every_s: float = 300) -> CheckpointSigner:
    settings = Settings(data_dir=directory)
    return CheckpointSigner(settings, structlog.get_logger(), interval_s=every_s)


def test_the_head_is_signed_when_the_service_ends(tmp_path: Path) -> None:
    url = new_log(tmp_path)
    with _signer(tmp_path), open_log(url, clock=SystemClock()) as log:
        fill(log)
    assert [note.position for note in CheckpointFiles.of(tmp_path).read()] == [0, 15]


def test_a_service_that_never_made_a_log_signs_nothing(tmp_path: Path) -> None:
    with _signer(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_head_is_signed_while_the_service_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_log(tmp_path)
    signed = threading.Event()
    sign = CheckpointSigner.sign

    def tell(self: CheckpointSigner) -> SignedCheckpoint | None:
        note = sign(self)
        if note is not None and note.position == 3:
            signed.set()
        return note

    monkeypatch.setattr(CheckpointSigner, "sign", tell)
    with open_log(url, clock=SystemClock()) as log, _signer(tmp_path, every_s=0.01):
        fill(log, jobs=1)
        assert signed.wait(scaled(30))


def test_a_log_that_went_back_is_told_and_not_signed(tmp_path: Path) -> None:
    url = new_log(tmp_path)
    with _signer(tmp_path), open_log(url, clock=SystemClock()) as log:
        fill(log)
    with closing(raw_connection(url)) as raw:
        raw.execute("DROP TRIGGER events_no_delete")
        raw.execute("DELETE FROM events WHERE position > 3")
    with capture_logs() as lines:
        assert _signer(tmp_path).sign() is None
    assert [line["event"] for line in lines] == ["log_went_back"]
    assert [note.position for note in CheckpointFiles.of(tmp_path).read()] == [0, 15]
