"""The processes a service is made of."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ops.settings import Settings

BROKER, WORKER, API = "broker", "worker", "api"

#: Time past its own drain deadline that the api has before it is killed.
API_MARGIN_S = 5.0
#: The same for the worker, which ends its threads one after the other and writes its last events.
WORKER_MARGIN_S = 15.0
#: For the broker to write its data.
BROKER_GRACE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A process to keep alive.

    Attributes:
        name: Short name; it prefixes the part's lines on the terminal.
        argv: How it is started.
        grace_s: How long it may take to end after SIGTERM.
        silence_max_s: How long it may give no sign of life once it gave one; 0 is for ever.
    """

    name: str
    argv: tuple[str, ...]
    grace_s: float
    silence_max_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """All of them; no broker where somebody else runs one."""

    broker: Part | None
    worker: Part
    api: Part

    def last_to_first(self) -> tuple[Part, ...]:
        """Return the parts in the order in which they are stopped."""
        return (self.api, self.worker, *([self.broker] if self.broker else []))


def module_argv(module: str) -> tuple[str, ...]:
    """Return how a module of ours is run.

    ``-P`` keeps the working directory out of the search path: a project of the user's may well
    have packages called ``api`` or ``worker``.
    """
    return (sys.executable, "-P", "-m", module)


def parts_of(settings: Settings) -> Parts:
    """Return the real parts."""
    broker = Part(name=BROKER, argv=module_argv("ops.broker"), grace_s=BROKER_GRACE_S)
    return Parts(
        broker=None if settings.redis.url else broker,
        worker=Part(
            name=WORKER,
            argv=module_argv("worker.main"),
            grace_s=settings.server.drain_s + WORKER_MARGIN_S,
            silence_max_s=settings.jobs.worker_silence_s,
        ),
        api=Part(
            name=API,
            argv=module_argv("api.main"),
            grace_s=settings.server.drain_s + API_MARGIN_S,
        ),
    )
