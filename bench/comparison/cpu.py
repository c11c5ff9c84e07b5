"""CPU time of a server with all its processes."""

from __future__ import annotations

import psutil


def family(pid: int) -> list[psutil.Process]:
    """Return a process and its living descendants."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a family, its ended members included.

    A child's time is added to its parent's when the child is reaped, so short-lived processes are
    counted exactly once.
    """
    total = 0.0
    for process in family(pid):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total
