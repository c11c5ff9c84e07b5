"""A standby waits on its pipe."""

from __future__ import annotations

import json
import os

import pytest

from ops.liveness.child import STANDBY_ENV, wait_for_activation


def test_process_that_is_no_standby_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STANDBY_ENV, raising=False)
    assert wait_for_activation()


@pytest.mark.parametrize(("written", "activated"), [(b"{}", True), (b"", False)])
def test_text_activates_and_end_of_file_ends(
    monkeypatch: pytest.MonkeyPatch, written: bytes, *, activated: bool
) -> None:
    read_end, write_end = os.pipe()
    monkeypatch.setenv(STANDBY_ENV, str(read_end))
    os.write(write_end, written)
    os.close(write_end)
    assert wait_for_activation() is activated
    assert STANDBY_ENV not in os.environ
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read_end)


def test_activation_sets_what_was_not_known_before(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    monkeypatch.setenv(STANDBY_ENV, str(read_end))
    monkeypatch.setenv("SEMANTIC_REDIS__URL", "redis://old")
    os.write(write_end, json.dumps({"SEMANTIC_REDIS__URL": "redis://new"}).encode())
    os.close(write_end)
    assert wait_for_activation()
    assert os.environ["SEMANTIC_REDIS__URL"] == "redis://new"
