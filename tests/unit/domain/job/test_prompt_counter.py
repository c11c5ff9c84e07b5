"""Counts before and after the model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from domain.chat.generation import NO_CLAIM, Claim, PreparedPrompt
from domain.chat.ports import InferenceEngine
from domain.chat.request import ChatRequest, Message
from domain.errors import EngineLost, PromptTooLong
from domain.job.prepare_prompt import PromptCounter, PromptTokens
from domain.values import Owner, PromptEncoding, SamplingWish

REQUEST = ChatRequest(
    model="m",
    messages=(Message(role="user", content="Hi."),),
    max_tokens=1,
    sampling=SamplingWish(),
)


class Engine:
    """Prepares prompts once ``tokens`` is set."""

    def __init__(self) -> None:
        self.tokens: int | None = None

    def prepare(
        self,
        request: ChatRequest,
        encoding: PromptEncoding = PromptEncoding.MARKS_AS_TEXT,
        cache_owner: Owner | None = None,
        claim: Claim = NO_CLAIM,
    ) -> PreparedPrompt:
        del request, encoding, cache_owner, claim
        if self.tokens is None:
            raise EngineLost("not loaded")
        raise PromptTooLong(self.tokens, 1)


def test_the_tokenizer_counts_until_the_engine_can() -> None:
    engine, loads, counts = Engine(), [], []

    def load_tokens() -> Callable[[ChatRequest], PromptTokens]:
        loads.append(1)
        return lambda request: PromptTokens(tuple(map(ord, request.messages[0].content)))

    counter = PromptCounter(
        cast("InferenceEngine", engine),
        load_tokens=load_tokens,
        on_count=lambda: counts.append(1),
    )
    assert [counter.count(REQUEST), counter.count(REQUEST)] == [3, 3]
    assert loads == [1]
    engine.tokens = 7
    assert counter.count(REQUEST) == 7
    assert loads == [1]
    assert counts == [1, 1, 1]
