"""What the service holds for the SDKs: conversations, stored completions and threads."""

from __future__ import annotations

from typing import Any

import anthropic
import openai

_MODEL = "semantic-demo"


def test_a_conversation_holds_items_and_responses(oai: openai.OpenAI) -> None:
    held = oai.conversations.create(
        metadata={"topic": "x"},
        items=[{"type": "message", "role": "user", "content": "What is the capital of France?"}],
    )
    first = oai.responses.create(
        model=_MODEL, conversation=held.id, input="In one word.", max_output_tokens=16
    )
    assert first.conversation is not None
    assert first.conversation.id == held.id
    second = oai.responses.create(
        model=_MODEL, conversation=held.id, input="Say hello.", max_output_tokens=16
    )
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens > 0
    listed = list(oai.conversations.items.list(held.id, order="asc", limit=2))
    roles = [item.role for item in listed if item.type == "message"]
    assert roles == ["user", "user", "assistant", "user", "assistant"]
    assert listed[0].id is not None
    oai.conversations.items.delete(listed[0].id, conversation_id=held.id)
    assert len(list(oai.conversations.items.list(held.id))) == 4
    assert oai.conversations.update(held.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert oai.conversations.delete(held.id).deleted


def test_a_stored_completion_is_managed(oai: openai.OpenAI) -> None:
    made = oai.chat.completions.create(
        model=_MODEL,
        messages=[{"role": "user", "content": "Say hello."}],
        max_tokens=16,
        store=True,
        metadata={"test": "held-state"},
    )
    found = oai.chat.completions.retrieve(made.id)
    assert found.choices == made.choices
    listed = oai.chat.completions.list(metadata={"test": "held-state"})
    assert made.id in [one.id for one in listed]
    assert oai.chat.completions.update(made.id, metadata={"a": "b"}).id == made.id
    assert oai.chat.completions.delete(made.id).deleted


def test_a_thread_goes_on_with_the_new_message(claude: anthropic.Anthropic) -> None:
    first = claude.beta.messages.create(
        model=_MODEL,
        max_tokens=16,
        thread={"type": "create"},
        messages=[{"role": "user", "content": "What is the capital of France?"}],
    )
    second = claude.beta.messages.create(
        model=_MODEL,
        max_tokens=16,
        thread={"type": "continue", "previous_message_id": first.id},
        messages=[{"role": "user", "content": "Say hello."}],
    )
    assert second.usage.cache_read_input_tokens


def test_a_conversation_is_compacted_and_goes_on(claude: anthropic.Anthropic) -> None:
    question: Any = {"role": "user", "content": "What is the capital of France?"}
    answer: Any = {"role": "assistant", "content": "Paris."}
    trigger: Any = {"type": "input_tokens", "value": 1}
    asked: Any = {
        "model": _MODEL,
        "max_tokens": 24,
        "context_management": {"edits": [{"type": "compact_20260112", "trigger": trigger}]},
    }
    first = claude.beta.messages.create(messages=[question, answer, question], **asked)
    assert [one.type for one in first.content] == ["compaction", "text"]
    assert [one.type for one in first.usage.iterations or ()] == ["compaction", "message"]
    answered: Any = {"role": "assistant", "content": first.content}
    asked["context_management"]["edits"][0]["pause_after_compaction"] = True
    with claude.beta.messages.stream(
        messages=[question, answer, question, answered, question], **asked
    ) as stream:
        paused = stream.get_final_message()
    assert [one.type for one in paused.content] == ["compaction"]
    assert paused.stop_reason == "compaction"
    del asked["context_management"]
    whole = claude.beta.messages.create(
        messages=[question, answer], compaction={"type": "summarize"}, **asked
    )
    assert (whole.stop_reason, [one.type for one in whole.content]) == (
        "compaction",
        ["compaction"],
    )
    after: Any = {"role": "assistant", "content": whole.content}
    last = claude.beta.messages.create(messages=[after, question], **asked)
    assert [one.type for one in last.content] == ["text"]
