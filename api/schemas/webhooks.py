"""Webhooks as clients see them."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12


class WebhookObject(TypedDict):
    """A message about an end to one receiver, and how telling it goes.

    ``error`` and ``status`` are of the last try; while one is under way, ``next_attempt_at`` is
    when it is given up for dead.
    """

    id: str
    object: Literal["webhook"]
    type: str
    subject: str
    url: str
    state: Literal["pending", "delivered", "failed"]
    attempts: int
    created_at: str
    last_attempt_at: str | None
    next_attempt_at: str | None
    status: int | None
    error: str | None


class WebhookList(TypedDict):
    """A page, newest first; ``before=<next_before>`` gives the next one."""

    object: Literal["list"]
    data: list[WebhookObject]
    has_more: bool
    next_before: str | None
