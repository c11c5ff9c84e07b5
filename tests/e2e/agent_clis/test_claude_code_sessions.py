"""The real Claude Code CLI: many sessions at once on one service, and agents that start agents.

The model keeps to a script; everything else is real, prompts and caches too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.claude_code import ClaudeCode
from tests.support.clients.service_log import ServiceLog
from tests.support.day_and_night import by_day
from tests.support.processes.scripted_service import call, line
from tests.support.processes.service import Service

SESSIONS = by_day(3, night=5)
SCRIPT = (
    line("How are you", "I am well."),
    line(
        "Ask a helper",
        call(
            "Agent",
            description="find it",
            prompt="look for the number",
            subagent_type="general-purpose",
        ),
    ),
    line("look for the number", "It is forty-two."),
    line("<tool_response>", "I wait for the helper."),
    line("<task-notification>", "The helper says that it is forty-two."),
)


@pytest.fixture
def spoken(scripted: Callable[[Sequence[dict[str, Any]]], Service]) -> Service:
    return scripted(SCRIPT)


def test_sessions_at_once_are_as_many_agents_that_share_what_they_read(
    claude_binary: Path, spoken: Service, tmp_path: Path
) -> None:
    user = ClaudeCode(claude_binary, spoken, tmp_path)
    asked = [user.begin(f"How are you, number {number}?") for number in range(SESSIONS)]
    results = [user.result(one) for one in asked]
    assert [one["result"] for one in results] == ["I am well."] * SESSIONS
    sessions = {one["session_id"] for one in results}
    assert len(sessions) == SESSIONS
    with ServiceLog(spoken) as log:
        jobs = [job for session in sessions for job in log.jobs(session)]
        assert [job["status"] for job in jobs] == ["completed"] * SESSIONS
        failed = {event["stream"] for event in log.events(type="AttemptFailed")}
        assert failed.isdisjoint(job["id"] for job in jobs)
        submitted = {event["stream"]: event["data"] for event in log.events(type="JobSubmitted")}
    assert {submitted[job["id"]]["agent"] for job in jobs} == sessions
    # One of them read the prompt. The others, which came with it, took all but their question.
    usages = sorted((job["usage"] for job in jobs), key=lambda usage: usage["cached_tokens"])
    for usage in usages[1:]:
        assert usage["cached_tokens"] >= 0.95 * usage["prompt_tokens"], usages


def test_an_agent_of_an_agent_has_a_name_of_its_own_and_its_answer_comes_back(
    claude_binary: Path, spoken: Service, tmp_path: Path
) -> None:
    user = ClaudeCode(claude_binary, spoken, tmp_path)
    result = user.ask("Ask a helper for the number.")
    assert result["result"] == "The helper says that it is forty-two."
    session = result["session_id"]
    with ServiceLog(spoken) as log:
        submitted = [event["data"]["agent"] for event in log.events(type="JobSubmitted")]
        (helper,) = {name for name in submitted if name and name.startswith(f"{session}/")}
        (helped,) = log.jobs(helper)
        main = log.jobs(session)
        assert log.job(helped["id"])["output"]["text"] == "It is forty-two."
        last = log.job(main[-1]["id"])["output"]["text"]
    assert last == result["result"]
    # The main conversation went on as if nobody else had been there.
    for before, after in pairwise(main):
        assert after["usage"]["cached_tokens"] >= before["usage"]["total_tokens"] - 2, main
