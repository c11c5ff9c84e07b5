"""Images of a request become images of its messages, in every dialect; what is none is refused."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from api.dialects.anthropic import parse as anthropic
from api.dialects.openai_chat import parse as openai_chat
from api.dialects.parsing import IMAGE_UNSENT
from api.generation import RequestDefaults
from api.http.messages import Reply
from domain.chat.images import IMAGE_MARK, ChatImage
from domain.chat.request import ChatRequest
from domain.values import Digest
from tests.support.builders.api import fake_api
from tests.support.fakes.time import SequentialIds

_DATA = base64.b64encode(b"\x89PNG\r\n\x1a\n a picture").decode()
_URL = f"data:image/png;base64,{_DATA}"
_LINK = "https://example.com/bee.png"
_IMAGE = ChatImage(_DATA)


def _chat_image(url: str = _URL) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def _claude_image(data: str = _DATA) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


_CLAUDE_LINK = {"type": "image", "source": {"type": "url", "url": _LINK}}


def _input_image(url: str = _URL) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url, "detail": "auto"}


def _question(image: dict[str, Any], kind: str = "text") -> dict[str, Any]:
    parts = [{"type": kind, "text": "What is \ufffc it?"}, image, {"type": kind, "text": "Well?"}]
    return {"role": "user", "content": parts}


def _stored(path: str, body: dict[str, Any]) -> ChatRequest:
    """Return the request that a body becomes."""
    defaults = RequestDefaults(ids=SequentialIds(), max_tokens=9, model="demo")
    text = json.dumps({"model": "demo", "max_tokens": 9, **body}).encode()
    if path == "/v1/messages":
        chat = anthropic.parse(text, {}, defaults).chat
    elif path == "/v1/chat/completions":
        chat = openai_chat.parse(text, {}, defaults).chat
    else:
        chat = asyncio.run(_submitted(path, body))
    return ChatRequest.from_bytes(chat.to_bytes())


async def _submitted(path: str, body: dict[str, Any]) -> ChatRequest:
    async with fake_api() as api:
        await api.send("POST", path, {"model": "demo", **body})
        (view,) = api.log.views.rows.values()
        return ChatRequest.from_bytes(api.log.get(Digest(view.submitted.request)))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": [_question(_claude_image())]}),
        ("/v1/chat/completions", {"messages": [_question(_chat_image())]}),
        (
            "/v1/responses",
            {"background": True, "input": [_question(_input_image(), "input_text")]},
        ),
        ("/v1/jobs", {"messages": [_question(_chat_image())]}),
        (
            "/v1/messages",
            {
                "messages": [_question({"type": "image", "source": {"type": "url", "url": _URL}})],
            },
        ),
    ],
)
def test_an_image_stands_in_the_question(path: str, body: dict[str, Any]) -> None:
    (message,) = _stored(path, body).messages
    # A character of the caller that looks like the mark of an image is none.
    assert message.content == f"What is \ufffd it?\n{IMAGE_MARK}\nWell?"
    assert message.images == (_IMAGE,)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/messages", {"messages": [_question(_claude_image("AAAA"))]}, "messages.0"),
        ("/v1/messages", {"messages": [_question(_claude_image("no base64"))]}, "messages.0"),
        ("/v1/messages", {"messages": [_question(_CLAUDE_LINK)]}, "messages.0"),
        ("/v1/chat/completions", {"messages": [_question(_chat_image(_LINK))]}, "messages.0"),
        ("/v1/responses", {"input": [_question(_input_image(_LINK), "input_text")]}, "input.0"),
        ("/v1/jobs", {"messages": [_question(_chat_image("data:,hi"))]}, "messages.0"),
    ],
)
def test_what_is_no_image_is_refused_in_the_question(
    path: str, body: dict[str, Any], field: str
) -> None:
    async def scenario() -> None:
        async with fake_api() as api:
            reply = await api.send("POST", path, {"model": "demo", "max_tokens": 9, **body})
            assert isinstance(reply, Reply)
            assert reply.status == 400
            assert f"{field}.content.1" in reply.body.decode()
            assert not api.log.views.rows

    asyncio.run(scenario())


def test_a_link_before_the_question_becomes_a_note() -> None:
    turns = [
        _question(_chat_image(_LINK)),
        {"role": "assistant", "content": "A bee."},
        {"role": "user", "content": "Which one?"},
    ]
    request = _stored("/v1/jobs", {"messages": turns})
    assert IMAGE_UNSENT in request.messages[0].content
    assert not request.messages[0].images
    assert request.messages[2].content == "Which one?"


def test_a_screenshot_stands_in_the_result_of_a_tool() -> None:
    turns = [
        {"role": "user", "content": "Look."},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t", "name": "s", "input": {}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [_claude_image()]},
                {"type": "text", "text": "And?"},
            ],
        },
    ]
    *_, result, question = _stored("/v1/messages", {"messages": turns}).messages
    assert (result.content, result.images) == (IMAGE_MARK, (_IMAGE,))
    assert (question.content, question.images) == ("And?", ())


@pytest.mark.parametrize(
    "output",
    [
        {"type": "function_call_output", "output": [_input_image()]},
        {
            "type": "computer_call_output",
            "output": {"type": "computer_screenshot", "image_url": _URL},
        },
    ],
)
def test_a_screenshot_stands_in_an_output(output: dict[str, Any]) -> None:
    items = [{"role": "user", "content": "Look."}, {**output, "call_id": "c"}]
    *_, result = _stored("/v1/responses", {"background": True, "input": items}).messages
    assert (result.role, result.content, result.images) == ("tool", IMAGE_MARK, (_IMAGE,))


def test_images_of_joined_turns_keep_their_order() -> None:
    turns = [_question(_chat_image()), {"role": "user", "content": "\ufffc?"}]
    (message,) = _stored("/v1/jobs", {"messages": turns}).messages
    assert message.content.count(IMAGE_MARK) == len(message.images) == 1
