"""Reply of ``/admin/status``."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12


class LogHeadObject(TypedDict):
    """The last event of the log: its position and its hash."""

    position: int
    hash: str


class StatusObject(TypedDict):
    """What ``semantic status`` prints.

    ``jobs`` counts the jobs by status. ``model``, ``cache`` and ``drafts`` are of the first worker
    that reports them.
    """

    object: Literal["status"]
    version: str
    model: str | None
    cache: dict[str, Any] | None
    drafts: dict[str, Any] | None
    jobs: dict[str, int]
    queue_depth: int
    log: LogHeadObject


class KeyObject(TypedDict):
    """The key of a request.

    ``name`` is ``null`` without keys. ``may`` has what the operations of the document name in
    ``x-semantic-access``. With ``sees_all``, lists and sums hold the things of all keys.
    """

    object: Literal["key"]
    name: str | None
    scope: Literal["admin", "own", "read"]
    may: list[str]
    sees_all: bool
