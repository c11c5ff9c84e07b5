"""Files whose tests share the services of ``tests/e2e/conftest.py``: one process runs them all.

Each of these services then starts once, and not once in each process of pytest-xdist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer
    from xdist.scheduler.protocol import Scheduling

#: Beginnings of their paths.
SHARERS = (
    "tests/e2e/agent_clis/test_claude_code.py",
    "tests/e2e/agent_clis/test_claude_code_sessions.py",
    "tests/e2e/agent_clis/test_codex.py",
    "tests/e2e/agent_clis/test_launch.py",
    "tests/e2e/conformance/test_open_responses.py",
    "tests/e2e/examples/test_smoke.py",
    "tests/e2e/faults/test_batch_kills.py",
    "tests/e2e/page/test_smoke.py",
    "tests/e2e/sdks/",
    "tests/e2e/service/test_agents.py",
    "tests/e2e/service/test_erasing.py",
    "tests/e2e/service/test_idle_service.py",
    "tests/e2e/service/test_logged_words.py",
    "tests/e2e/service/test_neighbours.py",
    "tests/e2e/service/test_prefix.py",
    "tests/e2e/service/test_repeats_and_deadlines.py",
    "tests/e2e/service/test_service.py",
    "tests/e2e/service/test_watching.py",
)


def sharers_together(config: pytest.Config, log: Producer) -> Scheduling:
    """Return a scheduler that gives each file to one process, and all of these files to the same.

    Only the controller of pytest-xdist calls it, which knows no more of a test than its name.
    """
    from xdist.scheduler.loadfile import LoadFileScheduling  # noqa: PLC0415 - not always installed

    class SharersTogether(LoadFileScheduling):  # type: ignore[misc]  # xdist ships no types
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return "sharers" if scope.startswith(SHARERS) else scope

    return SharersTogether(config, log)
