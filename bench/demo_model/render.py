"""Renders conversations with the shipped chat template and marks the learned parts.

Training and serving read the same template, so they cannot differ.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = dict[str, Any]

MODEL_DIR = Path(__file__).resolve().parents[2] / "worker" / "demo_model"
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "</tools>",
)

# The opening of an answer is given by the template; the rest, up to and including the end
# mark, is what the model has to write itself. An empty thought is given, a full one is not.
_ANSWER = re.compile(
    r"<\|im_start\|>assistant\n<think>\n(?:\n</think>\n\n)?(?P<answer>.*?<\|im_end\|>)",
    re.DOTALL,
)


def _to_json(value: Any, *, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Serialise like the tokenizer library does, which does not escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


@cache
def load_template() -> Template:
    """Compile the shipped chat template the way the tokenizer library compiles it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    file = MODEL_DIR / "chat_template.jinja"
    return environment.from_string(file.read_text(encoding="utf-8"))


def rendered(messages: Sequence[Message], tools: Sequence[Message] | None = None) -> str:
    """Return a conversation as one string."""
    return load_template().render(messages=messages, tools=tools)


def split_answers(text: str) -> Iterator[tuple[str, bool]]:
    """Split a rendered conversation into given text and answers to be learned."""
    done = 0
    for match in _ANSWER.finditer(text):
        start, end = match.span("answer")
        yield text[done:start], False
        yield text[start:end], True
        done = end
    if done < len(text):
        yield text[done:], False
