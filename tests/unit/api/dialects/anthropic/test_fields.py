"""Fields of documents, results and tools that the prompt shows, and those that are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.dialects.anthropic.parse import parse
from api.generation import RequestDefaults
from domain.chat.request import ChatRequest
from domain.errors import InvalidRequest
from tests.support.fakes.time import SequentialIds

_TOOL = {"name": "find", "input_schema": {"type": "object"}}


def _chat(*blocks: dict[str, Any], **fields: Any) -> ChatRequest:
    content = list(blocks) or "hi"
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": content}]}
    defaults = RequestDefaults(ids=SequentialIds(), max_tokens=1)
    return parse(json.dumps(body | fields).encode(), {}, defaults).chat


def test_a_document_shows_its_title_and_context() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "Bees dance."}
    block = {"type": "document", "source": source, "title": "Bees", "context": "Of 1950."}
    assert _chat(block).messages[-1].content == "Bees\nOf 1950.\nBees dance."


def test_a_search_result_shows_its_source() -> None:
    content = [{"type": "text", "text": "Bees dance."}]
    block = {"type": "search_result", "source": "http://x", "title": "Bees", "content": content}
    assert _chat(block).messages[-1].content == "Bees\nhttp://x\nBees dance."


def test_a_tool_shows_its_examples() -> None:
    (tool,) = _chat(tools=[_TOOL | {"description": "Find.", "input_examples": [{"q": 1}]}]).tools
    assert tool["function"]["description"] == 'Find.\nExamples of its input:\n{"q":1}'


def test_a_strict_tool_is_named() -> None:
    assert _chat(tools=[_TOOL | {"strict": True}]).strict_tools == ("find",)


def test_an_edit_that_keeps_all_reasoning_changes_nothing() -> None:
    edit = {"type": "clear_thinking_20251015", "keep": "all"}
    assert _chat(context_management={"edits": [edit]}) == _chat()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}, "mcp_servers"),
        ({"context_management": {"edits": [{"type": "of_next_year"}]}}, "context_management"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tool_choice": {"type": "of_next_year"}}, "tool_choice.type"),
        ({"thinking": {"type": "of_next_year"}}, "thinking.type"),
        ({"output_config": {"task_budget": {"type": "tokens", "total": 1}}}, "output_config"),
    ],
)
def test_a_field_that_cannot_be_followed_is_refused_by_name(
    fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _chat(**fields)
    assert (caught.value.field or "").startswith(named)


def test_a_document_that_is_no_text_is_refused_in_the_question_only() -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": "AA"}
    block = {"type": "document", "source": source, "title": "a.pdf"}
    with pytest.raises(InvalidRequest) as caught:
        _chat(block)
    assert caught.value.field == "messages.0.content.0.source"
    turns = [{"role": "user", "content": [block]}, {"role": "user", "content": "Go on."}]
    assert "[document a.pdf left out]" in _chat(messages=turns).messages[-1].content
