"""``strict`` of a tool goes beside the tool, not into the prompt, in each dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.dialects.anthropic import parse as anthropic
from api.dialects.openai_chat import parse as openai_chat
from api.dialects.openai_responses.parse import (
    input_items,
    parse_request,
    read_body,
    requested_fields,
)
from api.generation import RequestDefaults
from domain.chat.request import ChatRequest
from tests.support.fakes.time import SequentialIds

_SCHEMA = {"type": "object"}


def _chat(**fields: Any) -> ChatRequest:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields)
    return openai_chat.parse(
        body.encode(), {}, RequestDefaults(ids=SequentialIds(), max_tokens=9)
    ).chat


def _messages(**fields: Any) -> ChatRequest:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    return anthropic.parse(
        json.dumps(body | fields).encode(), {}, RequestDefaults(ids=SequentialIds(), max_tokens=1)
    ).chat


def _responses(**fields: Any) -> ChatRequest:
    wire = read_body(json.dumps({"model": "m", "input": "hi"} | fields).encode())
    requested = requested_fields(wire, input_items(wire))
    return parse_request(
        wire, requested, requested.items, {}, RequestDefaults(ids=SequentialIds(), max_tokens=9)
    ).chat


def _function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": _SCHEMA, **more}}


@pytest.mark.parametrize(
    "chat",
    [
        _chat(tools=[_function("a", strict=True), _function("b", strict=False), _function("c")]),
        _messages(
            tools=[
                {"name": "a", "input_schema": _SCHEMA, "strict": True},
                {"name": "b", "input_schema": _SCHEMA},
            ]
        ),
        _responses(
            tools=[
                {"type": "function", "name": "a", "parameters": _SCHEMA, "strict": True},
                {"type": "function", "name": "b", "parameters": _SCHEMA, "strict": False},
            ]
        ),
    ],
)
def test_what_is_strict_is_known_by_its_name_and_stays_so(chat: ChatRequest) -> None:
    assert chat.strict_tools == ("a",)
    assert all("strict" not in tool["function"] for tool in chat.tools)
    assert ChatRequest.from_bytes(chat.to_bytes()) == chat


def test_a_request_without_strict_tools_has_the_digest_it_always_had() -> None:
    assert b"strict_tools" not in _chat(tools=[_function("a")]).to_bytes()
