"""The optional headers of an answer: one that cannot be read costs no answer and no reader."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Never

import pytest

from api.http.messages import StreamReply
from domain.audit.recent_ends import CacheDiagnosis
from domain.audit.recorded_answers import JobRecords
from domain.errors import LogUnavailable
from domain.job.request_dedup import Readership
from domain.values import JobId, JobStatus
from tests.support.builders.api import PATIENCE_S, fake_api, pieces_of
from tests.support.builders.generation_requests import (
    ANSWER,
    BODY,
    CHAT,
    MESSAGES,
    STREAM,
    status_of,
)
from tests.support.polling import eventually, scaled


@pytest.mark.parametrize("body", [BODY, STREAM])
@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_answer_is_whole_although_the_log_cannot_explain_it(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def diagnose(self: JobRecords, job_id: JobId) -> Never:
        del self, job_id
        raise LogUnavailable("the disk is gone")

    async def scenario() -> None:
        async with fake_api() as api:
            api.use(opening_s=PATIENCE_S)
            monkeypatch.setattr(JobRecords, "diagnose", diagnose)
            answering = asyncio.create_task(api.send("POST", path, body))
            job_id = await api.only_job()
            api.publish(job_id, *ANSWER)
            reply = await answering
            assert reply.status == 200
            assert set(reply.headers) == {"x-semantic-job"}
            whole = await pieces_of(reply) if isinstance(reply, StreamReply) else reply.body
            assert b"Hello" in whole
            assert api.app.connections.state(job_id) is Readership.DELIVERED

    asyncio.run(scenario())


@pytest.mark.parametrize("path", [MESSAGES, CHAT])
def test_handler_that_is_cancelled_while_it_reads_the_headers_leaves_no_reader(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, over = threading.Event(), threading.Event()

    def diagnose(self: JobRecords, job_id: JobId) -> CacheDiagnosis | None:
        del self, job_id
        begun.set()
        over.wait(scaled(PATIENCE_S))
        return None

    async def scenario() -> None:
        async with fake_api() as api:
            api.use(opening_s=PATIENCE_S)
            monkeypatch.setattr(JobRecords, "diagnose", diagnose)
            answering = asyncio.create_task(api.send("POST", path, STREAM))
            job_id = await api.only_job()
            api.publish(job_id, *ANSWER[:2])
            await eventually(begun.is_set)
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            over.set()
            assert api.broker.items.followers == 0
            await eventually(lambda: status_of(api, job_id) is JobStatus.CANCELLED)

    asyncio.run(scenario())
