"""Replies of ``/v1/webhooks``."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12


class WebhookObject(TypedDict):
    """A message to one receiver about the end of a job or a batch, and its delivery.

    ``error`` and ``status`` belong to the last attempt. During an attempt, ``next_attempt_at`` is
    the time at which the service considers it lost.
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
    """A page, newest first; ``before=<next_before>`` returns the next one."""

    object: Literal["list"]
    data: list[WebhookObject]
    has_more: bool
    next_before: str | None
