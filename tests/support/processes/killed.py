"""Runs an action in a process that is killed at its n-th step."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

#: Calls that change what a power cut or a kill would leave behind, by where they are looked up.
DISK: tuple[tuple[Any, str], ...] = tuple(
    (os, name) for name in ("fsync", "link", "replace", "rename", "unlink", "open", "close")
)
#: No action under test takes more steps; a loop that does not end is a failure, not a wait.
STEPS_MAX = 200


def killed_at_every_step(
    action: Callable[[], object], steps: Sequence[tuple[Any, str]] = DISK
) -> Iterator[int]:
    """Run ``action`` in a child that is killed before its first step, its second and so on.

    A step is a call of one of ``steps``: an object or module, and the name of the callable in it.

    Yields after each death; ends after the first run that lived. The caller puts the world back
    between two runs.
    """
    for step in range(1, STEPS_MAX):
        if not _dies(action, step, steps):
            return
        yield step
    raise AssertionError(STEPS_MAX)


def _dies(action: Callable[[], object], step: int, steps: Sequence[tuple[Any, str]]) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            _arm(step, steps)
            action()
        except BaseException:  # noqa: BLE001 - a child of a test must not go on as a test
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def _arm(step: int, steps: Sequence[tuple[Any, str]]) -> None:
    left = step

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return run

    for owner, name in steps:
        setattr(owner, name, counted(getattr(owner, name)))
