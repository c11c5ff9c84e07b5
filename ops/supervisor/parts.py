"""The processes of a service."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ops.settings import Settings

BROKER, WORKER, API = "broker", "worker", "api"
#: Name of the worker's standby in the record of the service.
STANDBY = "standby"

#: Time after its drain deadline before the api is killed, in seconds.
API_MARGIN_S = 5.0
#: The same for the worker, which joins its threads in turn and appends its last events.
WORKER_MARGIN_S = 15.0
#: Age of a worker at which its standby starts, in seconds: after the load of a small model, and not
#: within a crash loop.
STANDBY_AFTER_S = 5.0
#: Least time without a heartbeat after which a worker is replaced, in seconds.
WORKER_SILENCE_S = 15.0
#: Time for the broker to write its data, in seconds.
BROKER_GRACE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A process that the supervisor keeps alive.

    Attributes:
        name: Short name; it prefixes the part's lines on the terminal.
        argv: Its command.
        grace_s: Seconds it has to end after SIGTERM.
        silence_max_s: Longest pause between two heartbeats, in seconds; 0 disables the check.
        standby_argv: Command of its standby, which becomes the part once it is activated; empty
            for a part without one.
        standby_after_s: Age of the part at which its standby starts, in seconds.
    """

    name: str
    argv: tuple[str, ...]
    grace_s: float
    silence_max_s: float = 0.0
    standby_argv: tuple[str, ...] = ()
    standby_after_s: float = STANDBY_AFTER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """All parts of a service; ``broker`` is ``None`` where an external one is configured."""

    broker: Part | None
    worker: Part
    api: Part

    def last_to_first(self) -> tuple[Part, ...]:
        """Return the parts in the order in which they are stopped."""
        return (self.api, self.worker, *([self.broker] if self.broker else []))


def module_argv(module: str) -> tuple[str, ...]:
    """Return the command that runs a module of this project.

    ``-P`` keeps the working directory out of the search path: a user's project may have packages
    named ``api`` or ``worker``.
    """
    return (sys.executable, "-P", "-m", module)


def _silence_max_s(step_limit_s: float) -> float:
    """Return how long a worker may be silent; a slow step may hold the interpreter's lock."""
    return max(WORKER_SILENCE_S, step_limit_s / 4) if step_limit_s else 0.0


def parts_of(settings: Settings) -> Parts:
    """Return the real parts."""
    broker = Part(name=BROKER, argv=module_argv("ops.broker"), grace_s=BROKER_GRACE_S)
    return Parts(
        broker=None if settings.redis.url else broker,
        worker=Part(
            name=WORKER,
            argv=module_argv("worker.main"),
            grace_s=settings.server.drain_s + WORKER_MARGIN_S,
            silence_max_s=_silence_max_s(settings.engine.step_limit_s),
            standby_argv=module_argv("worker.standby") if settings.jobs.keeps_standby else (),
        ),
        api=Part(
            name=API,
            argv=module_argv("api.main"),
            grace_s=settings.server.drain_s + API_MARGIN_S,
        ),
    )
