"""How each family's calls are found in its template, rendered, opened and read, with mlx-lm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer

from domain.chat.request import ChatRequest, Message, ToolCall, ToolChoice
from domain.errors import InvalidRequest
from domain.values import SamplingWish
from tests.support.models.tiny_models import make_tiny_llama
from worker.engine.mlx.model.tool_families import tool_format_of
from worker.engine.mlx.prompt.renderer import PromptRenderer
from worker.engine.output.tool_calls.reader import GLM_LINES_SYNTAX, GLM_SYNTAX

_TURNS = """\
{%- for message in messages -%}
[{{ message.role }}]{{ message.content }}
{%- for call in message.tool_calls or [] -%}
CALLS
{%- endfor -%}
{%- if message.tool_call_id %}({{ message.tool_call_id }}){% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}[assistant]{%- if enable_thinking %}<think>
{% endif -%}{%- endif -%}"""
_JSON_CALL = (
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments | tojson }}}\n</tool_call>{# tool_call.name #}"
)
_FAMILIES = {
    "hermes": _JSON_CALL,
    "mistral": (
        "{%- if call.id | length != 9 %}{{ raise_exception('nine characters') }}{% endif -%}"
        "[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}"
    ),
    "qwen_xml": "<tool_call>\n<function={{ call.function.name }}>\n</function>\n</tool_call>",
    "glm": "<tool_call>{{ call.function.name }}<arg_key></arg_key></tool_call>",
    "llama": (
        '{# {"name": function name, "parameters": dictionary of argument name and its value}. #}'
        '{"name": "{{ call.function.name }}"}'
    ),
    "glm_lines": "<tool_call>{{ call.function.name }}\n<arg_key></arg_key>\n<arg_value>",
    "longcat": "<longcat_tool_call>{{ call.function.name }}</longcat_tool_call>",
    "minimax": "<minimax:tool_call>{{ call.function.name }}</minimax:tool_call>",
    "kimi": "<|tool_calls_section_begin|>{{ call.function.name }}<|tool_calls_section_end|>",
    "lfm": "<|tool_call_start|>[{{ call.function.name }}()]<|tool_call_end|>",
    "minicpm": '<function name="{{ call.function.name }}"><param name="a">b</param></function>',
    "gemma4": "<|tool_call>call:{{ call.function.name }}{}<tool_call|>",
    "gemma": "<start_function_call>call:{{ call.function.name }}{}<end_function_call>",
    "none": "",
}
_BASH: dict[str, Any] = {
    "type": "function",
    "function": {"name": "Bash", "parameters": {"type": "object"}},
}
_TALK = (
    Message(role="user", content="go"),
    Message(
        role="assistant",
        content="",
        tool_calls=(ToolCall(id="toolu_1", name="Bash", arguments={"command": "ls"}),),
    ),
    Message(role="tool", content="a.txt", tool_call_id="toolu_1"),
)


def _renderer(tmp_path: Path, family: str) -> tuple[PromptRenderer, Any, Any]:
    template = _TURNS.replace("CALLS", _FAMILIES[family])
    tokenizer = load_tokenizer(make_tiny_llama(tmp_path / family, template=template))
    tool_format = tool_format_of(tokenizer)
    return PromptRenderer(tokenizer, tool_format), tool_format, tokenizer


def _ask(*messages: Message, choice: ToolChoice | None = None, thinking: bool = False) -> Any:
    return ChatRequest(
        model="m",
        messages=messages or _TALK,
        max_tokens=5,
        sampling=SamplingWish(),
        tools=(_BASH,),
        tool_choice=choice or ToolChoice(),
        thinking=thinking,
    )


@pytest.mark.parametrize(
    ("family", "any_call", "named_call"),
    [
        (
            "hermes",
            '<tool_call>\n{"name": "',
            '<tool_call>\n{"name": "Bash", "arguments":',
        ),
        ("mistral", "[TOOL_CALLS]", "[TOOL_CALLS]Bash[ARGS]"),
        ("qwen_xml", "<tool_call>\n<function=", "<tool_call>\n<function=Bash>\n"),
        ("glm", "<tool_call>", "<tool_call>Bash\n"),
        ("glm_lines", "<tool_call>", "<tool_call>Bash\n"),
        ("longcat", "<longcat_tool_call>", "<longcat_tool_call>Bash\n"),
        (
            "minimax",
            '<minimax:tool_call>\n<invoke name="',
            '<minimax:tool_call>\n<invoke name="Bash">\n',
        ),
        (
            "kimi",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
            (
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.Bash:0"
                "<|tool_call_argument_begin|>"
            ),
        ),
        ("gemma4", "<|tool_call>call:", "<|tool_call>call:Bash{"),
        ("minicpm", '<function name="', '<function name="Bash">'),
        ("lfm", "<|tool_call_start|>[", "<|tool_call_start|>[Bash("),
        ("llama", '{"name": "', '{"name": "Bash", "parameters":'),
    ],
)
def test_call_that_must_be_made_is_begun_by_the_prompt(
    tmp_path: Path, family: str, any_call: str, named_call: str
) -> None:
    renderer, tool_format, tokenizer = _renderer(tmp_path, family)
    assert tool_format is not None
    for choice, opened in (
        (ToolChoice(mode="any"), any_call),
        (ToolChoice(mode="tool", name="Bash"), named_call),
    ):
        rendered = renderer.render(_ask(choice=choice))
        assert rendered.opened == opened
        assert tokenizer.decode(list(rendered.tokens)).endswith(f"[assistant]{opened}")
    assert renderer.render(_ask()).opened == ""


def test_tool_that_cannot_be_named_by_a_beginning_is_named_in_words(tmp_path: Path) -> None:
    renderer, tool_format, tokenizer = _renderer(tmp_path, "gemma")
    assert tool_format is not None
    rendered = renderer.render(_ask(choice=ToolChoice(mode="tool", name="Bash")))
    said = tokenizer.decode(list(rendered.tokens))
    assert rendered.opened == "<start_function_call>"
    assert "a call of the tool Bash" in said
    assert said.endswith("[assistant]<start_function_call>")


def test_reasoning_that_the_template_opens_is_closed_before_a_call_that_must_be_made(
    tmp_path: Path,
) -> None:
    renderer, _, tokenizer = _renderer(tmp_path, "hermes")
    rendered = renderer.render(_ask(choice=ToolChoice(mode="any"), thinking=True))
    said = tokenizer.decode(list(rendered.tokens))
    assert said.endswith(f"<think>\n\n</think>\n\n{rendered.opened}")


@pytest.mark.parametrize("choice", [ToolChoice(mode="any"), ToolChoice(mode="tool", name="Bash")])
def test_model_without_tools_opens_none_and_none_can_be_demanded(
    tmp_path: Path, choice: ToolChoice
) -> None:
    renderer, tool_format, _ = _renderer(tmp_path, "none")
    assert tool_format is None
    assert renderer.render(_ask()).opened == ""
    with pytest.raises(InvalidRequest, match="has no form for tool calls") as refused:
        renderer.render(_ask(choice=choice))
    assert refused.value.field == "tool_choice"


def test_echoed_call_is_rendered_as_the_family_writes_it(tmp_path: Path) -> None:
    renderer, _, tokenizer = _renderer(tmp_path, "hermes")
    said = tokenizer.decode(list(renderer.render(_ask()).tokens))
    body = json.dumps({"name": "Bash", "arguments": {"command": "ls"}})
    assert f"<tool_call>\n{body}\n</tool_call>" in said
    assert "a.txt(toolu_1)" in said


def test_template_that_wants_short_ids_gets_the_same_one_for_call_and_result(
    tmp_path: Path,
) -> None:
    renderer, _, tokenizer = _renderer(tmp_path, "mistral")
    said = tokenizer.decode(list(renderer.render(_ask()).tokens))
    assert '[TOOL_CALLS]Bash[ARGS]{"command": "ls"}' in said
    assert "toolu_1" not in said


def test_each_kind_of_glm_writes_its_own_lines(tmp_path: Path) -> None:
    assert _renderer(tmp_path, "glm")[1].syntax is GLM_SYNTAX
    assert _renderer(tmp_path, "glm_lines")[1].syntax is GLM_LINES_SYNTAX
