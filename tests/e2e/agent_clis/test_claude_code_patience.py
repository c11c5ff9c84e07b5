"""The real Claude Code CLI waits more than six minutes for a first token, and gets its answer."""

from __future__ import annotations

import pytest

from tests.support.clients.claude_code_patience import PatientSession


@pytest.mark.nightly
def test_a_first_token_after_six_minutes_is_waited_for(patient: PatientSession) -> None:
    result = patient.result()
    assert result["result"] == "At last."
    # It asked once: pings kept the stream, and nothing was asked again on another.
    (job,) = patient.log.jobs(result["session_id"])
    assert job["id"] == patient.job["id"]
    assert "JobAttached" not in patient.log.types(job["id"])
