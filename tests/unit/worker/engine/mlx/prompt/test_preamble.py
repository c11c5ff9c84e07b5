"""Prompts with the same tools and system prompt have the same tokens up to the first message."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from domain.chat.request import ChatRequest, Message, RawPrompt
from domain.values import SamplingWish
from tests.support.models import tiny_harmony, tiny_models
from worker.engine.mlx.prompt.renderer import PromptRenderer
from worker.engine.output.channel_parser import HARMONY

#: The system prompt is a part of the first user turn.
_GEMMA = """\
<bos>{%- if messages[0].role == "system" -%}
{%- set first = messages[0].content + "\\n\\n" -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set first = "" -%}{%- set rest = messages -%}{%- endif -%}
{%- for message in rest -%}
{%- if (message.role == "user") != (loop.index0 % 2 == 0) -%}
{{ raise_exception("roles alternate") }}{%- endif -%}
<start_of_turn>{{ "model" if message.role == "assistant" else message.role }}
{{ (first if loop.first else "") + message.content | trim }}<end_of_turn>
{% endfor -%}
{%- if add_generation_prompt -%}<start_of_turn>model
{% endif -%}"""
#: The tools are a part of the first user turn.
_LLAMA = """\
<|begin|>{%- if messages[0].role == "system" -%}
{%- set rules = messages[0].content -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set rules = "" -%}{%- set rest = messages -%}{%- endif -%}
<|head|>system<|/head|>

Today is a day.

{{ rules }}<|eot|>
{%- for message in rest -%}
<|head|>{{ message.role }}<|/head|>

{% if loop.first and tools -%}
Given these functions:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}
{% endif -%}
{{ message.content | trim }}<|eot|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|head|>assistant<|/head|>

{% endif -%}"""
_QWEN = """\
{%- if tools -%}<|im_start|>system
{% if messages[0].role == "system" %}{{ messages[0].content }}

{% endif %}<tools>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools><|im_end|>
{% elif messages[0].role == "system" -%}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif -%}
{%- for message in messages if message.role != "system" -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
#: The tools stand before the last user turn.
_MISTRAL = """\
<s>{%- for message in messages -%}
{%- if loop.last and tools %}[TOOLS]{{ tools | tojson }}{% endif -%}
[{{ message.role }}]{{ message.content }}
{%- endfor -%}"""
#: Template and markers of each family.
_FAMILIES = {
    "gemma": (_GEMMA, ("<bos>", "<start_of_turn>", "<end_of_turn>")),
    "llama": (_LLAMA, ("<|begin|>", "<|head|>", "<|/head|>", "<|eot|>")),
    "qwen": (_QWEN, ("<|im_start|>", "<|im_end|>")),
    "tiny": (tiny_models.TEMPLATE, tiny_models.SPECIAL),
    "harmony": (tiny_harmony.TEMPLATE, tiny_harmony.SPECIAL),
    "mistral": (_MISTRAL, ("<s>", "[TOOLS]", "[user]")),
}
_TOOLS: tuple[dict[str, Any], ...] = (
    {"type": "function", "function": {"name": "Bash", "parameters": {"type": "object"}}},
)
_RULES = Message(role="system", content="Be brief.\n\nNever lie.")
_EXAMPLES = 60


@cache
def _renderer(family: str) -> PromptRenderer:
    template, marks = _FAMILIES[family]
    tokenizer = Tokenizer(models.BPE())
    if family == "gemma":
        # Splits nothing between its markers, so that any characters may be joined.
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.normalizer = normalizers.Replace(" ", "_")
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(marks),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = ["user\n\n", "\n\n\n", "\n\na", ".\n\nuser\nan  apple\n\na", json.dumps(_TOOLS)] * 2
    tokenizer.train_from_iterator(words, trainer)
    make: Any = PreTrainedTokenizerFast
    hf_tokenizer = make(tokenizer_object=tokenizer, chat_template=template)
    channel_format = HARMONY if family == "harmony" else None
    return PromptRenderer(TokenizerWrapper(hf_tokenizer), None, channel_format)


def _ask(*messages: Message, tools: Any = _TOOLS, **options: Any) -> ChatRequest:
    return ChatRequest(
        model="m",
        messages=messages,
        max_tokens=5,
        sampling=SamplingWish(),
        tools=tools,
        **options,
    )


def _dialogue(*texts: str) -> tuple[Message, ...]:
    return tuple(
        Message(role="assistant" if number % 2 else "user", content=text)
        for number, text in enumerate(texts)
    )


_MESSAGES = st.lists(st.text("a\n \u00e9.0<user", max_size=6), min_size=1, max_size=5).map(
    lambda texts: _dialogue(*texts, *(["go"] if len(texts) % 2 == 0 else []))
)


@settings(max_examples=_EXAMPLES)
@given(
    family=st.sampled_from(["gemma", "llama", "qwen", "tiny", "harmony"]),
    one=_MESSAGES,
    other=_MESSAGES,
    tools=st.sampled_from([(), _TOOLS]),
)
def test_prompts_part_at_the_first_message_and_not_before(
    family: str, one: tuple[Message, ...], other: tuple[Message, ...], tools: Any
) -> None:
    render = _renderer(family).render
    first = render(_ask(_RULES, *one, tools=tools))
    second = render(_ask(_RULES, *other, tools=tools))
    (end,) = first.message_starts
    assert second.message_starts == (end,)
    assert first.tokens[:end] == second.tokens[:end]
    text = _renderer(family).encode(_RULES.content)
    assert end >= len(text) - 1


@settings(max_examples=_EXAMPLES)
@given(
    family=st.sampled_from(["gemma", "llama", "qwen", "tiny", "harmony", "mistral"]),
    before=_MESSAGES,
    last=st.text("a\n \u00e9.0<user", max_size=40).map(lambda text: f"(({text}))"),
    tools=st.sampled_from([(), _TOOLS]),
)
def test_prompts_with_another_last_message_are_equal_before_it(
    family: str, before: tuple[Message, ...], last: str, tools: Any
) -> None:
    renderer = _renderer(family)
    answered = (*before, Message(role="assistant", content="ok"))
    first, second = (
        renderer.render(_ask(_RULES, *answered, Message(role="user", content=text), tools=tools))
        for text in (last, "((other))")
    )
    at = first.last_message
    assert at > 0
    assert first.tokens[:at] == second.tokens[:at]
    after = len(first.tokens) - at
    assert after <= len(renderer.encode(last)) + len(renderer.encode("assistant")) + 12


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(_ask(Message(role="user", content=" \n")), id="it is empty"),
        pytest.param(_ask(_RULES, raw=RawPrompt(text="go")), id="raw"),
    ],
)
def test_the_last_message_is_unknown(request_: ChatRequest) -> None:
    assert _renderer("qwen").render(request_).last_message == 0


@pytest.mark.parametrize("family", ["gemma", "llama", "qwen", "harmony"])
def test_the_position_is_behind_the_system_prompt(family: str) -> None:
    renderer = _renderer(family)
    rendered = renderer.render(_ask(_RULES, *_dialogue("go"), tools=()))
    (end,) = rendered.message_starts
    rest = renderer.render(_ask(*_dialogue("go"), tools=())).tokens
    # At most the marker, the name of the role and line breaks lie between.
    assert len(rest) < len(rendered.tokens) - 2
    assert rendered.tokens[end:][-2:] == rest[-2:]
    assert len(rendered.tokens) - end <= len(renderer.encode("\n\ngo")) + len(rest)


@pytest.mark.parametrize(
    ("family", "request_"),
    [
        pytest.param("qwen", _ask(*_dialogue("go"), tools=()), id="nothing before the messages"),
        pytest.param("qwen", _ask(_RULES), id="no message after it"),
        pytest.param("mistral", _ask(*_dialogue("a", "b", "c")), id="tools among the messages"),
        pytest.param(
            "qwen",
            _ask(replace(_RULES, content="[[placeholder of an answer]]"), *_dialogue("go")),
            id="the stand-in in the system prompt",
        ),
        pytest.param("qwen", _ask(_RULES, raw=RawPrompt(text="go")), id="raw"),
    ],
)
def test_no_position_where_it_is_not_exact(family: str, request_: ChatRequest) -> None:
    assert _renderer(family).render(request_).message_starts == ()
