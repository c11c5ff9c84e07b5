"""An image in the question is refused in every dialect; an earlier one becomes a note."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api.dialects.parsing import IMAGE_NOTE, IMAGE_REFUSED
from api.http.messages import Reply
from domain.chat.request import ChatRequest
from domain.values import Digest
from tests.support.builders.api import fake_api

_CHAT_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
_CLAUDE_IMAGE = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
_INPUT_IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}


def _question(image: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}


def _responses_question() -> dict[str, Any]:
    parts = [{"type": "input_text", "text": "What is it?"}, _INPUT_IMAGE]
    return {"role": "user", "content": parts}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/messages", {"max_tokens": 9, "messages": [_question(_CLAUDE_IMAGE)]}, "messages.0"),
        ("/v1/chat/completions", {"messages": [_question(_CHAT_IMAGE)]}, "messages.0"),
        ("/v1/responses", {"input": [_responses_question()]}, "input.0"),
        ("/v1/jobs", {"messages": [_question(_CHAT_IMAGE)]}, "messages.0"),
    ],
)
def test_an_image_in_the_question_is_refused(path: str, body: dict[str, Any], field: str) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            reply = await api.send("POST", path, {"model": "demo", **body})
            assert isinstance(reply, Reply)
            assert reply.status == 400
            text = reply.body.decode()
            assert IMAGE_REFUSED in text
            assert f"{field}.content.1" in text
            assert not api.log.views.rows

    asyncio.run(scenario())


def test_an_image_before_the_question_becomes_a_note() -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            turns = [
                _question(_CHAT_IMAGE),
                {"role": "assistant", "content": "A bee."},
                {"role": "user", "content": "Which one?"},
            ]
            await api.json("POST", "/v1/jobs", {"model": "demo", "messages": turns}, status=202)
            (view,) = api.log.views.rows.values()
            request = ChatRequest.from_bytes(api.log.get(Digest(view.submitted.request)))
            assert IMAGE_NOTE in request.messages[0].content
            assert request.messages[2].content == "Which one?"

    asyncio.run(scenario())
