"""The official SDKs, unmodified and with strict response validation."""

from __future__ import annotations

import anthropic
import openai
import pytest

FRANCE = "What is the capital of France?"


def test_anthropic_create_answers(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(
        model="semantic-demo",
        max_tokens=64,
        extra_body={"temperature": 0},
        messages=[{"role": "user", "content": FRANCE}],
    )
    assert message.stop_reason == "end_turn"
    assert "Paris" in "".join(block.text for block in message.content if block.type == "text")
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) > 0
    assert message.usage.output_tokens > 0


def test_anthropic_stream_gives_the_same_text(claude: anthropic.Anthropic) -> None:
    with claude.messages.stream(
        model="semantic-demo",
        max_tokens=64,
        extra_body={"temperature": 0},
        messages=[{"role": "user", "content": FRANCE}],
    ) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 1
    assert "Paris" in "".join(pieces)
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens > 0


def test_anthropic_stop_sequence_ends_the_answer(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(
        model="semantic-demo",
        max_tokens=64,
        extra_body={"temperature": 0},
        stop_sequences=["Paris"],
        messages=[{"role": "user", "content": FRANCE}],
    )
    assert message.stop_reason == "stop_sequence"
    assert message.stop_sequence == "Paris"
    assert "Paris" not in "".join(b.text for b in message.content if b.type == "text")


def test_anthropic_max_tokens_is_obeyed(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(
        model="semantic-demo",
        max_tokens=3,
        extra_body={"temperature": 0},
        messages=[{"role": "user", "content": FRANCE}],
    )
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 3


def test_same_seed_gives_the_same_sampled_text(oai: openai.OpenAI) -> None:
    def ask(seed: int) -> str | None:
        reply = oai.chat.completions.create(
            model="semantic-demo",
            seed=seed,
            temperature=1.0,
            max_tokens=40,
            messages=[{"role": "user", "content": "Tell me a story."}],
        )
        return reply.choices[0].message.content

    first = ask(7)
    assert first == ask(7)
    assert {ask(seed) for seed in (8, 9, 10)} != {first}


def test_openai_create_answers(oai: openai.OpenAI) -> None:
    reply = oai.chat.completions.create(
        model="semantic-demo",
        max_tokens=64,
        temperature=0,
        messages=[
            {"role": "system", "content": "You are brief."},
            {"role": "user", "content": FRANCE},
        ],
    )
    assert "Paris" in (reply.choices[0].message.content or "")
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_openai_stream_ends_with_usage(oai: openai.OpenAI) -> None:
    chunks = list(
        oai.chat.completions.create(
            model="semantic-demo",
            max_tokens=64,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            messages=[{"role": "user", "content": FRANCE}],
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert "Paris" in text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


def test_both_sdks_list_the_model(claude: anthropic.Anthropic, oai: openai.OpenAI) -> None:
    ours = list(claude.models.list())
    theirs = list(oai.models.list())
    assert [model.id for model in ours] == ["semantic-demo", "claude-semantic-demo"]
    assert [model.id for model in theirs] == ["semantic-demo"]
    assert claude.models.retrieve("semantic-demo").id == "semantic-demo"
    assert oai.models.retrieve("semantic-demo").id == "semantic-demo"


def test_bad_requests_raise_the_sdks_own_errors(
    claude: anthropic.Anthropic, oai: openai.OpenAI
) -> None:
    with pytest.raises(anthropic.BadRequestError) as ours:
        claude.messages.create(model="semantic-demo", max_tokens=0, messages=[])
    assert "max_tokens" in str(ours.value) or "messages" in str(ours.value)
    with pytest.raises(openai.BadRequestError):
        oai.chat.completions.create(model="semantic-demo", messages=[])
    with pytest.raises(openai.NotFoundError):
        oai.models.retrieve("no-such-model")
