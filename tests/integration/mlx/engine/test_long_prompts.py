"""Prompts that are far longer than the context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer

import bench.demo_model.render
from domain.chat.request import ChatRequest, Message, RawPrompt
from domain.errors import PromptTooLong
from domain.values import SamplingWish
from worker.engine.mlx.prompt.renderer import PromptRenderer

_CONTEXT = 32_000
_TEXT = "A sentence of the kind that stands in a document. " * 80_000


class Encoder:
    """A tokenizer of the library ``tokenizers`` that counts the characters that it is given."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.chars = 0

    def encode_batch_fast(self, texts: Sequence[str], **options: Any) -> Any:
        self.chars += sum(map(len, texts))
        return self._tokenizer.encode_batch_fast(texts, **options)


@pytest.mark.parametrize("where", ["message", "tool", "raw"])
def test_four_megabytes_are_refused_after_a_small_part(where: str, exact: int) -> None:
    tokenizer = load_tokenizer(bench.demo_model.render.MODEL_DIR)
    renderer = PromptRenderer(tokenizer, tokens_max=_CONTEXT)
    encoder = Encoder(tokenizer.backend_tokenizer)
    assert renderer._prompts._segments is not None
    renderer._prompts._segments._tokenizer = encoder
    renderer._prompts._backend = encoder
    with pytest.raises(PromptTooLong) as refused:
        renderer.render(_request(where))
    assert encoder.chars <= 12 * _CONTEXT
    assert refused.value.tokens == pytest.approx(exact, rel=0.05)


@pytest.fixture(scope="module")
def exact() -> int:
    """Return the tokens of the text, which take a second to count."""
    tokenizer = load_tokenizer(bench.demo_model.render.MODEL_DIR)
    return len(tokenizer.backend_tokenizer.encode_batch_fast([_TEXT])[0])


def _request(where: str) -> ChatRequest:
    tool = {"type": "function", "function": {"name": "Bash", "description": _TEXT}}
    return ChatRequest(
        model="m",
        messages=()
        if where == "raw"
        else (Message(role="user", content=_TEXT if where == "message" else "go"),),
        raw=RawPrompt(text=_TEXT) if where == "raw" else None,
        tools=(tool,) if where == "tool" else (),
        max_tokens=9,
        sampling=SamplingWish(),
    )
