"""Decide whether a part that has ended is restarted. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ops.exit_codes import FINAL, ExitCode

#: Pause before the second restart in a row, in seconds; it doubles with each further short run. The
#: first restart has no pause: clients wait for it.
BACKOFF_FIRST_S = 0.2
#: Longest pause between two restarts, in seconds.
BACKOFF_MAX_S = 10.0
#: A run of this length counts as healthy and resets the back-off, in seconds.
HEALTHY_AFTER_S = 30.0
#: Short runs in a row before the service stops: about two and a half minutes of restarts.
SHORT_LIVES_MAX = 20
#: Exit codes of a process that ends in order to be started again: no crash.
PLANNED = frozenset({ExitCode.SWAPPED, ExitCode.LOAD_FAILED, ExitCode.IDLE})
#: Planned exits in a row, each after a short run, that have no pause.
PLANNED_WITHOUT_PAUSE = 40
#: Such exits before the service stops: they do not lead to a worker that lasts.
PLANNED_MAX = 100
#: Exit codes of a worker whose jobs wait for the next one, which has a device of its own.
_WITHOUT_PAUSE = frozenset({ExitCode.DEVICE_FAILED, ExitCode.STUCK})


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the part again after a pause."""

    delay_s: float
    short_lives: int
    planned: int = 0


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop the whole service with this exit code."""

    exit_code: ExitCode
    reason: str


def decide(
    returncode: int, *, lived_s: float, short_lives: int, planned: int = 0
) -> Restart | GiveUp:
    """Decide about a part that ended without a request to stop.

    Args:
        returncode: Of the process; negative for a signal.
        lived_s: Length of its run, in seconds.
        short_lives: Short runs in a row before this one that ended in a crash.
        planned: Short runs in a row before this one that ended as planned.
    """
    if (reason := FINAL.get(returncode)) is not None:
        return GiveUp(ExitCode(returncode), reason)
    if lived_s >= HEALTHY_AFTER_S:
        return Restart(0.0, 0)
    if returncode in PLANNED:
        return _after_planned_exit(short_lives, planned + 1)
    if short_lives + 1 >= SHORT_LIVES_MAX:
        return GiveUp(ExitCode.CRASHED, f"it ended {SHORT_LIVES_MAX} times in a row")
    if returncode in _WITHOUT_PAUSE:
        return Restart(0.0, short_lives + 1)
    doublings = min(short_lives, SHORT_LIVES_MAX) - 1
    pause_s = min(BACKOFF_FIRST_S * 2**doublings, BACKOFF_MAX_S) if short_lives else 0.0
    return Restart(pause_s, short_lives + 1)


def _after_planned_exit(short_lives: int, planned: int) -> Restart | GiveUp:
    if planned >= PLANNED_MAX:
        return GiveUp(ExitCode.CRASHED, f"it ended to start again {PLANNED_MAX} times in a row")
    beyond = planned - PLANNED_WITHOUT_PAUSE
    pause_s = min(BACKOFF_FIRST_S * 2 ** (beyond - 1), BACKOFF_MAX_S) if beyond > 0 else 0.0
    return Restart(pause_s, short_lives, planned)
