"""CPU time of a server with all its processes."""

from __future__ import annotations

import psutil


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all that descend from it, as far as they live."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a family, its ended members included.

    What a child used goes to its parent's account when it is reaped, so nothing is lost or
    counted twice by processes that come and go.
    """
    total = 0.0
    for process in family(pid):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total
