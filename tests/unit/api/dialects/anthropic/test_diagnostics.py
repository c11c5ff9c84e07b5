"""``diagnostics.previous_message_id``: why the cache missed, in the vendor's words."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from anthropic.types import Message

from api.dialects.anthropic.encode import diagnostics_of
from api.http.messages import Reply
from domain.audit.recent_ends import CacheDiagnosis
from domain.chat.divergence import Cause, PromptDivergence
from domain.values import JobId
from tests.support.builders.api import PATIENCE_S, fake_api
from tests.support.builders.generation_requests import ANSWER, BODY, MESSAGES

_BEFORE = JobId("job-" + "1" * 32)


def _found(cause: Cause | None, compared_with: JobId = _BEFORE) -> CacheDiagnosis:
    divergence = None if cause is None else PromptDivergence(cause=cause, place="x")
    return CacheDiagnosis(
        prompt_tokens=100,
        cached_tokens=20,
        source="ram",
        missed_tokens=60,
        compared_with=compared_with,
        divergence=divergence,
    )


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (Cause.MODEL_CHANGED, "model_changed"),
        (Cause.SYSTEM_CHANGED, "system_changed"),
        (Cause.TOOL_ADDED, "tools_changed"),
        (Cause.HISTORY_EDITED, "messages_changed"),
        (Cause.BLOCKS_GONE, "unavailable"),
    ],
)
def test_each_cause_has_the_vendors_word(cause: Cause, kind: str) -> None:
    diagnosed = diagnostics_of(_BEFORE, _found(cause))
    assert diagnosed is not None
    reason = diagnosed["cache_miss_reason"]
    assert reason is not None
    assert reason["type"] == kind
    assert reason.get("cache_missed_input_tokens") == (None if kind == "unavailable" else 60)


def test_a_prompt_that_was_reused_has_no_reason() -> None:
    assert diagnostics_of(_BEFORE, _found(None)) is None


def test_a_prompt_that_is_not_known_yet_has_no_reason_yet() -> None:
    assert diagnostics_of(_BEFORE, None) == {"cache_miss_reason": None}


def test_a_miss_beside_another_message_is_not_explained() -> None:
    other = _found(Cause.TOOL_ADDED, JobId("job-" + "2" * 32))
    diagnosed = diagnostics_of(_BEFORE, other)
    assert diagnosed == {"cache_miss_reason": {"type": "unavailable"}}


def test_a_message_that_does_not_exist_is_reported_in_the_answer() -> None:
    async def scenario() -> dict[str, Any]:
        async with fake_api() as api:
            api.use(opening_s=PATIENCE_S)
            body = BODY | {"diagnostics": {"previous_message_id": "msg_0"}}
            answering = asyncio.create_task(api.send("POST", MESSAGES, body))
            job_id = await api.only_job()
            api.publish(job_id, *ANSWER)
            reply = await answering
            assert isinstance(reply, Reply)
            made: dict[str, Any] = json.loads(reply.body)
            return made

    made = asyncio.run(scenario())
    assert made["diagnostics"] == {"cache_miss_reason": {"type": "previous_message_not_found"}}
    assert Message.model_validate(made, strict=False).diagnostics is not None
