"""How Muse Spark and Kimi K3 are found in what mlx-lm knows of a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import load

from domain.chat.request import ChatRequest, Message, ToolChoice
from domain.values import SamplingWish
from tests.support.models.tiny_models import make_tiny_llama
from worker.engine.mlx.model.tool_families import channel_format_of, end_ids_of, tool_format_of
from worker.engine.mlx.prompt.renderer import PromptRenderer
from worker.engine.output.channel_parser import MUSE_SPARK

_BASH: dict[str, Any] = {
    "type": "function",
    "function": {"name": "Bash", "parameters": {"type": "object"}},
}
_MUSE = ("<|endoftext|>", "<|start|>", "<|message|>", "<|eom|>", "<|eot|>")
_MUSE_TEMPLATE = (
    "{%- for message in messages -%}<|start|>{{ message.role }}<|message|>{{ message.content }}"
    "<|eot|>{%- endfor -%}{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}"
    "{# <atem:function_calls> #}"
)
_KIMI = ("<|endoftext|>", "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
_KIMI_TEMPLATE = (
    '{%- for message in messages -%}<|open|>message role="{{ message.role }}"<|sep|>'
    "{{ message.content }}<|close|>message<|sep|><|end_of_msg|>{%- endfor -%}"
    '{%- if add_generation_prompt -%}<|open|>message role="assistant"<|sep|>'
    '{%- if enable_thinking -%}<|open|>think<|sep|>{%- else -%}<|open|>response<|sep|>{%- endif -%}'
    "{%- endif -%}"
)  # fmt: skip


def _ask(choice: ToolChoice | None = None, *, thinking: bool = False) -> ChatRequest:
    return ChatRequest(
        model="m",
        messages=(Message(role="user", content="go"),),
        max_tokens=5,
        sampling=SamplingWish(),
        tools=(_BASH,),
        tool_choice=choice or ToolChoice(),
        thinking=thinking,
    )


_ANY, _NAMED = ToolChoice(mode="any"), ToolChoice(mode="tool", name="Bash")


def test_muse_spark_is_known_by_its_response_format(tmp_path: Path) -> None:
    place = make_tiny_llama(tmp_path, template=_MUSE_TEMPLATE, special=_MUSE, end="<|endoftext|>")
    # As mlx-lm's module for such networks says it.
    defaults = {"chat_template_type": "muse_spark", "tool_parser_type": "muse_spark"}
    tokenizer = load(place, defaults=defaults)
    tool_format = tool_format_of(tokenizer)
    assert tool_format is not None
    assert channel_format_of(tokenizer) is MUSE_SPARK
    assert tokenizer.convert_tokens_to_ids("<|eot|>") in end_ids_of(tokenizer)
    renderer = PromptRenderer(tokenizer, tool_format, channel_format_of(tokenizer))
    assert renderer.render(_ask(_ANY)).opened == " to="
    assert renderer.render(_ask(_NAMED)).opened == (
        ' to=Bash<|message|><atem:function_calls>\n<atem:invoke name="Bash">\n'
    )


def test_kimi_k3_is_known_by_its_marks(tmp_path: Path) -> None:
    place = make_tiny_llama(tmp_path, template=_KIMI_TEMPLATE, special=_KIMI, end="<|endoftext|>")
    tokenizer = load(place)
    tool_format = tool_format_of(tokenizer)
    assert tool_format is not None
    assert channel_format_of(tokenizer) is None
    assert "<|open|>response<|sep|>" in tokenizer.structural_markers
    assert tokenizer.convert_tokens_to_ids("<|end_of_msg|>") in end_ids_of(tokenizer)
    renderer = PromptRenderer(tokenizer, tool_format, None)
    rendered = renderer.render(_ask(_NAMED))
    said = tokenizer.decode(list(rendered.tokens))
    assert rendered.opened.endswith('<|open|>call tool="Bash" index="1"<|sep|>')
    assert said.endswith(f"<|open|>response<|sep|>{rendered.opened}")
    assert renderer.opens_thinking(renderer.render(_ask(thinking=True)).tokens)
    assert not renderer.opens_thinking(renderer.render(_ask()).tokens)
