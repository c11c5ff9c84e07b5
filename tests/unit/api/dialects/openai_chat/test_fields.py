"""Fields of OpenAI's dialects that the prompt shows, and those that are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.dialects.openai_chat.parse import parse
from api.dialects.openai_responses.parse import (
    input_items,
    parse_request,
    read_body,
    requested_fields,
)
from api.generation import RequestDefaults
from domain.chat.request import ChatRequest
from domain.errors import InvalidRequest
from tests.support.fakes.time import SequentialIds

_QUESTION = {"role": "user", "content": "hi"}


def _chat(*messages: dict[str, Any], **fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": list(messages) or [_QUESTION]}
    defaults = RequestDefaults(ids=SequentialIds(), max_tokens=1)
    return parse(json.dumps(body | fields).encode(), {}, defaults).chats[0]


def _response(**fields: Any) -> ChatRequest:
    wire = read_body(json.dumps({"model": "m", "input": "hi"} | fields).encode())
    requested = requested_fields(wire, input_items(wire))
    defaults = RequestDefaults(ids=SequentialIds(), max_tokens=1)
    return parse_request(wire, requested, requested.items, {}, defaults).chat


def test_a_speaker_has_its_name() -> None:
    assert _chat(_QUESTION | {"name": "Ann"}).messages[-1].content == "Ann: hi"


def test_a_refusal_is_the_text_of_its_turn() -> None:
    parts = [{"type": "refusal", "refusal": "No."}]
    for refused in ({"refusal": "No."}, {"content": parts}):
        chat = _chat(_QUESTION, {"role": "assistant"} | refused, _QUESTION)
        assert chat.messages[1].content == "No."


@pytest.mark.parametrize(("verbosity", "words"), [("low", "short"), ("high", "detail")])
def test_verbosity_ends_the_system_prompt(verbosity: str, words: str) -> None:
    for chat in (_chat(verbosity=verbosity), _response(text={"verbosity": verbosity})):
        assert chat.messages[0].role == "system"
        assert words in chat.messages[0].content
    assert _chat(verbosity="medium") == _chat()


def test_a_schema_has_its_description() -> None:
    named = {"name": "n", "schema": {"type": "object"}, "description": "A bee."}
    shown = {"type": "object", "description": "A bee."}
    assert (
        _chat(response_format={"type": "json_schema", "json_schema": named}).answer_schema == shown
    )
    assert _response(text={"format": {"type": "json_schema"} | named}).answer_schema == shown


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities.1"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0.type"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
        ({"web_search_options": {}}, "web_search_options"),
    ],
)
def test_a_field_of_a_chat_that_cannot_be_followed_is_refused_by_name(
    fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _chat(**fields)
    assert (caught.value.field or "").startswith(named)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "tool_search"}]}, "tools.0"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"context_management": [{"type": "summary"}]}, "context_management.0.type"),
        ({"input": [_QUESTION | {"content": [{"type": "input_file"}]}]}, "input.0.content.0"),
    ],
)
def test_a_field_of_a_response_that_cannot_be_followed_is_refused_by_name(
    fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _response(**fields)
    assert (caught.value.field or "").startswith(named)
