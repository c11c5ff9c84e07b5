"""``/tokenize`` and ``/detokenize`` as clients of vLLM and of llama.cpp send them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from domain.chat.request import ChatRequest, RawPrompt
from tests.support.builders.api import fake_api


def _asked(path: str, body: dict[str, Any], status: int = 200) -> tuple[Any, list[ChatRequest]]:
    async def scenario() -> tuple[Any, list[ChatRequest]]:
        async with fake_api() as api:
            reply = await api.json("POST", path, body, status=status)
            return reply, api.broker.counter.requests

    return asyncio.run(scenario())


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize(
    ("body", "raw"),
    [
        ({"prompt": "Hi"}, RawPrompt(text="Hi")),
        ({"prompt": "Hi", "add_special_tokens": False}, RawPrompt(text="Hi", is_begun=True)),
        ({"content": "Hi"}, RawPrompt(text="Hi", is_begun=True)),
        ({"content": "Hi", "add_special": True}, RawPrompt(text="Hi")),
    ],
)
def test_text_is_read_as_each_server_reads_it(
    prefix: str, body: dict[str, Any], raw: RawPrompt
) -> None:
    reply, requests = _asked(f"{prefix}/tokenize", body)
    assert reply == {"tokens": [72, 105], "count": 2}
    assert [request.raw for request in requests] == [raw]


def test_chat_is_read_with_its_template() -> None:
    turn = {"role": "user", "content": "Hi"}
    _, requests = _asked("/tokenize", {"messages": [turn]})
    assert [(one.role, one.content) for one in requests[0].messages] == [("user", "Hi")]


def test_ids_become_the_text_that_they_stand_for() -> None:
    reply, requests = _asked("/detokenize", {"tokens": [72, 105]})
    assert reply == {"prompt": "Hi", "content": "Hi"}
    assert requests[0].raw == RawPrompt(ids=(72, 105), is_echoed=True)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "content": "a"}),
        ("/tokenize", {"prompt": "a", "return_token_strs": True}),
        ("/tokenize", {"content": "a", "with_pieces": True}),
        ("/detokenize", {"tokens": []}),
        ("/detokenize", {"tokens": ["a"]}),
    ],
)
def test_what_cannot_be_honoured_is_refused(path: str, body: dict[str, Any]) -> None:
    _, requests = _asked(path, body, status=400)
    assert requests == []
