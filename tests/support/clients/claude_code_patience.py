"""A question of Claude Code that waits minutes for its first token, at no cost."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.clients.claude_code import ClaudeCode, abandon
from tests.support.clients.service_log import ServiceLog
from tests.support.polling import now_s, pause
from tests.support.processes.scripted_service import ENDLESS, line, scripted_service

#: Claude Code gives up on headers after 360 s, on a silent stream after 300 s.
WAITS_S = 375.0
_LINES = (
    line("Are you there", "At last."),
    # Occupies the only batch slot for an hour, at three words a second.
    line("Hold the place", ENDLESS, pace_s=0.3),
)


class PatientSession:
    """A service with one batch slot, a job that occupies it, and Claude Code queued behind.

    Args:
        binary: The CLI.
        directory: Empty.
    """

    def __init__(self, binary: Path, directory: Path) -> None:
        self._stack = ExitStack()
        self.service = scripted_service(
            directory,
            _LINES,
            SEMANTIC_ENGINE__MAX_BATCH_SIZE="1",
            # A busy machine must not replace the worker.
            SEMANTIC_ENGINE__STEP_LIMIT_S="0",
        )
        self._user = ClaudeCode(binary, self.service, directory / "home")
        self._asked: subprocess.Popen[str] | None = None
        self._began = 0.0
        self._holder = ""

    def __enter__(self) -> Self:
        try:
            return self._begun()
        except BaseException:
            self._stack.close()
            raise

    def _begun(self) -> Self:
        self.service.start()
        self._stack.callback(self.service.kill)
        self.log = self._stack.enter_context(ServiceLog(self.service))
        self._holder = self._submit()
        self.log.until(lambda: "AttemptStarted" in self.log.types(self._holder))
        self._asked = self._user.begin("Are you there?")
        self._stack.callback(abandon, self._asked)
        self.job = self.log.until(lambda: self.log.jobs()[1:])[0]
        self._began = now_s()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._stack:
            if kind is None:
                assert self.service.stop() == 0, self.service.log()

    def result(self) -> Any:
        """Sleep until the wait is over, free the slot, and return the answer."""
        assert self._asked is not None, "nothing was asked"
        left_s = max(0.0, self._began + WAITS_S - now_s())
        pause(left_s, reason="how long the CLI waits is what the test is about")
        assert self._asked.poll() is None, "it did not wait"
        assert "JobCompleted" not in self.log.types(self.job["id"])
        self.log.http.post(f"/v1/jobs/{self._holder}/cancel").raise_for_status()
        return self._user.result(self._asked)

    def _submit(self) -> str:
        message = {"role": "user", "content": "Hold the place."}
        body = {"model": "claude-any", "max_tokens": 16_000, "messages": [message]}
        submitted = self.log.http.post("/v1/jobs", json=body)
        assert submitted.status_code == 202, submitted.text
        return str(submitted.json()["id"])
