"""Waiting for the end of a job that goes on without whoever waits."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from api.http.messages import Request
from api.services import Services
from api.streaming.item_buffer import ClientGone, ItemBuffer
from api.streaming.reattach import follow_job
from domain.errors import SemanticError
from domain.values import JobId


async def wait_for_end(job_id: JobId, wait_s: float, request: Request, services: Services) -> None:
    """Wait until the job has ended, the time is up, or there is nobody to wait for it."""
    # The job is there whatever becomes of this: what cannot be waited for is told as it stands.
    with suppress(ClientGone, SemanticError):
        items = await follow_job(job_id, after=-1, services=services)
        if items is None:
            return
        feed = ItemBuffer(items, request, on_gone=leave_alone)
        try:
            async with asyncio.timeout(wait_s):
                while not feed.complete:
                    await feed.batch(None)
        except TimeoutError:
            return
        finally:
            await feed.close()


def leave_alone() -> None:
    """The job goes on without whoever waited."""
