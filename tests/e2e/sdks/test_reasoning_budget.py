"""Budgets, efforts and counts of reasoning through the official SDKs, strictly validated."""

from __future__ import annotations

from typing import Any

import anthropic
import openai

_ASK: Any = [{"role": "user", "content": "What is the capital of France?"}]
_COLD: dict[str, Any] = {"temperature": 0}
_BUDGET = 4


def _thought(message: Any) -> str:
    return "".join(block.thinking for block in message.content if block.type == "thinking")


def _said(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def _thinking_tokens(message: Any) -> int:
    return int(message.usage.output_tokens_details.thinking_tokens)


def test_reasoning_is_cut_at_its_budget_and_the_answer_follows(claude: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {
        "model": "gpt-m",
        "max_tokens": 200,
        "messages": _ASK,
        "extra_body": _COLD,
    }
    free = claude.messages.create(**asked, thinking={"type": "enabled", "budget_tokens": 150})
    assert _thinking_tokens(free) > _BUDGET
    short: Any = {"type": "enabled", "budget_tokens": _BUDGET}
    whole = claude.messages.create(**asked, thinking=short)
    assert _thinking_tokens(whole) == _BUDGET
    assert _thought(free).startswith(_thought(whole))
    assert _thought(whole)
    assert _said(whole)
    with claude.messages.stream(**asked, thinking=short) as stream:
        final = stream.get_final_message()
    assert (_thought(final), _said(final)) == (_thought(whole), _said(whole))
    assert _thinking_tokens(final) == _BUDGET
    silent = claude.messages.create(**asked, thinking={"type": "disabled"})
    assert _thinking_tokens(silent) == 0


def test_openai_clients_are_told_how_much_was_reasoning(oai: openai.OpenAI) -> None:
    counts = {}
    # 10 % of this are 4 tokens.
    for effort in ("none", "minimal", "high"):
        chat = oai.chat.completions.create(
            model="gpt-m",
            messages=_ASK,
            max_tokens=45,
            reasoning_effort=effort,
            extra_body=_COLD,
        )
        assert chat.usage is not None
        assert chat.usage.completion_tokens_details is not None
        assert chat.choices[0].message.content
        counts[effort] = chat.usage.completion_tokens_details.reasoning_tokens or 0
        response = oai.responses.create(
            model="gpt-m",
            input=_ASK,
            max_output_tokens=45,
            reasoning={"effort": effort},
            extra_body=_COLD,
        )
        assert response.usage is not None
        assert response.usage.output_tokens_details.reasoning_tokens == counts[effort]
    assert counts["none"] == 0
    assert counts["minimal"] == _BUDGET
    assert counts["high"] > _BUDGET


def test_what_is_created_read_and_left_is_what_was_counted(claude: anthropic.Anthropic) -> None:
    mark: Any = {"type": "ephemeral"}
    text = "Counts that must add up. " * 120
    system: Any = [{"type": "text", "text": text, "cache_control": mark}]
    counted = claude.messages.count_tokens(model="gpt-m", system=system, messages=_ASK).input_tokens
    assert counted > 256
    asked: dict[str, Any] = {"model": "gpt-m", "max_tokens": 4, "messages": _ASK}
    first = claude.messages.create(**asked, system=system).usage
    again = claude.messages.create(**asked, system=system).usage
    for usage in (first, again):
        created, read = usage.cache_creation_input_tokens, usage.cache_read_input_tokens
        assert usage.input_tokens + (created or 0) + (read or 0) == counted
    assert first.cache_creation_input_tokens == counted - counted % 256 - (
        first.cache_read_input_tokens or 0
    )
    assert again.cache_creation_input_tokens == 0
    plain = claude.messages.create(**asked, system=text + "Else.").usage
    assert plain.cache_creation_input_tokens == 0
    assert plain.input_tokens + (plain.cache_read_input_tokens or 0) > 256
