"""What control groups let this process use of the memory, and what they leave of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class _Version:
    """Names of a version's files.

    Attributes:
        limits: Bytes that the group may use; missing, or ``max``, where there is no limit. Beyond
            ``memory.high`` the kernel throttles the group.
        usage: Bytes in use, page cache included.
        cache: Name of the page cache in ``memory.stat`` that the kernel drops first.
    """

    limits: tuple[str, ...]
    usage: str
    cache: str


_V2 = _Version(("memory.max", "memory.high"), "memory.current", "inactive_file")
_V1 = _Version(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupFiles:
    """Where the kernel shows control groups.

    Attributes:
        mount: Directory of the hierarchies.
        membership: File with the groups of this process, ``id:controllers:path`` on each line.
    """

    mount: Path = Path("/sys/fs/cgroup")
    membership: Path = Path("/proc/self/cgroup")


def cgroup_free_bytes(files: CgroupFiles) -> int | None:
    """Return the memory that the groups of this process leave; ``None`` without a limit.

    Page cache that the kernel drops first counts as free, as in ``MemAvailable``.
    """
    free = (_free(group, version) for group, version in _groups(files))
    return min((size for size in free if size is not None), default=None)


def cgroup_limit_bytes(files: CgroupFiles) -> int | None:
    """Return the memory that the groups of this process may use; ``None`` without a limit."""
    limits = (_limit(group, version) for group, version in _groups(files))
    return min((size for size in limits if size is not None), default=None)


def _groups(files: CgroupFiles) -> Iterator[tuple[Path, _Version]]:
    """Yield the groups of this process and their parents."""
    for line in _text(files.membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if not separator:
            continue
        if not controllers:
            yield from ((group, _V2) for group in _and_parents(files.mount, path))
        elif "memory" in controllers.split(","):
            yield from ((group, _V1) for group in _and_parents(files.mount / "memory", path))


def _and_parents(mount: Path, path: str) -> Iterator[Path]:
    # A group outside of the container is shown with ``..``.
    own = PurePosixPath(*[part for part in PurePosixPath(path).parts if part not in ("/", "..")])
    yield from (mount / part for part in (own, *own.parents))


def _free(group: Path, version: _Version) -> int | None:
    limit, usage = _limit(group, version), _number(group / version.usage)
    if limit is None or usage is None:
        return None
    return max(0, limit - max(0, usage - _cache(group, version)))


def _limit(group: Path, version: _Version) -> int | None:
    limits = (_number(group / name) for name in version.limits)
    return min((size for size in limits if size is not None), default=None)


def _cache(group: Path, version: _Version) -> int:
    for line in _text(group / "memory.stat").splitlines():
        name, _, size = line.partition(" ")
        if name == version.cache and size.isdigit():
            return int(size)
    return 0


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
