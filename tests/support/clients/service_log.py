"""The jobs and events of a running service, read over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from tests.support.polling import scaled, wait_until
from tests.support.processes.service import Service

#: Longest wait for something that takes seconds on an idle machine.
WAIT_S = 120.0
_Found = TypeVar("_Found")
_OPEN = {"queued", "running"}


def ended(
    http: httpx.Client,
    job_id: str,
    *,
    within_s: float = WAIT_S,
    describe: Callable[[], object] | None = None,
) -> dict[str, Any]:
    """Wait for the end of a job, and return the job as it ended."""

    def job() -> dict[str, Any]:
        found: dict[str, Any] = http.get(f"/v1/jobs/{job_id}").raise_for_status().json()
        return found

    return wait_until(
        job,
        lambda job: job["status"] not in _OPEN,
        within_s=within_s,
        what=f"the end of {job_id}",
        ignore=httpx.HTTPError,  # the service restarts
        describe=describe,
        look_every_s=0.1,  # a look takes processor time from the service
    )


class ServiceLog:
    """Jobs and events.

    Args:
        service: Running; while it restarts, ``until`` waits.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self.http = httpx.Client(
            base_url=service.base_url, headers=service.headers, timeout=scaled(WAIT_S)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.http.close()

    def jobs(self, agent: str | None = None) -> list[dict[str, Any]]:
        """Return the jobs of an agent, or all, oldest first."""
        asked = {"limit": "100"} | ({} if agent is None else {"agent_id": agent})
        found: list[dict[str, Any]] = self._get("/v1/jobs", asked)["data"]
        return found[::-1]

    def job(self, job_id: str) -> dict[str, Any]:
        """Return a job with its answer."""
        found: dict[str, Any] = self._get(f"/v1/jobs/{job_id}", {})
        return found

    def events(self, **asked: str) -> list[dict[str, Any]]:
        """Return events, oldest first: of a ``stream``, or of a ``type``."""
        found: list[dict[str, Any]] = self._get("/v1/events", {"limit": "1000"} | asked)["data"]
        return found

    def types(self, stream: str) -> list[str]:
        """Return the event types of a stream."""
        return [str(event["type"]) for event in self.events(stream=stream)]

    def until(self, look: Callable[[], _Found | None]) -> _Found:
        """Call ``look`` until it returns something true, and return that."""
        return wait_until(
            look, within_s=WAIT_S, ignore=httpx.TransportError, describe=self._service.log
        )

    def _get(self, path: str, asked: dict[str, str]) -> Any:
        reply = self.http.get(path, params=asked)
        assert reply.status_code == 200, reply.text
        return reply.json()
